"""Runs of exports: completed and failed ones. Spec §3.2, contract §5."""

from pathlib import Path

import pytest
from sqlmodel import select

from recorder.errors import RecorderError
from recorder.exports.requests.export_wire_objects import export_to_wire
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.executors import Failing
from tests.support.export_runs import ask, export, folder_of, hashes_of, manifest_of, rows_of
from tests.support.sealed_sessions import Recording, make_runtime, seal


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


def test_a_completed_export_shows_its_figures(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0, 600]), Recording(events=[(5, "scroll")])])
    row = run_export(runtime, ask(runtime).id, owner="test")
    shown = export_to_wire(row, runtime.settings)
    assert (shown.status, shown.rows, shown.frames, shown.actions, shown.shards) == ("completed", 4, 2, 2, 2)
    largest = max(shard["size_bytes"] for shard in manifest_of(folder_of(runtime, row))["shards"])
    assert shown.shard_size_bytes == largest


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl", "webdataset"])
def test_every_figure_is_that_of_the_manifest(runtime: Runtime, format: str) -> None:
    seal(runtime, [Recording(frames=[0, 600]), Recording(frames=[700]), Recording()])
    row = run_export(runtime, ask(runtime, format=format).id, owner="test")
    shown = export_to_wire(row, runtime.settings).model_dump()
    totals = manifest_of(folder_of(runtime, row))["totals"]
    names = ("rows", "frames", "actions", "shards")
    assert {name: shown[name] for name in names} == {name: totals[name] for name in names}
    written = {"shards_done": totals["shards"], "shards_total": totals["shards"], "message": None}
    assert shown["progress"] == written
    assert shown["rows"] == (3 if format == "webdataset" else 9)


def test_completion_is_told_once_with_the_whole_object(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = run_export(runtime, ask(runtime).id, owner="test")
    run_export(runtime, row.id, owner="again")
    with runtime.database.transaction(write=False) as db:
        events = db.exec(select(OutboxRow).where(OutboxRow.subject_id == row.id).order_by(OutboxRow.id)).all()
    assert [event.type for event in events] == ["export.queued", "export.completed"]
    assert events[1].data == {"export": export_to_wire(row, runtime.settings).model_dump(mode="json")}


def test_rows_come_whole_and_in_order(runtime: Runtime) -> None:
    seal(runtime, [Recording(outcome=None), Recording(frames=[100])])
    rows = rows_of(export(runtime))
    assert rows.equals(rows.sort("session_id", "t_ms", "event_id"))
    assert rows["outcome"].to_list().count(None) == 3
    assert rows["payload"][0] == '{"url":"https://shop.example/0"}'


def test_pictures_lie_in_the_frames_files(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording(frames=[0, 600])])
    image = rows_of(export(runtime), "frames")["image"][1]
    assert image["path"] == f"{session_id}-000001.png"
    assert image["bytes"].startswith(b"\x89PNG")


def test_a_picture_whose_bytes_are_gone_is_null(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0])])
    for key in list(runtime.blobs.keys("frames")):
        runtime.blobs.delete(key)
    folder = export(runtime)
    assert rows_of(folder, "frames")["image"].to_list() == [None]
    assert verify_manifest(folder).is_valid


def test_rows_that_the_lake_lost_fail_the_export(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording()])
    with runtime.database.transaction(write=True) as db:
        sealed = db.get_one(SessionRow, session_id)
        db.add(SessionRow(**sealed.model_dump() | {"id": new_id("ses")}))
    row = run_export(runtime, ask(runtime).id, owner="test")
    assert row.status == "failed"
    assert row.error == {"code": "rows_missing", "message": "The lake lacks the rows of 1 sealed session."}


def test_a_failure_is_told_with_its_code(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with pytest.raises(ZeroDivisionError):
        run_export(runtime, row.id, owner="test", executor=Failing(ZeroDivisionError()))
    with runtime.database.transaction(write=False) as db:
        event = db.exec(select(OutboxRow).where(OutboxRow.type == "export.failed")).one()
    assert event.data["export"]["status"] == "failed"
    assert event.data["export"]["error"]["code"] == "internal_error"


def test_a_failed_export_leaves_no_files(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0])])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test", executor=Failing(RecorderError("no"), after=1))
    assert [path for path in folder_of(runtime, row).rglob("*") if path.is_file()] == []


def test_nothing_but_the_dataset_is_left_in_its_folder(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0])])
    folder = export(runtime)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"manifest.json", "README.md", *hashes_of(folder)}
    assert not (folder / ".staging").exists()
