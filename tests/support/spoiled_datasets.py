"""Exported datasets of each format, to be spoiled, and what the verification finds wrong with them."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from recorder.exports.verify import verify_manifest
from tests.support.dataset_readers import FORMATS
from tests.support.export_runs import export, manifest_of
from tests.support.sealed_sessions import Recording, make_runtime, seal


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Yield a dataset of each format, which the tests of a module leave as it is."""
    runtime = make_runtime(tmp_path_factory.mktemp("verify"))
    seal(
        runtime, [Recording(frames=[0, 100, 600, 900], outcome=None), Recording(actor_kind=None, frames=[0])]
    )
    yield {format: export(runtime, format=format) for format in FORMATS}
    runtime.close()


@pytest.fixture
def copy(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a dataset of a format that a test may spoil."""

    def _copy(format: str) -> Path:
        return Path(shutil.copytree(originals[format], tmp_path / "dataset"))

    return _copy


def file_of_rows(folder: Path) -> Path:
    """Return the file that its rows are in: events, or samples."""
    return next(path for path in folder.glob("data/*/*") if not path.name.startswith("frames"))


def exchange_file(folder: Path, path: Path, data: bytes) -> None:
    """Replace a file and make the manifest fit, so that only reading it shows the change."""
    path.write_bytes(data)
    manifest = manifest_of(folder)
    entry = next(shard for shard in manifest["shards"] if folder / shard["path"] == path)
    manifest["totals"]["bytes"] += len(data) - entry["size_bytes"]
    entry |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


def problems_of(folder: Path) -> str:
    """Return all problems of a dataset as one text."""
    report = verify_manifest(folder)
    assert not report.is_valid
    return " ".join(report.problems)
