"""Exports in S3, Google's and Azure's stores: whole objects or none, nothing beside the prefix. Spec §4.3."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from recorder.errors import InvalidDestination, Unavailable
from recorder.exports.destinations import (
    Destination,
    ExportLocation,
    FileConflict,
    open_destination,
    open_destination_directory,
    resolve_export_location,
)
from recorder.exports.results.hosted_files import open_hosted_file, read_manifest, require_hosted_file
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.operations import LeaseRow
from recorder.runtime import Runtime
from tests.exports.destinations.conftest import Opened
from tests.support.export_runs import ask
from tests.support.faulty_proxy import faulty_line
from tests.support.object_stores import BUCKET, EmulatedS3, EmulatedStore
from tests.support.raw_servers import raw_server
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, make_settings, seal

_MIB = 2**20


def target_in(
    store: EmulatedStore, folder: Path, *, prefix: str, url: str | None = None, is_listed: bool = True
) -> ExportLocation:
    """Return the path of an export of our workspace with this prefix."""
    settings = make_settings(folder, **store.chosen(url, is_listed=is_listed))
    row = ExportRow(
        id=new_id("exp"),
        workspace_id=WORKSPACE,
        destination=store.destination(prefix),
    )
    return resolve_export_location(row, settings)


def write(destination: Destination, path: str, data: bytes, *, replace: bool = False) -> None:
    with destination.create(path, replace=replace) as file:
        file.write(data)


@pytest.fixture
def prefix() -> str:
    """Return a prefix in the bucket that no other test uses."""
    return f"team a/{new_id('req')}"


@pytest.fixture
def target(store: EmulatedStore, tmp_path: Path, prefix: str) -> ExportLocation:
    return target_in(store, tmp_path, prefix=prefix)


def test_a_probe_leaves_nothing(store: EmulatedStore, target: ExportLocation, prefix: str) -> None:
    open_destination_directory(target).probe()
    assert store.objects(prefix) == {}


def test_a_file_reads_back_whole_and_in_parts(target: ExportLocation, tmp_path: Path) -> None:
    destination = open_destination_directory(target)
    write(destination, "data/a=1/x", b"0123456789")
    assert (destination.size("data/a=1/x"), destination.read("data/a=1/x")) == (10, b"0123456789")
    assert b"".join(destination.read_range("data/a=1/x", 3, 6)) == b"345"
    sha256 = hashlib.sha256(b"0123456789").hexdigest()
    copy = destination.fetch("data/a=1/x", tmp_path, size_bytes=10, sha256=sha256)
    assert copy.read_bytes() == b"0123456789"
    assert list(destination.list_destination_paths()) == ["data/a=1/x"]


def test_an_empty_file_is_a_file(store: EmulatedStore, target: ExportLocation) -> None:
    destination = open_destination_directory(target)
    write(destination, "data/empty", b"")
    assert destination.read("data/empty") == b""
    assert store.objects(target.root) == {f"{target.root}/data/empty": b""}


def test_a_file_that_is_gone_is_a_missing_key(target: ExportLocation) -> None:
    destination = open_destination_directory(target)
    write(destination, "data/a", b"1")
    for _ in range(2):
        destination.remove("data/a")
    for read in (destination.read, destination.size):
        with pytest.raises(KeyError):
            read("data/a")


def test_the_same_bytes_stay_and_others_are_a_conflict(store: EmulatedStore, target: ExportLocation) -> None:
    destination = open_destination_directory(target)
    for _ in range(2):
        write(destination, "data/a", b"bytes")
    with pytest.raises(FileConflict):
        write(destination, "data/a", b"other")
    assert store.objects(target.root) == {f"{target.root}/data/a": b"bytes"}
    write(destination, "data/a", b"anew", replace=True)
    assert destination.read("data/a") == b"anew"


def test_a_block_that_fails_publishes_nothing(store: EmulatedStore, target: ExportLocation) -> None:
    with pytest.raises(ZeroDivisionError), open_destination_directory(target).create("data/a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert store.objects(target.root) == {}


def test_a_large_file_travels_in_parts(store: EmulatedStore, target: ExportLocation) -> None:
    data = os.urandom(17 * _MIB)
    write(open_destination_directory(target), "data/large", data)
    assert store.objects(target.root) == {f"{target.root}/data/large": data}
    assert store.uploads() == []


def test_a_file_of_another_export_is_taken_over_if_its_bytes_are_right(target: ExportLocation) -> None:
    older, newer = (
        open_destination_directory(target),
        open_destination_directory(replace(target, root=f"{target.root}-newer")),
    )
    write(older, "data/a", b"bytes")
    newer.copy("data/a", older, size_bytes=5, sha256=hashlib.sha256(b"bytes").hexdigest())
    assert newer.read("data/a") == b"bytes"
    with pytest.raises(KeyError):
        newer.copy("data/b", older, size_bytes=5, sha256="0" * 64)
    write(older, "data/b", b"bytes")
    with pytest.raises(KeyError):
        newer.copy("data/b", older, size_bytes=5, sha256="0" * 64)
    assert list(newer.list_destination_paths()) == ["data/a"]


def test_no_more_than_the_listed_bytes_of_a_file_are_read(target: ExportLocation, tmp_path: Path) -> None:
    older, newer = (
        open_destination_directory(target),
        open_destination_directory(replace(target, root=f"{target.root}-newer")),
    )
    sha256 = hashlib.sha256(b"bytes").hexdigest()
    (folder := tmp_path / "copies").mkdir()
    # What a client may put in the place of a file: more bytes, fewer, and others.
    for data in (b"bytes and more", b"byte", b"other"):
        write(older, "data/a", data)
        with pytest.raises(KeyError):
            older.fetch("data/a", folder, size_bytes=5, sha256=sha256)
        with pytest.raises(KeyError):
            newer.copy("data/a", older, size_bytes=5, sha256=sha256)
        older.remove("data/a")
    assert all(copy.stat().st_size <= 5 for copy in folder.iterdir())
    assert list(newer.list_destination_paths()) == []


def test_a_bucket_that_does_not_exist_is_refused(target: ExportLocation) -> None:
    with pytest.raises(InvalidDestination):
        open_destination_directory(replace(target, bucket="nowhere-at-all")).probe()


def test_a_bucket_that_says_nothing_of_the_workspace_is_refused(
    store: EmulatedStore, tmp_path: Path, prefix: str
) -> None:
    # The service's own rights must not let a client write to another tenant's bucket.
    target = target_in(store, tmp_path, prefix=prefix, is_listed=False)
    stranger = replace(target, workspace_id=new_id("wsp"))
    store.put(f"recorder-workspaces/{stranger.workspace_id}", b"")
    with pytest.raises(InvalidDestination, match=f"recorder-workspaces/{WORKSPACE}"):
        open_destination_directory(target).probe()
    assert store.objects(prefix) == {}
    open_destination_directory(stranger).probe()


def test_a_claim_that_was_taken_back_fails_the_export_before_a_file_is_written(
    store: EmulatedStore, tmp_path: Path, prefix: str
) -> None:
    runtime = make_runtime(tmp_path, **store.chosen(is_listed=False))
    seal(runtime, [Recording()])
    claim = f"recorder-workspaces/{WORKSPACE}"
    store.put(claim, b"")
    row = ask(runtime, destination=store.destination(prefix))
    open_destination_directory(
        replace(target_in(store, tmp_path, prefix=prefix), root="recorder-workspaces")
    ).remove(WORKSPACE)
    ended = run_export(runtime, row.id, owner="test")
    assert (ended.status, ended.error and ended.error["code"]) == ("failed", "invalid_destination")
    assert store.objects(prefix) == {}


def test_what_an_object_says_of_its_bytes_is_not_believed(s3: EmulatedS3, tmp_path: Path) -> None:
    older, newer = (
        open_destination_directory(target_in(s3, tmp_path, prefix=name)) for name in ("older", "newer")
    )
    write(older, "data/a", b"bytes")
    (key,) = s3.objects("older")
    right, wrong = hashlib.sha256(b"bytes").hexdigest(), b"other"
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=wrong, Metadata={"sha256": right})
    with pytest.raises(KeyError):
        newer.copy("data/a", older, size_bytes=5, sha256=right)
    assert s3.objects("newer") == {}


def test_a_store_that_is_away_is_told_from_one_that_refuses(target: ExportLocation) -> None:
    with pytest.raises(Unavailable):
        open_destination_directory(replace(target, endpoint="http://127.0.0.1:9")).probe()


@pytest.mark.timeout(60)
def test_an_answer_of_google_without_bytes_ends_the_read(opened: Opened, tmp_path: Path, prefix: str) -> None:
    there = target_in(opened("gcs"), tmp_path, prefix=prefix)
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 0\r\n"
    with raw_server(head + b"Connection: close\r\n\r\n") as server:
        location = replace(there, endpoint=f"http://127.0.0.1:{server.port}")
        with pytest.raises(Unavailable):
            b"".join(open_destination_directory(location).read_range("data/a", 0, 10))


def test_an_export_lies_in_the_bucket_as_its_manifest_says(
    store: EmulatedStore, tmp_path: Path, prefix: str
) -> None:
    runtime = make_runtime(tmp_path, **store.chosen())
    seal(runtime, [Recording(frames=[0, 100])])
    row = run_export(runtime, ask(runtime, destination=store.destination(prefix)).id, owner="test")
    assert row.status == "completed", row.error
    require_right_objects(store, f"{prefix}/{row.id}")
    assert read_manifest(row, runtime.settings)["totals"]["shards"] == 2
    report = verify_manifest(open_destination(row, runtime.settings))
    assert (report.problems, report.frames) == ([], 2)
    assert store.objects(prefix).keys() == store.objects(f"{prefix}/{row.id}/").keys()


def test_over_a_bad_line_no_wrong_object_is_under_a_completed_manifest(
    store: EmulatedStore, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 30_000)
    runtime = make_runtime(tmp_path, **store.chosen())
    seal(runtime, [Recording(frames=[0, 100, 200]) for _ in range(6)])
    item = ask(runtime, destination=store.destination(prefix))
    with faulty_line(store.url, seed=2) as line:
        bad = replace(runtime, settings=replace(runtime.settings, **store.chosen(line.url)))
        row = run_until_it_ends(bad, item.id)
    assert row.status == "completed", row.error
    assert line.faults["cut"] + line.faults["status"] >= 2, line.faults
    require_right_objects(store, f"{prefix}/{row.id}")
    assert store.uploads() == []


@pytest.mark.parametrize("scheme", ["s3://datasets", "gs://datasets", "abfs://datasets@devstoreaccount1.dfs"])
def test_hosted_files_may_lie_in_an_object_store(
    request: pytest.FixtureRequest, tmp_path: Path, prefix: str, scheme: str
) -> None:
    kind = {"s3": "s3", "gs": "gcs", "abfs": "azure_blob"}[scheme.partition(":")[0]]
    store: EmulatedStore = request.getfixturevalue("opened")(kind)
    runtime = make_runtime(tmp_path)
    # Once it is open: its first look at the store goes by what each client library reads of the environment.
    chosen = {"export_url": f"{scheme}/{prefix}", **store.chosen(is_listed=False)}
    runtime = replace(runtime, settings=replace(runtime.settings, **chosen))
    seal(runtime, [Recording()])
    row = run_export(runtime, ask(runtime, destination={"kind": "signed_url"}).id, owner="test")
    assert row.status == "completed", row.error
    (shard,) = read_manifest(row, runtime.settings)["shards"]
    with runtime.database.transaction(write=False) as db:
        require_hosted_file(db, row, shard["path"])
    file = open_hosted_file(row, runtime.settings, shard["path"])
    stored = store.objects(f"{prefix}/{WORKSPACE}/{row.id}/{shard['path']}")
    assert b"".join(file.read(4, 20)) == next(iter(stored.values()))[4:20]


def run_until_it_ends(runtime: Runtime, export_id: str) -> ExportRow:
    """Run an export again and again, as the sensor would, each time once the lease has run out."""
    for _ in range(20):
        try:
            return run_export(runtime, export_id, owner="test")
        except Unavailable:
            with runtime.database.transaction(write=True) as db:
                lease = db.get_one(LeaseRow, f"export:{export_id}")
                lease.expires_ms = 0
                db.add(lease)
    raise AssertionError("no run ended")


def require_right_objects(store: EmulatedStore, root: str) -> None:
    """Hash every object, as the store has it, and compare it with the manifest."""
    objects = {key.removeprefix(f"{root}/"): data for key, data in store.objects(f"{root}/").items()}
    shards = orjson.loads(objects["manifest.json"])["shards"]
    values = {path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in objects.items()}
    listed = {shard["path"]: (shard["size_bytes"], shard["sha256"]) for shard in shards}
    assert shards and listed.items() <= values.items()
    assert values.keys() == {"README.md", "manifest.json", *listed}
