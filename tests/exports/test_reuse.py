"""Files taken over from the export before: which, when, and what the manifest says of it. Contract §5."""

from pathlib import Path
from typing import Any

import pytest

from recorder.exports.runner.run import run_export
from recorder.exports.runner.shard_store import plan_folder
from recorder.exports.verify import verify_manifest
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from tests.support.export_runs import ask, export, folder_of, hashes_of, manifest_of
from tests.support.recorded_sessions import execute
from tests.support.sealed_sessions import WORKSPACE, Recording, delete, make_runtime, seal


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


@pytest.fixture(autouse=True)
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)


def reused(manifest: dict[str, Any]) -> set[str | None]:
    """Return the exports from which files were copied."""
    return {shard["reused_from"] for shard in manifest["shards"]}


def erase(runtime: Runtime, session_id: str) -> None:
    """Take a session's row away."""
    with runtime.database.transaction(write=True) as db:
        db.delete(db.get_one(SessionRow, session_id))


def test_a_repeat_copies_every_file(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(12)])
    first = export(runtime)
    again = export(runtime)
    manifest = manifest_of(again)
    assert reused(manifest) == {first.name}
    assert manifest["parent"] == {
        "export_id": first.name,
        "sessions_added": 0,
        "sessions_removed": 0,
        "shards_reused": len(manifest["shards"]),
    }
    assert hashes_of(first) == hashes_of(again)
    assert verify_manifest(again).is_valid


def test_after_a_deletion_only_its_shards_are_written_and_it_is_counted(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(40)])
    first = export(runtime)
    delete(runtime, ids[3])
    erase(runtime, ids[4])
    added = seal(runtime, [Recording()])
    manifest = manifest_of(second := export(runtime))
    written = [shard for shard in manifest["shards"] if shard["reused_from"] is None]
    # Each session lies in one file of events and one of frames; the new one has no frames.
    assert 0 < len(written) <= 5 < len(manifest["shards"])
    assert manifest["tombstones"] == {"erased": 1, "deleted": 1, "expired": 0}
    assert (manifest["parent"]["sessions_added"], manifest["parent"]["sessions_removed"]) == (len(added), 2)
    assert manifest["parent"]["shards_reused"] == len(manifest["shards"]) - len(written)
    assert manifest["parent"]["export_id"] == first.name
    assert verify_manifest(second).is_valid


def test_a_session_that_is_deleted_meanwhile_counts_once(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording() for _ in range(20)])
    export(runtime)
    seal(runtime, [Recording() for _ in range(20)])
    row = ask(runtime)

    class Deleting:
        def run(self, tasks: Any) -> Any:
            from recorder.exports.executor import InProcess

            delete(runtime, ids[0])
            yield from InProcess().run(tasks)

    run_export(runtime, row.id, owner="test", executor=Deleting())
    manifest = manifest_of(folder_of(runtime, row))
    assert manifest["tombstones"]["deleted"] == 1
    assert (manifest["parent"]["sessions_added"], manifest["parent"]["sessions_removed"]) == (20, 1)
    # The plan that named it is gone.
    assert len(runtime.blobs.list_objects(plan_folder(row.workspace_id, row.id))) == 1
    assert verify_manifest(folder_of(runtime, row)).is_valid


@pytest.mark.parametrize(
    "change",
    [
        {"format": "jsonl"},
        {"frame_sampling": {"mode": "all"}},
        {"split": {"test": 0.2}},
        {"destination": {"kind": "local", "path": "elsewhere"}},
        {"destination": {"kind": "signed_url"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_export_of_another_series_is_no_parent(runtime: Runtime, change: dict[str, Any]) -> None:
    seal(runtime, [Recording(frames=[0])])
    export(runtime)
    manifest = manifest_of(export(runtime, **change))
    assert (manifest["parent"], reused(manifest)) == (None, {None})


@pytest.mark.parametrize(("workspace_id", "mode"), [("wsp_other", "live"), (WORKSPACE, "test")])
def test_no_parent_is_of_another_workspace_or_mode(runtime: Runtime, workspace_id: str, mode: str) -> None:
    seal(runtime, [Recording()])
    first = export(runtime)
    values = {"workspace_id": workspace_id, "mode": mode, "id": first.name}
    execute(runtime, "UPDATE exports SET workspace_id = :workspace_id, mode = :mode WHERE id = :id", **values)
    manifest = manifest_of(export(runtime))
    assert (manifest["parent"], reused(manifest)) == (None, {None})


def test_filters_and_tags_do_not_part_a_series(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording() for _ in range(20)])
    first = export(runtime, tag="v1")
    second = manifest_of(export(runtime, tag="v2", filter={"exclude_session_ids": ids[:1]}))
    assert second["parent"]["export_id"] == first.name
    assert second["parent"]["sessions_removed"] == 1
    assert second["tombstones"] == {"erased": 0, "deleted": 0, "expired": 0}


def test_the_parent_is_the_newest_that_is_still_there(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    first, second = export(runtime), export(runtime)
    (second / "manifest.json").unlink()
    assert manifest_of(export(runtime))["parent"]["export_id"] == first.name


@pytest.mark.parametrize("damage", ["gone", "other bytes", "shorter"])
def test_a_file_that_is_not_as_it_was_is_written_anew(runtime: Runtime, damage: str) -> None:
    seal(runtime, [Recording() for _ in range(20)])
    first = export(runtime)
    path, whole = next(iter(hashes_of(first))), hashes_of(first)
    data = (first / path).read_bytes()
    (first / path).unlink()
    if damage != "gone":
        (first / path).write_bytes(data[:-1] + (b"?" if damage == "other bytes" else b""))
    second = export(runtime)
    by_path = {shard["path"]: shard["reused_from"] for shard in manifest_of(second)["shards"]}
    assert [name for name, source in by_path.items() if source is None] == [path]
    assert hashes_of(second) == whole
    assert verify_manifest(second).is_valid


def test_a_failed_or_cancelled_export_is_no_parent(runtime: Runtime) -> None:
    from recorder.exports.runner.finalize import fail_export_of_cancelled_run

    seal(runtime, [Recording()])
    fail_export_of_cancelled_run(runtime, ask(runtime).id, owner="test")
    assert manifest_of(export(runtime))["parent"] is None
