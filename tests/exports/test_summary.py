"""Summary of a finished dataset, read back from files of every format. Design §1."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.datasets.formats import FormatName
from recorder.exports.destinations import open_destination_url
from recorder.exports.results.summary import DatasetSummary, summarize_dataset
from recorder.exports.verify import verify_manifest
from recorder.runtime import Runtime
from tests.support.dataset_readers import FORMATS, ROW_FORMATS
from tests.support.export_runs import export, manifest_of
from tests.support.sealed_sessions import Recording, make_runtime, seal


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    opened = make_runtime(tmp_path_factory.mktemp("summary"))
    # More events without an outcome than any reader guesses types from.
    seal(opened, [Recording(outcome=None, frames=[0], events=[(t_ms, "scroll") for t_ms in range(300)])])
    seal(opened, [Recording(workflow="login", frames=[0]), Recording(frames=[0])])
    yield opened
    opened.close()


def _summary(folder: Path, format: FormatName) -> DatasetSummary:
    paths = [shard["path"] for shard in manifest_of(folder)["shards"] if shard["kind"] != "frames"]
    result = summarize_dataset(open_destination_url(str(folder)), paths, format=format)
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
