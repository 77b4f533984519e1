"""The filter `min_replayability`: what it takes, and exports that wait for the values. Contract §5."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recorder import clock
from recorder.exports.planning import selection
from recorder.exports.requests.export_wire_objects import export_to_wire
from recorder.exports.runner import replayability_wait
from recorder.exports.runner.export_lease import list_due_exports
from recorder.exports.runner.replayability_wait import recount_awaited_replayability
from recorder.exports.runner.run import run_export
from recorder.exports.runner.small_exports import claim_next_small_export
from recorder.exports.verify.lake_check import compare_export_with_lake
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.export_runs import ask, folder_of, manifest_of, rows_of
from tests.support.sealed_sessions import Recording, make_runtime, seal

_SHARES = (None, 0.0, 0.5, 1.0)


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


def sealed(runtime: Runtime) -> list[str]:
    """Return sessions with these values, and one that has none."""
    return seal(runtime, [Recording(replayability=share) for share in _SHARES])


def store(runtime: Runtime, session_id: str, **columns: Any) -> None:
    """Set columns of a session."""
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        for name, value in columns.items():
            setattr(row, name, value)
        db.add(row)


def read(runtime: Runtime, export: ExportRow) -> ExportRow:
    """Return the row as it is now."""
    with runtime.database.transaction(write=False) as db:
        return db.get_one(ExportRow, export.id)


def waits(runtime: Runtime, export: ExportRow) -> bool:
    """Return whether neither a run of its own nor the run for small exports may take the export."""
    with runtime.database.transaction(write=False) as db:
        is_due = export.id in [row.id for row in list_due_exports(db, limit=9)]
    claimed = claim_next_small_export(runtime.database, "small", [], {})
    if claimed is not None:
        claimed[1].give_back()
    assert is_due == (claimed is not None)
    return not is_due


def test_sessions_of_at_least_this_value_are_taken(runtime: Runtime) -> None:
    ids = sealed(runtime)
    for least, first in ((0, 1), (0.5, 2), (0.51, 3), (1, 3)):
        row = run_export(runtime, ask(runtime, filter={"min_replayability": least}).id, owner="test")
        assert set(rows_of(folder_of(runtime, row))["session_id"]) == set(ids[first:])
        assert manifest_of(folder_of(runtime, row))["spec"]["filter"]["min_replayability"] == least
        report = compare_export_with_lake(runtime, row, seed=1)
        assert (report.problems, report.sessions) == ([], len(ids) - first)


def test_an_export_waits_for_the_values_of_its_selection(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = sealed(runtime)
    (other,) = seal(runtime, [Recording(workflow="login")])
    for session_id in (ids[0], ids[3], other):
        store(runtime, session_id, replayability=None, replayability_at=None)
    until = {"until": clock.to_iso(clock.now())}
    row = ask(runtime, filter={"min_replayability": 0.5, **until})
    message = export_to_wire(row, runtime.settings).progress.message
    assert message is not None
    assert message.startswith("Waits for the replayability of 2 sessions, until ")
    assert waits(runtime, row)
    store(runtime, ids[3], replayability=1.0, replayability_at=clock.now())
    recount_awaited_replayability(runtime.database)
    assert read(runtime, row).awaited_sessions == 1 and waits(runtime, row)
    store(runtime, ids[0], replayability=None, replayability_at=clock.now())
    recount_awaited_replayability(runtime.database)
    assert not waits(runtime, row)
    first = run_export(runtime, row.id, owner="test")
    assert export_to_wire(first, runtime.settings).progress.message is None
    again = run_export(runtime, ask(runtime, filter={"min_replayability": 0.5, **until}).id, owner="test")
    assert (first.row_set_sha256, first.rows) == (again.row_set_sha256, 6)
    # Without the filter, nothing is waited for.
    assert ask(runtime, workflow="login").awaited_sessions is None


def test_a_run_that_begins_before_the_values_waits_too(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sealed(runtime)
    store(runtime, ids[3], replayability=None, replayability_at=None)
    row = ask(runtime, filter={"min_replayability": 0.5})
    seen = []

    def compute(seconds: float) -> None:
        seen.append((seconds, read(runtime, row).awaited_sessions))
        store(runtime, ids[3], replayability=0.75, replayability_at=clock.now())

    monkeypatch.setattr("recorder.exports.runner.replayability_wait.time.sleep", compute)
    done = run_export(runtime, row.id, owner="test")
    assert (done.status, done.rows, seen) == ("completed", 6, [(1.0, 1)])


def test_an_export_that_waited_too_long_fails_with_the_reason(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sealed(runtime)
    store(runtime, ids[3], replayability=None, replayability_at=None)
    monkeypatch.setattr(selection, "MOST_AWAITED", 0)
    row = ask(runtime, filter={"min_replayability": 0.5})
    monkeypatch.setattr(replayability_wait, "LONGEST_WAIT", timedelta(0))
    recount_awaited_replayability(runtime.database)
    assert not waits(runtime, row)
    failed = run_export(runtime, row.id, owner="test")
    assert failed.status == "failed" and failed.error is not None
    assert failed.error["code"] == "replayability_missing"
    assert "replay_sessions" in failed.error["message"]
    assert export_to_wire(failed, runtime.settings).progress.message is None
