"""Inputs of the figures of exports: generated sessions as sealing leaves them, and fair peers."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.exports import peers, service_exports
from benchmarks.exports.deployments import deploy
from benchmarks.exports.lake import Shape, fill
from benchmarks.exports.payloads import Payloads
from recorder.exports.verify import verify_manifest
from recorder.runtime import Runtime
from tests.support.export_runs import manifest_of
from tests.support.sealed_sessions import make_runtime

_SHAPE = Shape(sessions=12, events=10, frames=3, picture_bytes=300)


def _filled(folder: Path, shuffled: int | None = None) -> Runtime:
    runtime = make_runtime(folder)
    fill(runtime, _SHAPE, files=2, shuffled=shuffled)
    return runtime


@pytest.mark.parametrize("payloads", get_args(Payloads))
def test_made_up_sessions_are_what_their_digests_say(tmp_path: Path, payloads: Payloads) -> None:
    deploy(tmp_path / "data", replace(_SHAPE, payloads=payloads), files=2)
    result = service_exports.export(str(tmp_path / "data"), "parquet", keep=True)
    report = verify_manifest(f"{result['folder']}/manifest.json")
    assert (report.problems, report.rows, report.frames) == ([], 120, 36)


def test_the_order_in_the_lake_leaves_the_rows_as_they_are(tmp_path: Path) -> None:
    digests = set()
    for name, shuffled in (("in_order", None), ("shuffled", 7)):
        _filled(tmp_path / name, shuffled).close()
        folder = Path(service_exports.export(str(tmp_path / name), "jsonl", keep=True)["folder"])
        digests.add(manifest_of(folder)["row_set_sha256"])
    assert len(digests) == 1


def test_peers_write_the_same_pictures_of_the_same_frames(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    _filled(tmp_path / "data").close()
    service_exports.tables(data, str(tmp_path))
    archive = io.BytesIO()
    peers.fill_archive(archive, peers.with_pictures(data, peers.read_samples(str(tmp_path))))
    folder = Path(service_exports.export(data, "webdataset", keep=True)["folder"])
    [made] = folder.glob("data/*/*.tar")
    assert _members(made.read_bytes(), "png") == _members(archive.getvalue(), "png")
    assert _members(made.read_bytes()).keys() == _members(archive.getvalue()).keys()


def test_a_plan_is_timed_step_by_step(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    plan = service_exports.plan(str(tmp_path), "webdataset")
    assert (plan["sessions"], service_exports.read_sorted(str(tmp_path))["rows"]) == (12, 120)
    assert 0 < plan["parts"]["read"] < plan["seconds"]


def _members(archive: bytes, ending: str = "") -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        members = [member for member in file if member.name.endswith(ending)]
        return {member.name: file.extractfile(member).read() for member in members}  # type: ignore[union-attr]
