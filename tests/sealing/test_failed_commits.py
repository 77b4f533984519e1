"""Sealing transactions whose COMMIT fails, as on a full disk: the batch waits, and nothing is counted."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Connection
from sqlmodel import select

from pipelines.sealing_drain import SealingDrainLoop
from recorder.errors import Unavailable
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.operations import SealBatchRow
from recorder.runtime import Runtime
from recorder.sealing import open_sealer
from recorder.sealing.batches import SealingBatchLimits
from recorder.sealing.lane_scheduling import SealingTimes
from recorder.sealing.lanes import list_held_lanes
from recorder.sealing.portions import PortionLimits
from tests.support.recorded_sessions import WORKSPACE, assert_sealed_exactly_once, open_desk, session_row
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.sealing import seal_all

OTHER = "wsp_01k0000000000000000000000b"
NO_WAIT = SealingTimes(store_retry_after=timedelta(0), batch_retry_after=timedelta(0))
#: More runs than may be killed at a session before it is set aside.
ATTEMPTS = 8


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


def record(runtime: Runtime, count: int = 1, *, workspace_id: str = WORKSPACE) -> list[str]:
    """Record stopped sessions of two events."""
    with open_desk(runtime, workspace_id=workspace_id) as desk:
        return [desk.record() for _ in range(count)]


@contextmanager
def failing_commits(runtime: Runtime, *columns: str, count: int = 1) -> Iterator[list[str]]:
    """Let commits of transactions fail that change certain columns of a batch.

    On SQLite the log cannot be written at that moment, on PostgreSQL the connection is closed.

    Args:
        runtime: the deployment.
        columns: columns that one statement changes; a claim changes `begun` alone.
        count: number of commits that fail.

    Yields:
        The statements whose commit failed.
    """
    engine, failed = runtime.database._engine, list[str]()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def note_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        names = statement.partition(" SET ")[2].partition(" WHERE ")[0]
        if statement.startswith("UPDATE seal_batches") and all(f"{name}=" in names for name in columns):
            connection.info["changed"] = statement

    def fail_commit(connection: Connection) -> None:
        changed = connection.info.pop("changed", None)
        if changed is not None and len(failed) < count:
            failed.append(changed)
            if runtime.database.is_sqlite:
                log = Path(f"{engine.url.database}-wal")
                resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size // 2, unlimited[1]))
            else:
                assert connection.connection.driver_connection is not None
                connection.connection.driver_connection.close()

    def end_limit(_: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    events = (
        ("before_cursor_execute", note_statement),
        ("commit", fail_commit),
        ("rollback", end_limit),
        ("begin", end_limit),
    )
    for name, listener in events:
        sqlalchemy_event.listen(engine, name, listener)
    try:
        yield failed
    finally:
        end_limit(None)
        for name, listener in events:
            sqlalchemy_event.remove(engine, name, listener)


def list_kills(runtime: Runtime) -> list[int]:
    """Return for each batch how many attempts did not end in order."""
    with runtime.database.transaction(write=False) as db:
        assert list_held_lanes(db) == {}
        return [row.begun - row.ended for row in db.exec(select(SealBatchRow))]


def test_a_batch_whose_mark_is_not_committed_waits_without_a_kill(runtime: Runtime) -> None:
    ids = record(runtime)
    with failing_commits(runtime, "state", count=ATTEMPTS) as failed:
        for number in range(ATTEMPTS):
            with open_sealer(runtime, f"run {number}", times=NO_WAIT) as sealer:
                assert sealer is not None
                with pytest.raises(Unavailable):
                    sealer.seal_batch()
            assert list_kills(runtime) == [0]
    assert len(failed) == ATTEMPTS
    seal_all(runtime, times=NO_WAIT)
    assert session_row(runtime, ids[0]).seal_error_code is None
    assert_sealed_exactly_once(runtime, ids)


def test_a_run_goes_on_after_the_mark_of_a_batch_was_not_committed(runtime: Runtime) -> None:
    ids = record(runtime, 3)
    limits = SealingBatchLimits(sessions=1)
    with (
        failing_commits(runtime, "state") as failed,
        open_sealer(runtime, "run", times=NO_WAIT, batch_limits=limits) as sealer,
    ):
        assert sealer is not None
        loop = SealingDrainLoop(sealer, idle_seconds=4, max_seconds=60)
        sealed = [batch for batches in loop.seal_and_report() for batch in batches]
    assert len(failed) == 1 and [batch.sessions for batch in sealed] == [1, 1, 1]
    assert list_kills(runtime) == [0, 0, 0]
    assert_sealed_exactly_once(runtime, ids)


def test_a_pause_that_is_not_committed_postpones_the_batch(runtime: Runtime) -> None:
    ids = record(runtime, 3)
    others = record(runtime, workspace_id=OTHER)
    limits = PortionLimits(events=2)
    times = SealingTimes(lane_seconds=0, store_retry_after=timedelta(0))
    with (
        failing_commits(runtime, "ended", "not_before") as failed,
        open_sealer(runtime, "run", times=times, portion_limits=limits) as sealer,
    ):
        assert sealer is not None
        with pytest.raises(Unavailable):
            sealer.seal_batch()
        assert len(failed) == 1 and list_kills(runtime) == [0]
    seal_all(runtime, times=NO_WAIT)
    assert_sealed_exactly_once(runtime, ids)
    assert session_row(runtime, others[0]).status == "sealed"


def test_a_failure_whose_count_is_not_committed_postpones_the_batch(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime)

    def fail(*_: Any) -> Any:
        raise RuntimeError("a defect")

    with (
        monkeypatch.context() as patch,
        failing_commits(runtime, "failures") as failed,
        open_sealer(runtime, "run", times=NO_WAIT) as sealer,
    ):
        assert sealer is not None
        patch.setattr(GraphIndexer, "prepare", fail)
        with pytest.raises(Unavailable):
            sealer.seal_batch()
        assert len(failed) == 1 and list_kills(runtime) == [0]
    seal_all(runtime, times=NO_WAIT)
    assert_sealed_exactly_once(runtime, ids)
