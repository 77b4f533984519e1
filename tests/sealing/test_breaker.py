"""Circuit breaker of sealing: a defect sets no session aside, and stops no other one. Decision 0033."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recorder import clock
from recorder.memory.storage.indexing import GraphIndexer
from recorder.runtime import Runtime
from recorder.sealing import breaker
from recorder.sealing.lane_scheduling import SealingTimes
from recorder.sealing.set_aside import list_sessions_set_aside
from recorder.service_state import list_warnings, read_service_state
from tests.support.recorded_sessions import (
    WORKSPACE,
    assert_sealed_exactly_once,
    execute,
    open_desk,
    session_row,
)
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.sealing import seal_all

OTHER = "wsp_01k0000000000000000000000b"
THIRD = "wsp_01k0000000000000000000000c"
#: A run that repeats a failed batch at once.
NO_WAIT = SealingTimes(store_retry_after=timedelta(0), batch_retry_after=timedelta(0))


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


def record(runtime: Runtime, count: int = 1, *, workspace_id: str = WORKSPACE) -> list[str]:
    """Record stopped sessions of one lane."""
    with open_desk(runtime, workspace_id=workspace_id) as desk:
        return [desk.record() for _ in range(count)]


def seal_and_count(runtime: Runtime) -> int:
    """Seal until no lane may be taken; return the number of sealed sessions."""
    return sum(batch.sessions for batch in seal_all(runtime, times=NO_WAIT))


@contextmanager
def defect(monkeypatch: pytest.MonkeyPatch, bad: list[str] | None = None) -> Iterator[list[int]]:
    """Let the graph's index fail on batches with these sessions, or on all; yield their sizes."""
    prepare, sizes = GraphIndexer.prepare, list[int]()

    def fail(self: GraphIndexer, db: Any, rows: Any, steps: Any) -> Any:
        if rows and (bad is None or any(row.id in bad for row in rows)):
            sizes.append(len(rows))
            raise KeyError("a defect")
        return prepare(self, db, rows, steps)

    with monkeypatch.context() as patch:
        patch.setattr(GraphIndexer, "prepare", fail)
        yield sizes


def set_aside(runtime: Runtime) -> set[str]:
    """Return the sessions that are set aside."""
    with runtime.database.transaction(write=False) as db:
        return {session.session_id for session in list_sessions_set_aside(db)}


def warnings(runtime: Runtime) -> set[str]:
    """Return the codes of the operator's warnings."""
    with runtime.database.transaction(write=False) as db:
        return {warning.code for warning in list_warnings(read_service_state(db))}


def end_pause(runtime: Runtime) -> None:
    """Let the pause before the next try of a deferred session be over."""
    execute(runtime, "UPDATE leases SET expires_ms = 1 WHERE name = 'seal-retry' AND expires_ms > 0")


def test_a_defect_sets_no_session_of_one_workspace_aside(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime, 6)
    with defect(monkeypatch):
        assert seal_and_count(runtime) == 0
        assert set_aside(runtime) == set()
        assert "sealing_fails" in warnings(runtime)
    assert {session_row(runtime, session_id).seal_failures >= 3 for session_id in ids} == {True}
    end_pause(runtime)
    assert seal_and_count(runtime) == 6
    assert "sealing_fails" not in warnings(runtime)
    assert_sealed_exactly_once(runtime, ids)


def test_a_defect_sets_no_session_of_two_workspaces_aside(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(runtime), record(runtime, workspace_id=OTHER)
    # No pause of the breaker ends by itself.
    now_ms = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)
    with defect(monkeypatch) as sizes:
        seal_and_count(runtime)
        # The second failure opens the breaker: neither session is tried three times.
        assert len(sizes) <= 3
        end_pause(runtime)
        seal_and_count(runtime)
    assert set_aside(runtime) == set()


def test_sessions_that_were_set_aside_before_the_breaker_opened_wait_again(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with defect(monkeypatch):
        ids = record(runtime)
        seal_and_count(runtime)
        assert set_aside(runtime) == set(ids)
        ids += record(runtime, 2)
        seal_and_count(runtime)
        assert set_aside(runtime) == set()
    end_pause(runtime)
    assert seal_and_count(runtime) == 3


def test_a_lane_that_can_seal_does_so_and_closes_the_breaker(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [*record(runtime, 3), *record(runtime, workspace_id=OTHER)]
    with defect(monkeypatch, bad):
        seal_and_count(runtime)
        assert "sealing_fails" in warnings(runtime)
        healthy = record(runtime, workspace_id=THIRD)
        assert seal_and_count(runtime) == 1
        # The same lane as the bad ones.
        more = record(runtime, 2)
        assert seal_and_count(runtime) == 2
    assert set_aside(runtime) <= set(bad)
    for session_id in [*healthy, *more]:
        assert session_row(runtime, session_id).status == "sealed"


def test_healthy_sessions_of_a_batch_with_bad_ones_are_sealed_while_the_breaker_is_open(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = record(runtime, 5), record(runtime, 5, workspace_id=OTHER)
    bad = [first[0], second[4]]
    with defect(monkeypatch, bad):
        assert seal_and_count(runtime) == 8
    assert set_aside(runtime) <= set(bad)


def test_damaged_content_opens_no_breaker(runtime: Runtime) -> None:
    ids = [*record(runtime, 3), *record(runtime, 2, workspace_id=OTHER)]
    for session_id in ids:
        junk = {"junk": b"\0junk", "id": session_id}
        execute(runtime, "UPDATE event_batches SET payload = :junk WHERE session_id = :id", **junk)
    seal_and_count(runtime)
    assert set_aside(runtime) == set(ids)
    assert "sealing_fails" not in warnings(runtime)


def test_another_error_begins_the_count_again(runtime: Runtime) -> None:
    with runtime.database.transaction(write=True) as db:
        assert not breaker.count_breaker_failure(
            db, "KeyError", workspace_id=WORKSPACE, session_id=None
        ).is_open
        assert not breaker.count_breaker_failure(
            db, "ValueError", workspace_id=OTHER, session_id=None
        ).is_open
        assert not breaker.count_breaker_failure(
            db, "ValueError", workspace_id=OTHER, session_id="ses_a"
        ).is_open
        breaker.close_breaker(db)
        assert not breaker.count_breaker_failure(
            db, "ValueError", workspace_id=WORKSPACE, session_id=None
        ).is_open
        assert breaker.count_breaker_failure(db, "ValueError", workspace_id=OTHER, session_id=None).is_open


def test_deferred_sessions_are_tried_one_at_a_time_with_growing_pauses(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)
    with runtime.database.transaction(write=True) as db:
        for workspace_id in (WORKSPACE, OTHER):
            breaker.count_breaker_failure(db, "KeyError", workspace_id=workspace_id, session_id=None)
    pauses = []
    for _ in range(8):
        end_pause(runtime)
        with runtime.database.transaction(write=True) as db:
            assert breaker.take_breaker_retry(db)
            assert not breaker.take_breaker_retry(db)
            opened = breaker.read_open_breaker(db)
        assert opened is not None
        pauses.append((opened.retry_ms - now_ms) / 1000)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2, 60)
