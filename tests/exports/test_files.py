"""Files of an export's folder: manifest, card, files that other tools read, and their verification."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import polars as pl
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from recorder.datasets.errors import ManifestUnreadable
from recorder.datasets.schemas import EVENTS, FRAMES
from recorder.exports.destinations import FileConflict, open_destination_url
from recorder.exports.requests.export_wire_objects import manifest_url_to_wire
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.models.workspace import WorkspaceRow
from tests.support.export_runs import ask, export, folder_of, manifest_of
from tests.support.http_service import running_service
from tests.support.ports import find_free_port
from tests.support.sealed_sessions import START, WORKSPACE, Recording, make_runtime, seal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(frames=[0, 100, 600, 900], outcome=None), Recording(actor_kind=None)])
    seal(runtime, [Recording(workflow="login", frames=[0])])
    return export(runtime, workflow=["checkout", "login"], tag="v3")


def test_the_manifest_lists_every_file_as_it_is(folder: Path) -> None:
    manifest = manifest_of(folder)
    values = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}
    listed = {shard["path"]: (shard["size_bytes"], shard["sha256"]) for shard in manifest["shards"]}
    assert listed == {path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in values.items()}
    assert manifest["totals"]["bytes"] == sum(map(len, values.values()))


def test_the_manifest_has_the_members_that_clients_rely_on(folder: Path) -> None:
    manifest = manifest_of(folder)
    assert list(manifest) == [
        "manifest_version",
        "revision",
        "export_id",
        "workspace_id",
        "created_at",
        "format",
        "tag",
        "spec",
        "spec_sha256",
        "plan_sha256",
        "row_set_sha256",
        "source",
        "totals",
        "schema",
        "writer",
        "layout",
        "shards",
        "parent",
        "tombstones",
    ]
    assert [shard["index"] for shard in manifest["shards"]] == list(range(4))


def test_the_columns_are_those_that_the_manifest_names(folder: Path) -> None:
    events = next(folder.glob("data/workflow=checkout/events-*"))
    frames = next(folder.glob("data/workflow=checkout/frames-*"))
    assert pq.read_schema(events).names == EVENTS.names
    assert pq.read_schema(frames).equals(FRAMES)


def test_polars_reads_a_kind_over_all_workflows(folder: Path) -> None:
    rows = pl.scan_parquet(folder / "data/*/events-*.parquet", hive_partitioning=True).collect()
    assert dict(rows["workflow"].value_counts().iter_rows()) == {"checkout": 6, "login": 3}
    assert rows.schema["ts"] == pl.Datetime("us", "UTC")


def test_pyarrow_reads_a_kind_over_all_workflows(folder: Path) -> None:
    files = sorted(str(path) for path in folder.glob("data/*/frames-*.parquet"))
    table = pyarrow.dataset.dataset(files, partitioning=None).to_table()
    assert table["image"].combine_chunks().field("path").to_pylist()[0].endswith(".png")
    assert table.num_rows == manifest_of(folder)["totals"]["frames"]


def test_the_card_names_the_files_and_the_picture_feature(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert "path: data/*/events-*.parquet" in card
    assert "- name: image\n    dtype: image" in card
    assert card.count("default: true") == 1


def test_the_card_of_an_empty_dataset_promises_no_files(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording()])
    assert "configs:" not in (export(runtime, filter={"tag": "none"}) / "README.md").read_text()


def test_a_whole_dataset_is_verified_from_its_files_alone(folder: Path) -> None:
    manifest = manifest_of(folder)
    report = verify_manifest(folder / "manifest.json")
    assert report.is_valid
    assert (report.rows, report.frames, report.shards) == (
        manifest["totals"]["rows"],
        manifest["totals"]["frames"],
        4,
    )
    assert report.row_set_sha256 == manifest["row_set_sha256"]


def _flip_a_byte(folder: Path) -> None:
    path = next(folder.glob("data/*/events-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _remove_a_file(folder: Path) -> None:
    next(folder.glob("data/*/frames-*")).unlink()


def _add_bytes(folder: Path) -> None:
    with next(folder.glob("data/*/frames-*")).open("ab") as file:
        file.write(b"more")


def _exchange_rows(folder: Path) -> None:
    """Replace rows and make a manifest that fits: only the row set differs."""
    path = next(folder.glob("data/workflow=checkout/events-*"))
    pl.read_parquet(path).with_columns(payload=pl.lit("{}")).write_parquet(path)
    _fit_manifest(folder, path)


def _exchange_pictures(folder: Path) -> None:
    path = next(folder.glob("data/workflow=checkout/frames-*"))
    rows = pl.read_parquet(path)
    image = pl.struct(bytes=pl.lit(b"other"), path=pl.col("image").struct.field("path"))
    rows.with_columns(image=image).write_parquet(path)
    _fit_manifest(folder, path)


def _fit_manifest(folder: Path, path: Path) -> None:
    manifest = manifest_of(folder)
    data = path.read_bytes()
    entry = next(shard for shard in manifest["shards"] if folder / shard["path"] == path)
    manifest["totals"]["bytes"] += len(data) - entry["size_bytes"]
    entry |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_flip_a_byte, "another SHA-256"),
        (_remove_a_file, "is missing"),
        (_add_bytes, "bytes, the manifest says"),
        (_exchange_rows, "not the row set"),
        (_exchange_pictures, "another picture"),
    ],
)
def test_verification_finds_what_was_spoiled(folder: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(folder)
    report = verify_manifest(folder)
    assert not report.is_valid
    assert any(words in problem for problem in report.problems), report.problems


def test_a_hosted_dataset_is_verified_over_its_signed_address(tmp_path: Path) -> None:
    with running_service(tmp_path, port=find_free_port()) as service:
        runtime = make_runtime(tmp_path, public_url=service.url)
        with runtime.database.transaction(write=True) as db:
            db.add(WorkspaceRow(id=WORKSPACE, name="acme", region="us", created_at=START))
        seal(runtime, [Recording(frames=[0, 600])])
        row = run_export(runtime, ask(runtime, destination={"kind": "signed_url"}).id, owner="test")
        address = manifest_url_to_wire(row, runtime.settings)
        assert verify_manifest(str(address)).problems == []
        next(folder_of(runtime, row).glob("data/*/frames-*")).unlink()
        assert "is missing" in verify_manifest(str(address)).problems[0]


def test_a_folder_without_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(ManifestUnreadable):
        verify_manifest(tmp_path)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    destination = open_destination_url(str(tmp_path / "exp"))
    with pytest.raises(ZeroDivisionError), destination.create("data/a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert [path for path in (tmp_path / "exp").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("knows_links", [True, False])
def test_publishing_twice_keeps_equal_bytes_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_links: bool
) -> None:
    def _refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not knows_links:
        monkeypatch.setattr(Path, "hardlink_to", _refuse)
    destination = open_destination_url(str(tmp_path / "exp"))
    for _ in range(2):
        with destination.create("data/a") as file:
            file.write(b"bytes")
    with pytest.raises(FileConflict), destination.create("data/a") as file:
        file.write(b"other")
    assert destination.read("data/a") == b"bytes"


@pytest.mark.parametrize("url", ["{tmp}/exp", "memory://destination-test/exp"])
def test_a_destination_reads_back_whole_and_in_parts(tmp_path: Path, url: str) -> None:
    destination = open_destination_url(url.format(tmp=tmp_path))
    destination.probe()
    with destination.create("data/a") as file:
        file.write(b"0123456789")
    assert destination.size("data/a") == 10
    assert b"".join(destination.read_range("data/a", 3, 6)) == b"345"
    destination.remove("data/a")
    with pytest.raises(KeyError):
        destination.read("data/a")


def test_verification_needs_nothing_of_the_service() -> None:
    # The library verifies datasets: a training environment installs it without the service's packages.
    blocked = "import sys; sys.modules.update(dict.fromkeys(['sqlmodel', 'deltalake', 'fastapi', 'dagster']))"
    command = [sys.executable, "-c", f"{blocked}; import recorder.exports.verify"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
