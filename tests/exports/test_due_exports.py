"""Exports that need a run: which come first, and which are small. Design §3 (exports)."""

from pathlib import Path
from typing import Any

import pytest
from sqlmodel import insert

from recorder.exports.runner import small_exports
from recorder.exports.runner.export_lease import list_due_exports
from recorder.exports.runner.small_exports import is_small_export
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.export_runs import ask
from tests.support.recorded_sessions import copy_session
from tests.support.sealed_sessions import Recording, make_runtime, seal

OTHER = "wsp_01k0000000000000000000000b"


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """Return a deployment with a sealed session."""
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording()])
    return runtime


def copy_export(runtime: Runtime, row: ExportRow, **changed: Any) -> str:
    """Add a row that equals an export's but for its id and some columns; return its id."""
    values = row.model_dump() | {"id": new_id("exp"), **changed}
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(insert(ExportRow), [values])
    return str(values["id"])


def test_exports_with_few_tries_come_first_and_each_workspace_has_its_share(runtime: Runtime) -> None:
    row = ask(runtime)
    tried = copy_export(runtime, row, attempt=2, status="running")
    fresh = [row.id, *(copy_export(runtime, row) for _ in range(3))]
    other = copy_export(runtime, row, workspace_id=OTHER)
    with runtime.database.transaction(write=False) as db:
        all_due = [each.id for each in list_due_exports(db, limit=10)]
        shared = [each.id for each in list_due_exports(db, limit=10, per_workspace=2)]
        first = [each.id for each in list_due_exports(db, limit=3)]
    assert all_due == [fresh[0], other, *fresh[1:], tried]
    assert shared == [fresh[0], other, fresh[1]]
    assert first == [fresh[0], other, fresh[1]]


def test_an_export_that_waits_for_replayability_is_not_due(runtime: Runtime) -> None:
    row = ask(runtime)
    for status in ("queued", "running"):
        copy_export(runtime, row, awaited_sessions=1, status=status)
    with runtime.database.transaction(write=False) as db:
        assert [each.id for each in list_due_exports(db, limit=10)] == [row.id]


@pytest.mark.parametrize(
    ("column", "limit"),
    [
        ("event_count", small_exports.SMALL_EVENTS),
        ("frame_count", small_exports.SMALL_FRAMES),
        ("event_bytes", small_exports.SMALL_BYTES),
        ("frame_bytes", small_exports.SMALL_BYTES),
    ],
)
def test_an_export_is_small_up_to_each_limit(runtime: Runtime, column: str, limit: int) -> None:
    (session_id,) = seal(runtime, [Recording(workflow="other")])
    row = ask(runtime, workflow="other")
    zero = dict.fromkeys(("event_count", "frame_count", "event_bytes", "frame_bytes"), 0)
    for value, is_small in ((limit, True), (limit + 1, False)):
        with runtime.database.transaction(write=True) as db:
            session = db.get_one(SessionRow, session_id)
            for name, number in (zero | {column: value}).items():
                setattr(session, name, number)
            db.add(session)
        assert is_small_export(runtime.database, row) is is_small


def test_an_export_of_many_sessions_is_not_small(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording(workflow="other")])
    row = ask(runtime, workflow="other")
    copy_session(runtime, session_id, small_exports.SMALL_SESSIONS - 1, event_count=0, frame_count=0)
    assert is_small_export(runtime.database, row)
    copy_session(runtime, session_id, 1, event_count=0, frame_count=0)
    assert not is_small_export(runtime.database, row)
