"""Two exports compared: sums, sessions, files, causes. Contract §5."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard

from recorder import clock
from recorder.errors import InvalidState, NotFound, ValidationFailed
from recorder.exports.planning.plan import PLAN_VERSION
from recorder.exports.results import diff
from recorder.exports.results.diff import ExportComparison, compare_exports
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.export_runs import ask, export
from tests.support.sealed_sessions import START, Recording, delete, make_runtime, seal

_UNTIL = {"until": clock.to_iso(START + timedelta(days=9))}


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


def compared(runtime: Runtime, newer: Path, older: Path) -> ExportComparison:
    """Return two exports by their folders."""
    with runtime.database.transaction(write=False) as db:
        rows = [db.get_one(ExportRow, folder.name) for folder in (newer, older)]
    return compare_exports(runtime, *rows)


def change(runtime: Runtime, session_id: str, **values: Any) -> None:
    """Change what SQL says of a session."""
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        for name, value in values.items():
            setattr(row, name, value)
        db.add(row)


def told(result: ExportComparison) -> set[tuple[str, str, str]]:
    """Return the ids of the sessions that are named."""
    page, _ = result.page(after_id=None, limit=100)
    return {(change.session_id, change.change, change.cause) for change in page}


def test_a_repeat_differs_in_nothing(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]), Recording()])
    first, second = export(runtime, filter=_UNTIL), export(runtime, filter=_UNTIL)
    comparison = compared(runtime, second, first)
    assert (comparison.same_rows, comparison.same_request, comparison.count_causes(), told(comparison)) == (
        True,
        True,
        {},
        set(),
    )
    assert comparison.sessions.model_dump() == {"same": 2, "added": 0, "removed": 0, "changed": 0}
    assert comparison.shards.model_dump() == {"same": 2, "added": 0, "removed": 0, "changed": 0}


def test_a_deleted_session_is_counted_and_not_named(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(), Recording()])
    first = export(runtime, filter=_UNTIL)
    delete(runtime, ids[0])
    comparison = compared(runtime, export(runtime, filter=_UNTIL), first)
    assert (comparison.sessions.removed, comparison.count_causes()) == (1, {"deletion": 1})
    assert told(comparison) == set()
    assert (comparison.same_rows, comparison.shards.changed) == (False, 1)


def test_a_session_that_is_deleted_between_two_pages_is_named_no_more(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(), Recording()])
    first = export(runtime, filter=_UNTIL | {"exclude_session_ids": ids})
    second = export(runtime, filter=_UNTIL)
    assert {row[0] for row in told(compared(runtime, second, first))} == set(ids)
    delete(runtime, ids[0])
    assert told(compared(runtime, second, first)) == {(ids[1], "added", "request")}


def test_plans_are_read_for_the_first_page_alone(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    seal(runtime, [Recording()])
    first, second = export(runtime, filter=_UNTIL), export(runtime, filter=_UNTIL)
    compared(runtime, second, first)
    monkeypatch.setattr(diff, "MOST_BYTES", 10)
    assert compared(runtime, second, first).sessions.same == 1
    seal(runtime, [Recording()])
    with pytest.raises(ValidationFailed) as refused:
        compared(runtime, export(runtime, filter=_UNTIL), first)
    assert "manifests" in refused.value.problems[0].message


def test_an_import_into_the_past_is_told_apart(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    first = export(runtime, filter=_UNTIL)
    (new,) = seal(runtime, [Recording(is_import=True)])
    change(runtime, new, created_at=clock.now())
    assert told(compared(runtime, export(runtime, filter=_UNTIL), first)) == {(new, "added", "import")}


def test_a_late_outcome_is_a_change_by_tag(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording()])
    first = export(runtime, filter=_UNTIL)
    change(runtime, session_id, outcome="error")
    assert told(compared(runtime, export(runtime, filter=_UNTIL), first)) == {(session_id, "changed", "tag")}


def test_a_late_tag_lets_a_session_in(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording(outcome="error")])
    body = {"filter": _UNTIL | {"outcome": "success"}}
    first = export(runtime, **body)
    change(runtime, session_id, outcome="success")
    comparison = compared(runtime, export(runtime, **body), first)
    assert told(comparison) == {(session_id, "added", "tag")}
    assert comparison.shards.added == 1


def test_another_request_explains_what_is_in_one_alone(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(), Recording()])
    first = export(runtime, filter=_UNTIL)
    second = export(runtime, filter=_UNTIL | {"exclude_session_ids": ids[1:]})
    assert told(compared(runtime, second, first)) == {(ids[1], "removed", "request")}
    assert not compared(runtime, second, first).same_request


def test_another_split_of_the_same_rows_is_a_change_by_request(runtime: Runtime) -> None:
    seal(runtime, [Recording() for _ in range(9)])
    first = export(runtime, filter=_UNTIL)
    comparison = compared(runtime, export(runtime, filter=_UNTIL, split={"test": 0.9}), first)
    assert comparison.sessions.changed
    assert comparison.count_causes() == {"request": comparison.sessions.changed}


def test_another_format_of_the_same_sessions_changes_none_of_them(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0, 500]) for _ in range(3)])
    parquet, jsonl, webdataset = (
        export(runtime, filter=_UNTIL, format=format) for format in ("parquet", "jsonl", "webdataset")
    )
    for newer, has_same_rows in ((jsonl, True), (webdataset, False)):
        comparison = compared(runtime, newer, parquet)
        assert comparison.same_rows == comparison.same_request == has_same_rows
        assert comparison.count_causes() == {}
        assert comparison.sessions.model_dump() == {"same": 3, "added": 0, "removed": 0, "changed": 0}


def test_sessions_come_page_by_page(runtime: Runtime) -> None:
    ids = sorted(seal(runtime, [Recording() for _ in range(5)]))
    first = export(runtime, filter=_UNTIL | {"exclude_session_ids": ids})
    comparison = compared(runtime, export(runtime, filter=_UNTIL), first)
    page, last_id = comparison.page(after_id=None, limit=3)
    rest, no_id = comparison.page(after_id=last_id, limit=3)
    assert [item.session_id for item in page + rest] == ids
    assert (last_id, no_id) == (ids[2], None)


def test_an_export_that_is_not_completed_cannot_be_compared(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    first, waiting = export(runtime), Path(ask(runtime).id)
    for pair in ((first, waiting), (waiting, first)):
        with pytest.raises(InvalidState):
            compared(runtime, *pair)


def test_files_and_plans_that_are_gone_cannot_be_compared(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    hosted = {"destination": {"kind": "signed_url"}}
    first, second, third, fourth = (export(runtime, **hosted) for _ in range(4))
    compared(runtime, first, third)  # a comparison that is cached
    (second / "manifest.json").unlink()
    with runtime.database.transaction(write=True) as db:
        runtime.blobs.delete(db.get_one(ExportRow, third.name).plan_key or "")
        key = db.get_one(ExportRow, fourth.name).plan_key or ""
    ours = f'"plan_version":{PLAN_VERSION}'.encode()
    plan = zstandard.decompress(runtime.blobs.get(key)).replace(ours, b'"plan_version":1')
    runtime.blobs.put(key, zstandard.compress(plan))
    for gone in (second, third, fourth):
        with pytest.raises(NotFound):
            compared(runtime, first, gone)
