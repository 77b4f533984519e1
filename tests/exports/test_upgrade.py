"""Exports of the release before: rows without its new columns, specs without `split`, plans of version 1."""

import hashlib
from typing import Any

import orjson
import pytest
import zstandard
from sqlmodel import select

from recorder import clock
from recorder.access.quota import read_quota
from recorder.exports.executor import InProcess
from recorder.exports.planning.plan import list_library_versions
from recorder.exports.requests.export_wire_objects import export_to_wire
from recorder.exports.runner.export_lease import list_due_exports
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.models.export import ExportRow, ExportShardRow
from recorder.models.workspace import UsageRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.executors import Failing, Watched
from tests.support.export_runs import ask, export, folder_of, manifest_of, rows_of
from tests.support.purges import finish_purges
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import WORKSPACE, Recording, seal


@pytest.fixture
def runtime(on_either_engine: Runtime) -> Runtime:
    """Return a deployment on either engine."""
    return on_either_engine


class Stopped(BaseException):
    """Error that Dagster raises in a cancelled run."""


def age(runtime: Runtime, export_id: str, **values: Any) -> ExportRow:
    """Make a row what the release before would have written."""
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, export_id)
        row.spec = {name: value for name, value in row.spec.items() if name != "split"}
        row.progressed_attempt = row.last_error = row.files_left = row.series_sha256 = row.lineage = None
        for name, value in values.items():
            setattr(row, name, value)
        db.add(row)
    return row


def test_a_completed_one_is_shown_and_is_nobodys_parent(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    done = export(runtime)
    row = age(runtime, done.name)
    shown = export_to_wire(row, runtime.settings)
    assert (shown.status, shown.split, shown.rows) == ("completed", None, 3)
    assert manifest_of(export(runtime))["parent"] is None


def test_a_queued_one_is_run_with_the_default_parts(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = run_export(runtime, age(runtime, ask(runtime).id).id, owner="test")
    split = export_to_wire(row, runtime.settings).split
    assert split and (split.by, split.validation, split.test) == ("session", 0, 0)
    assert verify_manifest(folder_of(runtime, row)).is_valid
    assert manifest_of(export(runtime))["parent"]["export_id"] == row.id


def test_a_running_one_gets_a_new_plan_and_keeps_to_the_quota(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]), Recording()])
    row = ask(runtime)
    # What a plan of that release held of these sessions: one row less was held than there are now.
    plan = {"plan_version": 1, "format": "parquet", "spec": row.spec, "sessions": {}}
    key = f"exports/{WORKSPACE}/{row.id}/old.plan"
    runtime.blobs.put(key, zstandard.compress(orjson.dumps(plan)))
    stale = "data/workflow=checkout/events-00000-of-00001.parquet"
    period = clock.now().strftime("%Y-%m")
    age(runtime, row.id, status="running", attempt=1, plan_key=key, reserved_rows=5, reserved_period=period)
    with runtime.database.transaction(write=True) as db:
        db.add(UsageRow(workspace_id=WORKSPACE, period=period, reserved_rows=5))
        shard = {"kind": "events", "workflow": "checkout", "bucket": 0, "content_key": "old", "sessions": 2}
        folder = folder_of(runtime, row)
        for path in (stale, other := "data/workflow=checkout/events-00001-of-00002.parquet"):
            db.add(ExportShardRow(export_id=row.id, path=path, rows=5, is_done=True, size_bytes=3, **shard))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(b"old")
    with runtime.database.transaction(write=False) as db:
        assert [due_export.id for due_export in list_due_exports(db, limit=9)] == [row.id]
    done = run_export(runtime, row.id, owner="test")
    assert (done.status, done.rows, done.shards, done.shards_done) == ("completed", 6, 2, 2)
    assert verify_manifest(folder).is_valid
    assert not (folder / other).exists()
    assert key not in set(runtime.blobs.keys("exports"))
    with runtime.database.transaction(write=False) as db:
        assert sum(db.exec(select(UsageRow.reserved_rows))) == 0
        assert read_quota(db, Tenant(WORKSPACE, "live")).exported_rows == 6


def test_an_upgrade_midway_writes_the_files_of_the_release_before_again(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(runtime, [Recording(), Recording(), Recording(workflow="refund")])
    row = ask(runtime, workflow=["checkout", "refund"])
    with monkeypatch.context() as before, pytest.raises(Stopped):
        before.setattr("recorder.exports.planning.plan.__version__", "0.0.1")
        run_export(runtime, row.id, owner="test", executor=Failing(Stopped(), after=1))
    sealed_later = seal(runtime, [Recording()])
    done = run_export(runtime, row.id, owner="test", executor=(watched := Watched(InProcess())))
    folder = folder_of(runtime, done)
    shards = manifest_of(folder)["shards"]
    assert {shard.path for task in watched.tasks for shard in task.shards} == {
        shard["path"] for shard in shards
    }
    with runtime.database.transaction(write=False) as db:
        stored = db.exec(select(ExportShardRow).where(ExportShardRow.export_id == row.id)).all()
    assert {shard["path"]: shard["content_key"] for shard in shards} == {
        shard.path: shard.content_key for shard in stored
    }
    assert (done.shards, done.shards_done, verify_manifest(folder).is_valid) == (2, 2, True)
    assert not set(rows_of(folder)["session_id"]) & set(sealed_later)


@pytest.mark.parametrize("format", ["parquet", "jsonl", "webdataset"])
def test_a_rewriting_with_other_columns_describes_its_own_files(runtime: Runtime, format: str) -> None:
    ids = seal(runtime, [Recording(frames=[0, 200]) for _ in range(3)])
    folder = export(runtime, format=format, frame_sampling={"mode": "all"})
    manifest = manifest_of(folder)
    kind, *_ = manifest["schema"]
    present = dict(manifest["schema"][kind])
    # What that release wrote: without a column of this one.
    manifest["schema"][kind] = {"fingerprint": "sha256:before", "fields": present["fields"][1:]}
    manifest["writer"]["service"] = "2026.1.0"
    text = orjson.dumps(manifest)
    (folder / "manifest.json").write_bytes(text)
    with runtime.database.transaction(write=True) as db:
        db.get_one(ExportRow, folder.name).manifest_sha256 = hashlib.sha256(text).hexdigest()
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    rewritten = manifest_of(folder)
    assert (rewritten["revision"], rewritten["schema"][kind]) == (2, present)
    assert rewritten["writer"] == list_library_versions()
    assert verify_manifest(folder).is_valid
