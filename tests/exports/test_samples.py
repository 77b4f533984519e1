"""WebDataset archives: samples, their members, and how the archive is made. Spec §4.3 (`webdataset`)."""

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import polars as pl
import pytest

from recorder.datasets.webdataset import format_tar_header
from recorder.exports.verify import verify_manifest
from recorder.hashing import compute_hash_bucket
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.dataset_readers import Row, samples_in, typed
from tests.support.export_runs import export, manifest_of
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, picture, seal

_RECORDINGS = [
    Recording(frames=[0, 100, 600, 900], outcome=None, events=[(t, "click") for t in (0, 10, 20, 700)]),
    Recording(frames=[300], actor_kind=None),
]
_EXPIRED = _RECORDINGS[1].session_id


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    opened = make_runtime(tmp_path_factory.mktemp("samples"))
    seal(opened, _RECORDINGS)
    opened.blobs.delete(f"frames/{WORKSPACE}/{_EXPIRED}/batch.pack")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def folder(runtime: Runtime) -> Path:
    return export(runtime, format="webdataset", frame_sampling={"mode": "all"})


def _frame(sample: dict[str, bytes]) -> Row:
    return typed(json.loads(sample["json"]))


def test_a_sample_is_called_by_its_session_and_place(folder: Path) -> None:
    for sample in samples_in(folder):
        frame = _frame(sample)
        assert sample["__key__"].decode() == f"{frame['session_id']}-{frame['seq']:06d}"
        assert re.fullmatch(rb"ses_[0-9a-z]{26}-[0-9]{6}", sample["__key__"]), "no slash, no dot"


def test_a_sample_has_the_events_that_are_bound_to_its_frame(runtime: Runtime, folder: Path) -> None:
    events = runtime.lake.scan("events", Tenant(WORKSPACE, "live")).sort("session_id", "seq").collect()
    for sample in samples_in(folder):
        frame = _frame(sample)
        bound = events.filter(
            pl.col("session_id") == frame["session_id"], pl.col("frame_seq") == frame["seq"]
        )
        output = [typed(event) for event in json.loads(sample["events.json"])]
        wanted = bound.select(
            *("event_id", "t_ms", "ts", "type", "frame_id", "payload", "frame_seq", "is_action"),
            bound_frame_id=pl.lit(frame["frame_id"]),
        )
        assert [{name: event[name] for name in wanted.columns} for event in output] == wanted.to_dicts()


def test_frames_without_events_have_an_empty_list(folder: Path) -> None:
    counts = [len(json.loads(sample["events.json"])) for sample in samples_in(folder)]
    assert sorted(counts) == [0, 0, 1, 2, 3]


def test_a_sample_has_its_picture_until_that_expires_and_says_so(folder: Path) -> None:
    for sample in samples_in(folder):
        frame, key = _frame(sample), sample["__key__"].decode()
        if frame["session_id"] == _EXPIRED:
            assert "png" not in sample
            assert frame["image"] is None
        else:
            assert sample["png"] == picture(frame["session_id"], frame["seq"])
            assert frame["image"] == f"{key}.png"


def test_rows_count_samples_and_actions_those_within_them(folder: Path) -> None:
    totals = manifest_of(folder)["totals"]
    assert (totals["rows"], totals["frames"], totals["actions"]) == (5, 5, 5)


def test_headers_tell_nothing_of_time_and_machine(folder: Path) -> None:
    with tarfile.open(next(folder.glob("data/*/*.tar"))) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    facts = {
        (member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode, member.type)
        for member in members
    }
    assert facts == {(0, 0, 0, "", "", 0o644, tarfile.REGTYPE)}


def test_members_have_sorted_keys(folder: Path) -> None:
    for sample in samples_in(folder):
        rows = [json.loads(sample["json"]), *json.loads(sample["events.json"])]
        assert all(list(row) == sorted(row) for row in rows)


def test_an_archive_is_as_tarfile_would_write_it(folder: Path, tmp_path: Path) -> None:
    path = next(folder.glob("data/*/*.tar"))
    with (
        tarfile.open(path) as archive,
        tarfile.open(tmp_path / "again.tar", "w", format=tarfile.USTAR_FORMAT) as copy,
    ):
        for member in archive:
            copy.addfile(member, cast(IO[bytes], archive.extractfile(member)))
    assert (tmp_path / "again.tar").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("name", "size"), [("n" * 101, 1), ("name", 8**11)])
def test_what_no_header_can_hold_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError, match="no room"):
        format_tar_header(name.encode(), size)


def test_many_shards_hold_every_frame_once(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 1_000)
    folder = export(
        runtime,
        format="webdataset",
        frame_sampling={"mode": "all"},
        destination={"kind": "local", "path": "small"},
    )
    bits = manifest_of(folder)["layout"]["checkout"]["bucket_bits"]
    buckets = {
        compute_hash_bucket(recording.session_id) >> (16 - bits)
        for recording in _RECORDINGS
        if recording.frames
    }
    assert bits > 0 and len(list(folder.glob("data/*/*.tar"))) == len(buckets)
    assert len({sample["__key__"] for sample in samples_in(folder)}) == 5
    assert verify_manifest(folder).is_valid


_EXPORT = """
import re, sys
from pathlib import Path
from recorder.exports.executor import InProcess
from tests.support.export_runs import export
from tests.support.sealed_sessions import make_runtime
def read_peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
runtime = make_runtime(Path(sys.argv[1]))
export(runtime, format="parquet", executor=InProcess(), workflow="login", frame_sampling={"mode": "all"})
before = read_peak()
export(runtime, format="webdataset", executor=InProcess(), frame_sampling={"mode": "all"})
print(read_peak() - before)
"""


@pytest.mark.parametrize("frames", [1, 1_000])
def test_payloads_take_a_few_times_their_size_in_memory(tmp_path: Path, frames: int) -> None:
    events, padding = 10_000, 5_000
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(workflow="login", frames=[0])])
    times = list(range(0, events, events // frames))
    seal(runtime, [Recording(frames=times, events=[(t, "click") for t in range(events)], padding=padding)])
    runtime.close()
    command = [sys.executable, "-c", _EXPORT, str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    # In all formats they are held once as they are read and once sorted; a sample is also held as JSON.
    assert int(ended.stdout) < (10 if frames == 1 else 5) * events * padding
