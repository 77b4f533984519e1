"""Replayability of sealed sessions, computed by the drain run of replays. Spec §4.6; contract §2."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from recorder import clock
from recorder.models.session import WAITS_FOR_REPLAYABILITY, SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.due_replays import LEASE
from recorder.replay_service.replayability.replayability_process import ReplayabilityProcess
from recorder.replay_service.replayability.replayability_queue import has_queued_replayability
from recorder.replay_service.replayability.replayability_work import ReplayabilityWork
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS, LakePartition
from recorder.storage.leases import HeldLease, hold_lease
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, event, frame
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import OTHER, PAGE, click, long_run, sealed_run, stopped_run


@pytest.fixture(autouse=True)
def only_sessions_of_the_test(caller: Caller) -> None:
    """Remove the sessions of other tests from the queue."""
    with caller.service.runtime.database.transaction(write=True) as db:
        for row in db.exec(select(SessionRow).where(WAITS_FOR_REPLAYABILITY)):
            row.replayability_at = clock.now()
            db.add(row)


def shown(caller: Caller, session_id: str) -> float | None:
    """Return the member of the session object."""
    answer = caller.get(f"/v1/sessions/{session_id}")
    assert answer.status_code == 200, answer.text
    value: float | None = answer.json()["replayability"]
    return value


def change(runtime: Runtime, session_id: str, **columns: object) -> SessionRow:
    """Set columns of a session; its row."""
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        for name, value in columns.items():
            setattr(row, name, value)
        db.add(row)
    return row


def is_waiting(caller: Caller) -> bool:
    """Return whether the sensor would start a run."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return has_queued_replayability(db, LEASE)


@pytest.fixture(scope="module")
def process() -> Iterator[ReplayabilityProcess]:
    """Yield the limited process, started once."""
    made = ReplayabilityProcess()
    yield made
    made.end()


@contextmanager
def working(
    caller: Caller, process: ReplayabilityProcess, **chosen: Any
) -> Iterator[tuple[ReplayabilityWork, HeldLease]]:
    """Yield the work of a run that holds its lease, and tries failures again at once."""
    database = caller.service.runtime.database
    with database.transaction(write=True) as db:
        held = hold_lease(db, LEASE, "tests", ttl_ms=300_000)
    assert held is not None
    # A busy machine makes no session of the tests a long one.
    work = ReplayabilityWork(
        caller.service.runtime,
        process,
        **{"quick_s": 60.0, "failure_pause_s": 0.0, "lost_pause_s": 0.0, **chosen},
    )
    try:
        yield work, held
    finally:
        work.end()
    with database.transaction(write=True) as db:
        held.release(db)


def compute_all(caller: Caller, process: ReplayabilityProcess) -> dict[str, int]:
    """Take turns until no session is left; their counts."""
    with working(caller, process) as (work, held):
        while work.take_turn(held):
            pass
        return +work.counts


def test_a_sealed_session_gets_the_share_of_its_steps_that_resolve(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    whole, changed = stopped_run(caller), sealed_run(caller, first=OTHER)
    assert (shown(caller, whole), shown(caller, changed)) == (None, None)
    assert compute_all(caller, process) == {"computed": 2}
    assert (shown(caller, whole), shown(caller, changed)) == (1.0, 0.0)
    listed = {row["id"]: row["replayability"] for row in caller.get("/v1/sessions").json()["data"]}
    assert listed == {whole: 1.0, changed: 0.0}
    # Rows that were swept from the database are read from the lake alone, with the same result.
    change(caller.service.runtime, whole, is_hot=False, replayability=None, replayability_at=None)
    assert compute_all(caller, process) == {"computed": 1}
    assert shown(caller, whole) == 1.0


def test_a_session_without_snapshots_is_never_tried(caller: Caller, process: ReplayabilityProcess) -> None:
    runtime = caller.service.runtime
    without, with_snapshot = caller.make_session(workflow="approve"), caller.make_session(workflow="approve")
    bare = caller.make_session(workflow="approve", status="stopped")
    shown_page: dict[str, Any] = {"dom": snapshot(PAGE)}
    for session_id, members in ((without, {}), (with_snapshot, shown_page)):
        assert caller.add_events(session_id, click(100, "Open")).status_code == 202
        assert caller.add_frames(session_id, frame(50, 0, **members)).status_code == 202
        assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    waiting = [change(runtime, session_id).replayability_at is None for session_id in (bare, without)]
    assert waiting == [False, False] and change(runtime, with_snapshot).replayability_at is None
    # Sessions of an earlier release wait, whatever they have, and are read once.
    for session_id in (bare, without):
        change(runtime, session_id, replayability_at=None)
    assert compute_all(caller, process) == {"computed": 3}
    assert [shown(caller, ses) for ses in (bare, without, with_snapshot)] == [None, None, 1.0]
    assert compute_all(caller, process) == {}


def test_a_run_is_started_when_sessions_have_waited(caller: Caller, process: ReplayabilityProcess) -> None:
    session_id = sealed_run(caller)
    change(caller.service.runtime, session_id, sealed_at=clock.now())
    assert not is_waiting(caller)
    change(caller.service.runtime, session_id, sealed_at=clock.now() - timedelta(seconds=11))
    assert is_waiting(caller)
    with caller.service.runtime.database.transaction(write=True) as db:
        workspace = db.get_one(WorkspaceRow, caller.key.workspace_id)
        workspace.status = "suspended"
        db.add(workspace)
    assert not is_waiting(caller)
    assert compute_all(caller, process) == {}
    with caller.service.runtime.database.transaction(write=True) as db:
        db.get_one(WorkspaceRow, caller.key.workspace_id).status = "active"
    with working(caller, process):
        assert not is_waiting(caller)
    assert compute_all(caller, process) == {"computed": 1}
    assert not is_waiting(caller) and shown(caller, session_id) == 1.0


def test_workspaces_take_turns_and_the_newest_pass_a_back_fill(
    caller: Caller, process: ReplayabilityProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    other = caller.service.make_caller()
    old = [stopped_run(caller) for _ in range(6)]
    newest, theirs = stopped_run(caller), sealed_run(other)
    for age, session_id in enumerate(old):
        change(runtime, session_id, sealed_at=clock.now() - timedelta(days=9 - age))
    monotonic = time.monotonic
    # One session a turn, and a long pause after it.
    with working(caller, process, turn_s=1e-9, turn_pauses=1e7) as (work, held):
        assert work.take_turn(held) and work.take_turn(held)
        assert (shown(caller, newest), shown(other, theirs)) == (1.0, 1.0)
        with runtime.database.transaction(write=False) as db:
            waiting = work._list_waiting(db, change(runtime, newest).tenant)
        # The newest first, then the oldest.
        assert [row.id for row in waiting] == [old[-1], old[0], *old[-2:0:-1]][:5]
        # While replays wait, a turn comes seldom, and the longer the last one took, the later.
        assert not work.take_turn(held, is_busy=True)
        minute_later = monotonic() + 60
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: minute_later)
            assert not work.take_turn(held, is_busy=True)
        later = monotonic() + 2e9
        monkeypatch.setattr(time, "monotonic", lambda: later)
        held.note_renewal(later)
        assert work.take_turn(held, is_busy=True)
        # This turn took no time.
        later += 1.0
        assert not work.take_turn(held, is_busy=True)
        later += 2.0
        assert work.take_turn(held, is_busy=True)


def test_a_session_that_takes_too_long_ends_alone_without_a_value(caller: Caller) -> None:
    hostile = sealed_run(caller)
    # The first request starts the process, which takes longer than this.
    slow = ReplayabilityProcess(seconds=0.01)
    assert compute_all(caller, slow) == {"failures": 3, "left_out": 1}
    assert shown(caller, hostile) is None
    assert change(caller.service.runtime, hostile).replayability_at is not None
    assert compute_all(caller, slow) == {}


def test_a_session_that_takes_long_is_computed_beside_the_others(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    quick, other = sealed_run(caller), caller.service.make_caller()
    long, theirs = long_run(caller), sealed_run(other)
    with working(caller, process, quick_s=0.1) as (work, held):
        beside = set()
        while work.take_turn(held):
            beside |= {*work._long.list_ids()}
    assert beside == {long}
    assert [shown(caller, quick), shown(other, theirs), shown(caller, long)] == [1.0] * 3


@pytest.mark.parametrize(
    "limits",
    [
        {"seconds": 0.1},
        # Only the processor's time can end it: it may wait for one as long as it takes.
        {"seconds": 0.1, "is_long": True, "waiting_factor": 10_000},
    ],
    ids=["time", "processor-time"],
)
def test_a_long_session_that_takes_too_long_is_tried_once(
    caller: Caller, process: ReplayabilityProcess, limits: dict[str, Any]
) -> None:
    long, quick = long_run(caller), sealed_run(caller)
    hasty = {"quick_s": 0.1, "make_long_process": lambda: ReplayabilityProcess(**limits)}
    with working(caller, process, **hasty) as (work, held):
        while work.take_turn(held):
            pass
    assert +work.counts == {"failures": 1, "left_out": 1, "computed": 1}
    assert (shown(caller, long), shown(caller, quick)) == (None, 1.0)


def test_sessions_in_a_pause_hold_up_no_other_workspace(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    other = caller.service.make_caller()
    paused, theirs = sealed_run(caller), sealed_run(other)
    with working(caller, process) as (work, held):
        work._paused[paused] = time.monotonic() + 60
        work._scheduler.add_time(change(caller.service.runtime, theirs).tenant, 60)
        assert work.take_turn(held)
        assert (shown(caller, paused), shown(other, theirs)) == (None, 1.0)


def test_damaged_rows_of_one_session_leave_the_others_alone(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    runtime = caller.service.runtime
    damaged, whole = stopped_run(caller), sealed_run(caller)
    row = change(runtime, damaged)
    places = {"partitions": [LakePartition(row.workflow, row.lake_date or "")], "session_ids": [damaged]}
    assert runtime.lake.delete_sessions("frames", row.tenant, **places).count  # type: ignore[arg-type]
    assert compute_all(caller, process) == {"failures": 3, "left_out": 1, "computed": 1}
    assert (shown(caller, damaged), shown(caller, whole)) == (None, 1.0)


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"cut"), Path.unlink], ids=["cut", "gone"])
def test_a_damaged_lake_file_of_one_session_pauses_that_session_alone(
    caller: Caller, process: ReplayabilityProcess, damage: Callable[[Path], object]
) -> None:
    others = [stopped_run(caller) for _ in range(3)]
    damaged = sealed_run(caller, workflow="damaged")
    lake = Path(caller.service.runtime.settings.lake_url, caller.key.workspace_id)
    (file,) = lake.glob("live/frames/workflow=damaged/*/*.parquet")
    damage(file)
    with working(caller, process, lost_pause_s=60.0) as (work, held):
        while work.take_turn(held):
            pass
        assert [*work._paused] == [damaged] and not work._paused_tenants
    assert [shown(caller, session_id) for session_id in others] == [1.0] * 3
    assert change(caller.service.runtime, damaged).replayability_at is None


def test_a_store_that_does_not_answer_pauses_the_workspace(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    runtime = caller.service.runtime
    session_id = sealed_run(caller)
    folder = Path(runtime.settings.blob_url)
    away = folder.rename(folder.with_name("away"))
    folder.write_text("no folder")
    with working(caller, process) as (work, held):
        assert not work.take_turn(held)
        folder.unlink()
        away.rename(folder)
        assert not work.take_turn(held)
        work._paused_tenants.clear()
        assert not work.take_turn(held)  # others of the workspace go on, this one waits
        work._paused.clear()
        assert work.take_turn(held)
    assert shown(caller, session_id) == 1.0


@pytest.mark.parametrize("store", ["blob_url", "lake_url"])
def test_a_session_waits_for_a_volume_that_is_not_mounted(
    caller: Caller, process: ReplayabilityProcess, store: str
) -> None:
    session_id = sealed_run(caller, first=OTHER)
    # Rows that were swept from the database are read from the lake alone.
    change(caller.service.runtime, session_id, is_hot=False)
    folder = Path(getattr(caller.service.runtime.settings, store))
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()  # the volume is not mounted
    assert compute_all(caller, process) == {}
    assert change(caller.service.runtime, session_id).replayability_at is None
    folder.rmdir()
    away.rename(folder)
    assert compute_all(caller, process) == {"computed": 1}
    assert shown(caller, session_id) == 0.0


def test_a_session_whose_snapshots_are_lost_is_left_without_a_value_after_an_hour(
    caller: Caller, process: ReplayabilityProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    lost, whole = sealed_run(caller, first=OTHER), sealed_run(caller)
    for pack in Path(runtime.settings.blob_url, "frames", caller.key.workspace_id, lost).glob("*.pack"):
        pack.unlink()
    begun = time.monotonic()
    with working(caller, process) as (_, held):
        work = ReplayabilityWork(runtime, process)
        for minutes, failures in ((0, 1), (29, 1), (31, 2), (59, 2), (62, 3)):
            monkeypatch.setattr(time, "monotonic", lambda later=begun + minutes * 60: later)
            held.note_renewal(time.monotonic())
            while work.take_turn(held):
                pass
            assert work.counts["failures"] == failures
            # Until the last attempt the run goes on, since the next one would count from the first.
            assert (work.has_paused, work.retry_s > 3600) == (failures < 3, failures < 3)
            assert (change(runtime, lost).replayability_at is None) == (failures < 3)
        work.end()
    assert (shown(caller, lost), shown(caller, whole)) == (None, 1.0)
    assert not is_waiting(caller)


def test_a_lost_session_that_is_deleted_keeps_no_run_alive(
    caller: Caller, process: ReplayabilityProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = sealed_run(caller, first=OTHER)
    folder = Path(caller.service.runtime.settings.blob_url, "frames", caller.key.workspace_id, lost)
    for pack in folder.glob("*.pack"):
        pack.write_bytes(b"cut")
    with working(caller, process, lost_pause_s=60.0) as (work, held):
        while work.take_turn(held):
            pass
        assert work.has_paused
        assert caller.delete(f"/v1/sessions/{lost}").status_code == 204
        later = time.monotonic() + 600
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert not work.take_turn(held) and not work.has_paused and not work.retry_s


def test_a_session_that_is_sealed_again_is_computed_again(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    runtime = caller.service.runtime
    session_id = sealed_run(caller)
    compute_all(caller, process)
    assert shown(caller, session_id) == 1.0
    row = change(runtime, session_id, waiting_since=clock.now())
    places = {"partitions": [LakePartition(row.workflow, row.lake_date or "")], "session_ids": [session_id]}
    for kind in LAYOUTS:
        runtime.lake.delete_sessions(kind, row.tenant, **places)  # type: ignore[arg-type]
    seal_all(caller.service.runtime)
    assert shown(caller, session_id) is None
    compute_all(caller, process)
    assert shown(caller, session_id) == 1.0


def test_deleted_sessions_do_not_wait(caller: Caller, process: ReplayabilityProcess) -> None:
    session_id = sealed_run(caller)
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert compute_all(caller, process) == {}
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.get(SessionRow, session_id) is None


def test_only_actions_count_and_each_is_bound_to_its_frame(
    caller: Caller, process: ReplayabilityProcess
) -> None:
    session_id = caller.make_session(workflow="approve")
    batch = (
        event(10, "pointer_move"),
        click(100, "Open"),
        click(150, "Missing"),
        event(180, "pointer_move"),
        click(300, "Approve", frame_id="frm_a"),
        click(350, "Open"),
    )
    assert caller.add_events(session_id, *batch).status_code == 202
    frames = (
        frame(50, id="frm_a", dom=snapshot(PAGE)),
        frame(200, 1, id="frm_b", dom=snapshot(OTHER)),
        frame(320, 2, id="frm_c"),
    )
    assert caller.add_frames(session_id, *frames).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    compute_all(caller, process)
    assert shown(caller, session_id) == 0.5
