"""Manifests that are none, or lead elsewhere: nothing is read beside the dataset. docs/exports.md."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from recorder.datasets.errors import ManifestRefused, ManifestUnreadable
from recorder.datasets.manifest import Shard, parse_manifest
from recorder.datasets.sources import DestinationSource, copy_source_file, open_dataset_source
from recorder.exports.verify import verify_manifest
from tests.support.export_runs import manifest_of
from tests.support.spoiled_datasets import file_of_rows, problems_of

_PATHS = [
    "../../../etc/passwd",
    "/etc/passwd",
    "data/workflow=checkout/../../../secret-00000-of-00001.parquet",
    "data/workflow=../events-00000-of-00001.parquet",
    "data/workflow=checkout/events-00000-of-00001.parquet\n",
    "file:///etc/passwd",
    "data\\workflow=checkout\\events-00000-of-00001.parquet",
    "",
    7,
    None,
]


@pytest.mark.parametrize("path", _PATHS)
def test_a_manifest_that_leads_elsewhere_is_not_followed(copy: Callable[[str], Path], path: Any) -> None:
    folder = copy("parquet")
    manifest = manifest_of(folder)
    manifest["shards"][0]["path"] = path
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestUnreadable, match="not written by this service"):
        verify_manifest(folder)


def test_a_link_out_of_the_folder_is_not_followed(copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copy("jsonl")
    path = file_of_rows(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "leads out of the dataset's folder" in problems_of(folder)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(copy: Callable[[str], Path]) -> None:
    folder = copy("jsonl")
    path = file_of_rows(folder)
    path.unlink()
    os.mkfifo(path)
    assert "is missing" in problems_of(folder)


def _changed(manifest: dict[str, Any], change: dict[str, Any]) -> bytes:
    return orjson.dumps(manifest | change)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"export_id": "exp_1"}',
        b'{"export_id":' * 50_000,
    ],
)
def test_what_is_no_manifest_is_called_so(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(ManifestUnreadable):
        verify_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"shards": {}},
        {"shards": [[]]},
        {"totals": None},
        {"format": "csv"},
        {"format": "webdataset"},
        {"row_set_sha256": "short"},
        {"export_id": "\x1b[2J"},
        {"totals": {"rows": -1, "frames": 0, "bytes": 0, "shards": 0}},
        {"totals": {"rows": 1e300, "frames": 0, "bytes": 0, "shards": 0}},
    ],
)
def test_a_manifest_of_wrong_members_is_none_of_ours(
    copy: Callable[[str], Path], change: dict[str, Any]
) -> None:
    folder = copy("parquet")
    (folder / "manifest.json").write_bytes(_changed(manifest_of(folder), change))
    with pytest.raises(ManifestUnreadable):
        verify_manifest(folder)


def test_a_file_that_is_listed_twice_is_refused(originals: dict[str, Path]) -> None:
    manifest = manifest_of(originals["arrow"])
    with pytest.raises(ManifestUnreadable, match="twice"):
        parse_manifest(_changed(manifest, {"shards": manifest["shards"] * 2}))


def test_a_destination_gives_no_more_of_a_file_than_was_listed(originals: dict[str, Path]) -> None:
    class Store:
        """A store whose files have become very long; it counts the bytes that are read."""

        bytes_read = 0

        def size(self, path: str) -> int:
            return 2**40

        def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
            self.bytes_read = end - start
            yield b""

    store = Store()
    with pytest.raises(ManifestUnreadable):
        verify_manifest(store)
    shard = parse_manifest((originals["parquet"] / "manifest.json").read_bytes()).shards[0]
    with tempfile.TemporaryDirectory() as folder:
        copy_source_file(DestinationSource(store), shard, Path(folder))
    assert store.bytes_read == shard.size_bytes + 1


_SHARD = "data/workflow=checkout/events-00000-of-00001.parquet"

_SERVED = "http://127.0.0.1:9/v1/exports/exp_1"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        f"{_SERVED}/files/data/workflow=other/events-00000-of-00001.parquet",
        "http://127.0.0.1:9/v1/exports/exp_2/files/" + _SHARD,
        "file:///etc/passwd",
        "http://[",
    ],
)
def test_no_address_but_the_exports_own_is_asked(tmp_path: Path, url: str) -> None:
    shard = Shard(kind="events", path=_SHARD, size_bytes=1, rows=1, sessions=1, sha256="0" * 64, url=url)
    with pytest.raises(ManifestRefused, match="not the export's own"):
        copy_source_file(open_dataset_source(f"{_SERVED}/manifest?sig=x"), shard, tmp_path)
