"""Purges of exported sessions: datasets are rewritten, other files stay. Spec §4.5; contract §7."""

import base64
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from recorder import clock
from recorder.errors import RecorderError, Unavailable
from recorder.exports.destinations.local import LocalFolderDestination
from recorder.exports.executor import InProcess
from recorder.exports.runner.run import MAX_ATTEMPTS, run_export
from recorder.exports.verify import verify_manifest
from recorder.governance.requested_removals import run_removals
from recorder.governance.retention import run_retention
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from tests.support.executors import Watched
from tests.support.export_runs import folder_of, manifest_of
from tests.support.factories import Caller
from tests.support.purges import (
    Canary,
    count_hits,
    finish_purges,
    make_due,
    open_purges,
    recorded_canary,
)
from tests.support.stored_content import texts_of_file

FORMATS = ("parquet", "arrow", "jsonl", "webdataset")


@pytest.fixture(autouse=True)
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set buckets so small that a few sessions make many shards."""
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 2_000)


def export(caller: Caller, format: str, **body: Any) -> ExportRow:
    """Return a hosted export of all canaries."""
    request = {"workflow": "checkout", "format": format, "destination": {"kind": "signed_url"}} | body
    created = caller.post("/v1/exports", request).json()
    row = run_export(caller.service.runtime, created["id"], owner="tests")
    assert row.status == "completed", row.error
    return row


def texts_of(folder: Path) -> Iterator[str]:
    """Yield the texts of a dataset's files: raw, unpacked, and decoded."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        yield from texts_of_file(path)


def hits(folder: Path, word: str) -> int:
    """Return the number of texts with a word, plain or in base64."""
    words = {word, *(base64.b64encode(b" " * shift + word.encode())[4:-4].decode() for shift in range(3))}
    return sum(any(part in text for part in words) for text in texts_of(folder))


def digests(runtime: Runtime, row: ExportRow) -> dict[str, bytes]:
    """Return the files of a dataset."""
    folder = folder_of(runtime, row)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def current(runtime: Runtime, row: ExportRow) -> ExportRow:
    """Return the row of an export as it is now."""
    with runtime.database.transaction(write=False) as db:
        return db.get_one(ExportRow, row.id)


@pytest.mark.parametrize("format", FORMATS)
def test_a_purged_session_leaves_the_export_and_the_one_that_took_over_its_files(
    caller: Caller, format: str
) -> None:
    runtime = caller.service.runtime
    gone, *others = [recorded_canary(caller) for _ in range(6)]
    parent = export(caller, format)
    others.append(recorded_canary(caller))
    child = export(caller, format)
    exports = (parent, child)
    reused = [shard["reused_from"] for shard in manifest_of(folder_of(runtime, child))["shards"]]
    assert parent.id in reused
    before = {row.id: digests(runtime, row) for row in exports}
    for row in exports:
        assert hits(folder_of(runtime, row), gone.word) > 0
    assert caller.delete(f"/v1/sessions/{gone.session_id}?hard=true").status_code == 204
    finish_purges(runtime)
    for row in exports:
        folder = folder_of(runtime, row)
        assert hits(folder, gone.word) == 0 and hits(folder, gone.session_id) == 0
        assert all(hits(folder, other.session_id) for other in others[: 5 if row is parent else 6])
        assert verify_manifest(folder).is_valid, verify_manifest(folder).problems
        assert_only_its_files_changed(gone, before[row.id], digests(runtime, row))
        manifest = manifest_of(folder)
        assert (manifest["revision"], manifest["tombstones"]["deleted"]) == (2, 1)
        assert manifest["totals"]["sessions"] == (5 if row is parent else 6)
        now = current(runtime, row)
        assert (now.rows, now.revision, now.next_manifest_sha256) == (manifest["totals"]["rows"], 2, None)
        assert caller.get(f"/v1/exports/{row.id}/manifest").json()["revision"] == 2
    assert count_hits(runtime, gone.word) == 0
    difference = caller.get(f"/v1/exports/{child.id}/diff?against={parent.id}").json()
    assert difference["sessions"] == {"same": 5, "added": 1, "removed": 0, "changed": 0}
    assert manifest_of(folder_of(runtime, child))["parent"]["sessions_added"] == 1


def assert_only_its_files_changed(gone: Canary, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Check that files without the session are the same to the byte."""
    old, new = (orjson.loads(files["manifest.json"])["shards"] for files in (before, after))
    hashes = {shard["path"]: shard["sha256"] for shard in new}
    touched = [shard["path"] for shard in old if hashes.get(shard["path"]) != shard["sha256"]]
    assert 0 < len(touched) <= 2 and len(touched) < len(old)
    same = before.keys() - {*touched, "manifest.json", "README.md"}
    assert same and all(before[path] == after[path] for path in same)
    assert after.keys() <= before.keys()


@pytest.mark.parametrize("format", ["parquet"])
def test_an_export_of_one_purged_session_is_an_empty_dataset(caller: Caller, format: str) -> None:
    runtime = caller.service.runtime
    gone = recorded_canary(caller)
    row = export(caller, format)
    caller.delete(f"/v1/sessions/{gone.session_id}?hard=true")
    finish_purges(runtime)
    folder = folder_of(runtime, row)
    assert manifest_of(folder)["shards"] == [] and not list(folder.glob("data/**/*.parquet"))
    assert verify_manifest(folder).is_valid
    assert caller.get(f"/v1/exports/{row.id}").json()["rows"] == 0
    assert pl.Series([count_hits(runtime, gone.word)]).sum() == 0


@pytest.mark.parametrize("kind", ["hard delete", "erasure"])
def test_a_session_that_is_removed_while_its_export_runs_is_in_no_file(caller: Caller, kind: str) -> None:
    # Cover case 86: the session's rows leave the lake after the first shard is written.
    runtime = caller.service.runtime
    gone, *others = [recorded_canary(caller) for _ in range(4)]
    request = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    created = caller.post("/v1/exports", request).json()
    steps = []

    def remove() -> None:
        if steps:
            return  # the shard that had the session is written again
        if kind == "erasure":
            answer = caller.post("/v1/privacy/erasure", {"subject": gone.word, "scope": "all"})
        else:
            answer = caller.delete(f"/v1/sessions/{gone.session_id}?hard=true")
        assert answer.status_code in (202, 204)
        for _ in range(3):
            run_removals(runtime, "tests")
            make_due(runtime)
        steps.extend(open_purges(runtime))

    row = run_export(runtime, created["id"], owner="tests", executor=Watched(InProcess(), remove))
    assert (row.status, steps) == ("completed", [(gone.session_id, "exports")])
    finish_purges(runtime)
    folder = folder_of(runtime, row)
    assert hits(folder, gone.word) == 0 and all(hits(folder, other.word) for other in others)
    assert verify_manifest(folder).is_valid
    assert run_removals(runtime, "tests").error is None and count_hits(runtime, gone.word) == 0


@pytest.mark.parametrize("removal", ["erasure", "retention"])
def test_files_of_a_failed_hosted_export_that_its_runs_cannot_remove_go_later(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, removal: str
) -> None:
    runtime = caller.service.runtime
    canary = recorded_canary(caller)
    body = {"workflow": "checkout", "format": "jsonl", "destination": {"kind": "signed_url"}}
    export_id = caller.post("/v1/exports", body).json()["id"]

    def refuse(self: LocalFolderDestination, path: str) -> None:
        raise Unavailable("The export destination")

    class Failing:
        def run(self, tasks: Any) -> Iterator[Any]:
            yield from InProcess().run(tasks)
            raise RecorderError("The executor failed.")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolderDestination, "remove", refuse)
        row = run_export(runtime, export_id, owner="t", executor=Failing())
        for _ in range(2 * MAX_ATTEMPTS):
            row = run_export(runtime, export_id, owner="t")
            if not row.files_left:
                break
    assert (row.status, row.files_left) == ("failed", False) and hits(folder_of(runtime, row), canary.word)
    if removal == "erasure":
        caller.post("/v1/privacy/erasure", {"subject": canary.word, "scope": "all"})
        for _ in range(6):
            make_due(runtime)
            run_removals(runtime, "t")
    else:
        run_retention(runtime, "t", at=clock.now() + timedelta(days=1))
    assert not hits(folder_of(runtime, row), canary.word)
    with runtime.database.transaction(write=False) as db:
        assert db.get_one(ExportRow, export_id).plan_key is None
