"""Summary of a finished dataset, read back from files of every format. Design §1."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recorder.datasets.formats import FormatName
from recorder.datasets.manifest import Shard, parse_manifest
from recorder.exports.destinations import open_destination_url
from recorder.exports.results import summary
from recorder.exports.results.summary import DatasetSummary, summarize_dataset
from recorder.exports.verify import verify_manifest
from recorder.runtime import Runtime
from tests.support.dataset_readers import FORMATS, ROW_FORMATS
from tests.support.export_runs import export
from tests.support.sealed_sessions import Recording, make_runtime, seal


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    opened = make_runtime(tmp_path_factory.mktemp("summary"))
    # More events without an outcome than any reader guesses types from.
    seal(opened, [Recording(outcome=None, frames=[0], events=[(t_ms, "scroll") for t_ms in range(300)])])
    seal(opened, [Recording(workflow="login", frames=[0]), Recording(frames=[0])])
    yield opened
    opened.close()


def _list_shards(folder: Path) -> list[Shard]:
    shards = parse_manifest((folder / "manifest.json").read_bytes()).shards
    return [shard for shard in shards if shard.kind != "frames"]


def _summary(folder: Path, format: FormatName) -> DatasetSummary:
    result = summarize_dataset(open_destination_url(str(folder)), _list_shards(folder), format=format)
    assert result is not None
    return result


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_summed_up_alike(runtime: Runtime, format: FormatName) -> None:
    folder = export(runtime, workflow=["checkout", "login"], format=format)
    result = _summary(folder, format)
    assert dict(result.outcomes.iter_rows()) == {"none": 1, "success": 2}
    assert result.types.rows() == [("scroll", 302), ("click", 2), ("input", 2)]
    assert sorted(result.lengths_s) == [0.299, 0.9, 0.9]
    assert result.preview.height == 8
    assert not {"payload", "workspace"} & set(result.preview.columns)
    assert verify_manifest(open_destination_url(str(folder))).is_valid, (
        "an opened destination is verified as it is"
    )


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_nothing_is_summed_up_of_an_empty_dataset(runtime: Runtime, format: FormatName) -> None:
    assert summarize_dataset(open_destination_url("memory://nothing"), [], format=format) is None


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_with_other_bytes_than_are_listed_is_not_read(runtime: Runtime, format: FormatName) -> None:
    folder = export(runtime, format=format)
    first, *_ = _list_shards(folder)
    data = (folder / first.path).read_bytes()
    for other in (data + b"more", bytes(len(data))):
        (folder / first.path).write_bytes(other)
        with pytest.raises(KeyError):
            _summary(folder, format)


def test_one_copy_of_a_file_is_on_the_disk_at_a_time(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export(runtime, workflow=["checkout", "login"])
    shards = _list_shards(folder)
    store = open_destination_url(f"memory://{folder.name}")
    for shard in shards:
        with store.create(shard.path) as file:
            file.write((folder / shard.path).read_bytes())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scan, copies = summary.scan_dataset_tables, []

    def _count_copies(*arguments: Any) -> Any:
        copies.append(sum(path.is_file() for path in tmp_path.rglob("*")))
        return scan(*arguments)

    monkeypatch.setattr(summary, "scan_dataset_tables", _count_copies)
    assert summarize_dataset(store, shards) is not None
    assert copies == [1, 1]
