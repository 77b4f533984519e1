"""Lanes of sealing: slots, the choice of the next lane, runs side by side. Design §3."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlmodel import select

from recorder import clock
from recorder.memory.storage.versions import in_scope, set_memory_graph
from recorder.models.memory import GraphPauseRow, GraphVersionRow, SessionPathRow
from recorder.models.operations import SealCounterRow
from recorder.runtime import Runtime
from recorder.sealing import Sealer, compute_longest_wait_s, open_sealer
from recorder.sealing.batches import SealingBatchLimits
from recorder.sealing.lane_scheduling import SealingTimes
from recorder.sealing.lanes import (
    _FIRST_OF_EACH_LANE,
    Lane,
    LanesOpen,
    change_sealing_slots,
    list_ready_lanes,
    list_takeable_lanes,
    list_waiting_lanes,
    take_lane,
    take_run_lease,
)
from recorder.settings import Settings
from recorder.storage.deployment import SealingSlotsDiffer, compute_sealing_slot
from recorder.storage.leases import take_lease
from recorder.tenant import GraphScope, Tenant
from tests.support.recorded_sessions import (
    WORKSPACE,
    assert_sealed_exactly_once,
    execute,
    open_desk,
    session_row,
)
from tests.support.sealed_sessions import make_settings, open_on_either_engine
from tests.support.sealing import seal_all

OTHER = "wsp_01k0000000000000000000000b"
THIRD = "wsp_01k0000000000000000000000c"


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


def record(
    runtime: Runtime, workspace_id: str = WORKSPACE, *, waited_s: float = 0, workflow: str = "checkout"
) -> str:
    """Record a stopped session that has waited so long."""
    with open_desk(runtime, workspace_id=workspace_id) as desk:
        session_id = desk.record(workflow=workflow)
    since = (clock.now() - timedelta(seconds=waited_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
    execute(runtime, "UPDATE sessions SET waiting_since = :at WHERE id = :id", at=since, id=session_id)
    return session_id


def next_workspaces(runtime: Runtime, *, runs: int = 2) -> list[str]:
    """Return the workspaces of the lanes that a run may take now, in the order of its choice."""
    with runtime.database.transaction(write=False) as db:
        return [
            lane.tenant.workspace_id
            for lane in list_takeable_lanes(db, "me", list_ready_lanes(db), runs=runs)
        ]


def hold_lane(runtime: Runtime, owner: str, *, runs: int = 2) -> Lane:
    """Let another run take the next lane and keep it."""
    with runtime.database.transaction(write=True) as db:
        taken = take_lane(db, owner, list_ready_lanes(db), runs=runs, ttl_ms=60_000)
    assert taken is not None
    return taken[0]


def test_workflows_are_spread_over_the_slots() -> None:
    slots = {compute_sealing_slot(f"workflow_{number}", 8) for number in range(200)}
    assert slots == set(range(8))
    assert compute_sealing_slot("checkout", 8) == compute_sealing_slot("checkout", 8)


def test_every_lane_is_found_with_its_longest_wait(runtime: Runtime) -> None:
    for workspace_id in (WORKSPACE, OTHER):
        for waited_s in (5, 60, 1):
            record(runtime, workspace_id, waited_s=waited_s)
    record(runtime, workflow="ship", waited_s=7)
    with runtime.database.transaction(write=False) as db:
        result = dict(list_waiting_lanes(db))
    waits = {lane.name: round((clock.now() - since).total_seconds(), -1) for lane, since in result.items()}
    checkout, ship = compute_sealing_slot("checkout", 8), compute_sealing_slot("ship", 8)
    assert waits == {
        f"seal:{WORKSPACE}:live:{checkout}": 60,
        f"seal:{WORKSPACE}:live:{ship}": 10,
        f"seal:{OTHER}:live:{checkout}": 60,
    }


def test_sqlite_finds_the_next_lane_by_the_index_however_many_sessions_wait(tmp_path: Path) -> None:
    opened = Runtime.open(make_settings(tmp_path))
    statement = str(_FIRST_OF_EACH_LANE).replace(":failures_below", "1")
    with opened.database.transaction(write=False) as db:
        plan = db.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
    opened.close()
    searches = [row[-1] for row in plan if row[-1].startswith("SEARCH later")]
    assert len(searches) == 1 and "(workspace_id,mode,seal_slot)>" in searches[0]


def test_the_lane_that_waits_longest_comes_first(runtime: Runtime) -> None:
    for workspace_id, waited_s in ((WORKSPACE, 5), (OTHER, 50), (THIRD, 20)):
        record(runtime, workspace_id, waited_s=waited_s)
    assert next_workspaces(runtime) == [OTHER, THIRD, WORKSPACE]


def test_a_lane_with_a_long_queue_comes_after_those_that_waited_while_it_was_served(runtime: Runtime) -> None:
    for _ in range(3):
        record(runtime, WORKSPACE, waited_s=3_600)
    record(runtime, OTHER, waited_s=1)
    batches = seal_all(
        runtime, batch_limits=SealingBatchLimits(sessions=1), times=SealingTimes(lane_seconds=0)
    )
    served = [batch.tenant.workspace_id for batch in batches]
    assert served == [WORKSPACE, OTHER, WORKSPACE, WORKSPACE]


def test_a_lane_is_kept_while_no_other_waits(runtime: Runtime) -> None:
    for _ in range(2):
        record(runtime)
    with open_sealer(
        runtime, "run", batch_limits=SealingBatchLimits(sessions=1), times=SealingTimes(lane_seconds=0)
    ) as sealer:
        assert sealer is not None and sealer.seal_batch() is not None
        assert sealer._scheduler.current is not None


def test_one_workspace_holds_half_of_the_runs_while_others_wait(runtime: Runtime) -> None:
    workflows = ["checkout", "ship", "refund", "hire", "order"]
    assert len({compute_sealing_slot(workflow, 8) for workflow in workflows}) >= 4
    for number, workflow in enumerate(workflows):
        record(runtime, WORKSPACE, waited_s=100 - number, workflow=workflow)
    record(runtime, OTHER, waited_s=1)
    held = [hold_lane(runtime, f"run {number}", runs=4).tenant.workspace_id for number in range(3)]
    assert held == [WORKSPACE, WORKSPACE, OTHER]
    # No other workspace waits now, so a third run may help the first one; the last one stays free for others.
    assert set(next_workspaces(runtime, runs=4)) == {WORKSPACE}
    assert hold_lane(runtime, "run 3", runs=4).tenant.workspace_id == WORKSPACE
    assert next_workspaces(runtime, runs=4) == []


def test_a_lane_that_another_run_holds_is_left_alone(runtime: Runtime) -> None:
    record(runtime)
    hold_lane(runtime, "another")
    with open_sealer(runtime, "run") as sealer:
        assert sealer is not None and sealer.seal_batch() is None
    with runtime.database.transaction(write=False) as db:
        assert compute_longest_wait_s(db, runs=2) is None


def test_a_released_lane_is_not_renewed(runtime: Runtime) -> None:
    record(runtime)
    with runtime.database.transaction(write=True) as db:
        taken = take_lane(db, "run", list_ready_lanes(db), runs=2, ttl_ms=60_000)
        assert taken is not None
        taken[1].release(db)
    sealer = Sealer(runtime, owner="run")
    with runtime.database.transaction(write=True) as db:
        assert not taken[1].renew(db, only_if_held=True)
    sealer.release()
    assert next_workspaces(runtime) == [WORKSPACE]


def test_racing_runs_seal_everything_once_and_number_each_workflow_upwards(runtime: Runtime) -> None:
    runtime = replace(runtime, settings=replace(runtime.settings, seal_runs=4))
    workflows = ["checkout", "ship", "refund", "hire", "order"]
    ids: dict[tuple[str, str], list[str]] = {}
    for _ in range(4):
        for workspace_id in (WORKSPACE, OTHER):
            for workflow in workflows:
                ids.setdefault((workspace_id, workflow), []).append(
                    record(runtime, workspace_id, workflow=workflow)
                )
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            with open_sealer(
                runtime,
                name,
                batch_limits=SealingBatchLimits(sessions=3),
                times=SealingTimes(lane_seconds=0.05),
            ) as sealer:
                assert sealer is not None
                while any(session_row(runtime, session_id).status != "sealed" for session_id in everything):
                    sealer.seal_batch()
        except BaseException as error:
            failures.append(error)

    everything = [session_id for lane_ids in ids.values() for session_id in lane_ids]
    threads = [Thread(target=run, args=(f"run {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_sealed_exactly_once(runtime, everything)
    for lane_ids in ids.values():
        rows = [session_row(runtime, session_id) for session_id in lane_ids]
        assert [row.seal_seq for row in rows] == sorted(row.seal_seq or 0 for row in rows)
    with runtime.database.transaction(write=False) as db:
        versions = list(db.exec(select(GraphVersionRow).order_by(GraphVersionRow.version)))
    for workspace_id, workflow in ids:
        own_versions = [
            row for row in versions if (row.workspace_id, row.workflow) == (workspace_id, workflow)
        ]
        numbers = [row.up_to_seal_seq for row in own_versions]
        assert numbers == sorted(numbers)
        assert [row.version for row in own_versions] == list(range(1, len(own_versions) + 1))


def test_pauses_hold_for_the_sessions_that_racing_runs_seal_in_them(runtime: Runtime) -> None:
    runtime = replace(runtime, settings=replace(runtime.settings, seal_runs=3))
    scope = GraphScope(Tenant(WORKSPACE, "live"), "checkout")
    everything = [record(runtime, workflow=workflow) for _ in range(24) for workflow in ("checkout", "ship")]
    done = Event()

    def run(name: str) -> None:
        limits = SealingBatchLimits(sessions=2)
        with open_sealer(runtime, name, batch_limits=limits, times=SealingTimes(lane_seconds=0.05)) as sealer:
            assert sealer is not None
            while any(session_row(runtime, session_id).status != "sealed" for session_id in everything):
                sealer.seal_batch()

    def pause_and_resume() -> None:
        is_on = False
        while not done.wait(0.05):
            with runtime.database.transaction(write=True) as db:
                set_memory_graph(db, scope, is_on)
            is_on = not is_on

    with ThreadPoolExecutor(4) as threads:
        pausing = threads.submit(pause_and_resume)
        runs = [threads.submit(run, f"run {number}") for number in range(3)]
        for each in runs:
            each.result()
        done.set()
        pausing.result()
    rows = [session_row(runtime, session_id) for session_id in everything]
    with runtime.database.transaction(write=False) as db:
        pauses = db.exec(select(GraphPauseRow).where(*in_scope(GraphPauseRow, scope))).all()
        counted = set(db.exec(select(SessionPathRow.session_id)))
    paused = {
        row.id
        for row in rows
        for pause in pauses
        if row.workflow == "checkout" and row.seal_seq is not None and pause.from_seq <= row.seal_seq
        if pause.to_seq is None or row.seal_seq <= pause.to_seq
    }
    print(f"{len(pauses)} pauses, {len(paused)} of 24 sessions in them")
    assert set(everything) - counted == paused
    assert 0 < len(paused) < 24


def test_new_slots_number_above_the_old_ones(runtime: Runtime) -> None:
    before = [record(runtime, workflow=workflow) for workflow in ("checkout", "ship")]
    seal_all(runtime)
    waiting = record(runtime)
    with runtime.database.transaction(write=True) as db:
        assert change_sealing_slots(db, 3) == 8
    after = [waiting, record(runtime, workflow="ship")]
    seal_all(replace(runtime, settings=replace(runtime.settings, seal_slots=3)))
    assert_sealed_exactly_once(runtime, [*before, *after])
    for old, new in zip(before, after, strict=True):
        assert (session_row(runtime, new).seal_seq or 0) > (session_row(runtime, old).seal_seq or 0)
    with runtime.database.transaction(write=False) as db:
        assert {row.slot for row in db.exec(select(SealCounterRow))} == {0, 1, 2}


def test_slots_are_not_changed_while_a_batch_is_open(runtime: Runtime) -> None:
    record(runtime)
    sealer = Sealer(runtime, owner="run")
    assert sealer.take() and sealer._scheduler.take_lane()
    with pytest.raises(LanesOpen), runtime.database.transaction(write=True) as db:
        change_sealing_slots(db, 3)
    sealer.release()
    with pytest.raises(LanesOpen), runtime.database.transaction(write=True) as db:
        change_sealing_slots(db, 3)


def test_a_setting_that_names_other_slots_is_refused(runtime: Runtime) -> None:
    with pytest.raises(SealingSlotsDiffer, match=r"8 sealing slots.*recorder db reslot"):
        Runtime.open(replace(runtime.settings, seal_slots=4))


def test_a_run_loads_its_libraries_before_it_takes_a_run_lease(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from recorder.runtime import Runtime
from recorder.sealing.sealer import Sealer, open_sealer
from tests.support.sealed_sessions import make_settings

def note_libraries(self):
    print(*sorted({"pandas", "networkx", "scipy.sparse", "sklearn.neighbors"} & sys.modules.keys()))
    return False

Sealer.take = note_libraries
runtime = Runtime.open(make_settings(Path(sys.argv[1])))
assert "sklearn" not in sys.modules
with open_sealer(runtime, "run") as sealer:
    assert sealer is None
runtime.close()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.split() == ["networkx", "pandas", "scipy.sparse", "sklearn.neighbors"]


def test_a_run_lease_lasts_as_long_as_the_longest_lease_that_the_setting_allows(
    runtime: Runtime, tmp_path: Path
) -> None:
    env = {"RECORDER_DATA_DIR": str(tmp_path / "data")}
    settings = Settings.from_env({"RECORDER_SEAL_LEASE_SECONDS": "240", **env})
    ttl_ms = round(settings.seal_lease_seconds * 1000)
    with pytest.raises(Exception, match="240"):
        Settings.from_env({"RECORDER_SEAL_LEASE_SECONDS": "241", **env})
    with runtime.database.transaction(write=True) as db:
        held = take_run_lease(db, "a run", runs=1, ttl_ms=ttl_ms)
    assert held is not None
    with runtime.database.transaction(write=True) as db:
        # Also by a host whose clock is some seconds behind.
        assert take_lease(db, held.lease.name, "other", now_ms=clock.now_ms() - 30_000, ttl_ms=ttl_ms) is None
        held.release(db)
