"""The loop of a drain run: pauses, and a lane that fails beside others. Design §3 (sealing)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from sqlmodel import col, update

from pipelines.sealing_drain import SealingDrainLoop, choose_sealing_pause
from recorder import clock
from recorder.errors import Unavailable
from recorder.errors.panics import LibraryPanic
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import CleanupCounts, Sealer, open_sealer
from tests.support.factories import picture
from tests.support.panics import make_panics
from tests.support.recorded_sessions import open_desk, png_item, session_row
from tests.support.sealed_sessions import Recording, open_on_either_engine, seal
from tests.support.sealing import seal_waiting

QUIET = [f"wsp_01k000000000000000000000{letter}0" for letter in "abcdefgh"]
PATIENCE_S = 60.0


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


class Pauses(threading.Event):
    """Event that counts the seconds of its waits instead of waiting them."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return super().wait(0.002)


@contextmanager
def drain_run(runtime: Runtime) -> Iterator[Pauses]:
    """Seal in a thread until the block ends; yield the pauses of the run."""
    pauses = Pauses()
    with open_sealer(runtime, "run", stopping=pauses) as sealer:
        assert sealer is not None
        drain = SealingDrainLoop(sealer, idle_seconds=3_600, max_seconds=PATIENCE_S)

        def run() -> None:
            for _ in drain.seal_and_report():
                pass

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield pauses
        finally:
            drain.stop()
            thread.join()


def record(runtime: Runtime, workspace_id: str, **members: Any) -> str:
    """Record a stopped session in a workspace."""
    with open_desk(runtime, workspace_id=workspace_id) as desk:
        return desk.record(**members)


def wait_until_sealed(runtime: Runtime, session_ids: list[str]) -> None:
    """Wait until all sessions are sealed."""
    wait_until(lambda: {session_row(runtime, session_id).status for session_id in session_ids} == {"sealed"})


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    never = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        never.wait(0.02)
    raise AssertionError("not in time")


def test_a_search_that_takes_long_is_repeated_less_often_up_to_a_bound() -> None:
    assert choose_sealing_pause(0.001, idle_s=0) == 0.025
    assert choose_sealing_pause(0.02, idle_s=0) == 0.2
    assert choose_sealing_pause(30.0, idle_s=0) == 0.5


def test_a_run_that_had_work_searches_again_at_once_also_after_a_long_time_without_a_sealed_batch() -> None:
    assert choose_sealing_pause(0.0, idle_s=3_600) == 0.025
    assert choose_sealing_pause(0.001, idle_s=3_600) == 0.5


def test_a_pass_that_worked_without_sealing_counts_as_no_search(runtime: Runtime) -> None:
    session_id = record(runtime, QUIET[0], frames=[png_item(1, picture(1))])
    with open_sealer(runtime, "run") as sealer:
        assert sealer is not None
        for key in list(runtime.blobs.keys("frames")):
            runtime.blobs.delete(key)
        assert sealer.seal_batch() is not None  # a batch of no session
        assert sealer.search_s == 0
        seal_waiting(sealer)
        assert sealer.search_s > 0
    assert session_row(runtime, session_id).seal_error_code == "content_missing"


def test_one_unreadable_object_costs_its_session_alone(runtime: Runtime) -> None:
    bad = record(runtime, QUIET[0], frames=[png_item(1, picture(1))])
    for key in list(runtime.blobs.keys("frames")):
        path = Path(runtime.blobs.url, key)
        path.unlink()
        path.mkdir()
    same_lane = record(runtime, QUIET[0])
    with drain_run(runtime) as pauses:
        wait_until_sealed(runtime, [same_lane])
        for workspace_id in QUIET[1:]:
            wait_until_sealed(runtime, [record(runtime, workspace_id)])
    assert session_row(runtime, bad).seal_error_code == "content_unreadable"
    assert max(pauses.seconds) <= 0.5


def test_a_sweep_that_was_cut_is_continued_at_once(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [CleanupCounts(is_sweep_cut=True)] * 3 + [CleanupCounts()] * 100
    begun: list[Sealer] = []

    def maintain(sealer: Sealer) -> CleanupCounts:
        begun.append(sealer)
        return counts[len(begun) - 1]

    monkeypatch.setattr(Sealer, "maintain", maintain)
    with drain_run(runtime):
        never = threading.Event()
        for _ in range(int(PATIENCE_S / 0.02)):
            if len(begun) == 4:
                break
            never.wait(0.02)
        never.wait(0.5)
    assert len(begun) == 4


def test_an_error_of_the_maintenance_does_not_end_the_run(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def maintain(sealer: Sealer) -> CleanupCounts:
        begun.set()
        raise LibraryPanic("a cut-off file")

    monkeypatch.setattr(Sealer, "maintain", maintain)
    with open_sealer(runtime, "run") as sealer:
        assert sealer is not None
        # The maintenance begins after a second without work.
        drain = SealingDrainLoop(sealer, idle_seconds=3_600, max_seconds=3)
        for _ in drain.seal_and_report():
            pass
    assert begun.is_set() and drain.ending == "time is up"


@pytest.mark.parametrize("panic", make_panics())
def test_workspaces_are_sealed_beside_one_over_whose_table_a_library_panics(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, panic: BaseException
) -> None:
    commit, panicked = DeltaTable.create_write_transaction, threading.Event()

    def fail_for_one(table: DeltaTable, *args: Any, **options: Any) -> None:
        if QUIET[0] in table.table_uri:
            panicked.set()
            raise panic
        commit(table, *args, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail_for_one)
    record(runtime, QUIET[0])
    with drain_run(runtime):
        assert panicked.wait(PATIENCE_S)
        wait_until_sealed(runtime, [record(runtime, QUIET[1])])


def test_quiet_workspaces_are_sealed_beside_a_lane_whose_store_fails(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = runtime.lake.commit

    def fail_for_one(kind: Any, tenant: Any, *args: Any, **kwargs: Any) -> Any:
        if tenant.workspace_id == QUIET[0]:
            raise Unavailable("The lake")
        return commit(kind, tenant, *args, **kwargs)

    monkeypatch.setattr(runtime.lake, "commit", fail_for_one)
    failing = record(runtime, QUIET[0])
    with drain_run(runtime) as pauses:
        for workspace_id in QUIET[1:]:
            wait_until_sealed(runtime, [record(runtime, workspace_id)])
    assert max(pauses.seconds) <= 0.5
    assert session_row(runtime, failing).status == "stopped"


def test_hot_rows_are_swept_while_a_batch_fails(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, failed = runtime.lake.commit, threading.Semaphore(0)

    def fail_for_one(kind: Any, tenant: Any, *args: Any, **kwargs: Any) -> Any:
        if tenant.workspace_id == QUIET[0]:
            failed.release()
            raise Unavailable("The lake")
        return commit(kind, tenant, *args, **kwargs)

    monkeypatch.setattr(runtime.lake, "commit", fail_for_one)
    (good,) = seal(runtime, [Recording(sealed_at=clock.now() - timedelta(hours=2))], workspace_id=QUIET[1])
    with runtime.database.transaction(write=True) as db:
        db.exec(update(SessionRow).where(col(SessionRow.id) == good).values(is_hot=True))
    failing = record(runtime, QUIET[0])
    with drain_run(runtime):
        assert failed.acquire(timeout=PATIENCE_S)
        wait_until(lambda: not session_row(runtime, good).is_hot)
    row = session_row(runtime, failing)
    assert row.status == "stopped" and row.is_hot
