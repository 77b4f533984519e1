"""Content of the files of each format, against the recordings. Spec §4.3, contract §5."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pyarrow as pa
import pytest

from recorder.datasets import row_values as shared
from recorder.datasets.formats import FormatName
from recorder.datasets.schemas import SCHEMAS, describe_dataset_schema
from recorder.exports.verify import verify_manifest
from recorder.models.export_request import ExportFormat
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.tenant import Tenant
from tests.support.dataset_readers import FORMATS, ROW_FORMATS, Row, rows_in, samples_in
from tests.support.export_runs import export, manifest_of
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, picture, seal

_RECORDINGS = [
    Recording(frames=[0, 100, 600, 900], outcome=None),
    Recording(actor_kind=None, frames=[0, 400]),
    Recording(workflow="login", frames=[5], events=[(0, "navigate"), (7, "click")]),
    Recording(workflow="login", outcome="error"),
]
#: A session whose pictures have expired.
_EXPIRED = _RECORDINGS[1].session_id


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    opened = make_runtime(tmp_path_factory.mktemp("formats"))
    seal(opened, _RECORDINGS)
    opened.blobs.delete(f"frames/{WORKSPACE}/{_EXPIRED}/batch.pack")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def folders(runtime: Runtime) -> dict[str, Path]:
    """Return the folders of the same request in every format."""
    body: dict[str, Any] = {"workflow": ["checkout", "login"], "filter": {"until": "2026-06-01T00:00:00Z"}}
    return {format: export(runtime, format=format, **body) for format in FORMATS}


def _lake(runtime: Runtime, kind: Any) -> list[Row]:
    """Return the rows that sealing left, by workflow, session and position."""
    rows = runtime.lake.scan(kind, Tenant(WORKSPACE, "live")).collect()
    return rows.sort("workflow", "session_id", "seq").to_dicts()


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_events_are_as_they_were_recorded(runtime: Runtime, folders: dict[str, Path], format: str) -> None:
    of_session = {item.session_id: item for item in _RECORDINGS}
    ids = {(frame["session_id"], frame["seq"]): frame["frame_id"] for frame in _lake(runtime, "frames")}
    expected = [
        {"workspace": WORKSPACE, **_without(row, "bucket")}
        | {"bound_frame_id": ids.get((row["session_id"], row["frame_seq"]))}
        | {"outcome": of_session[row["session_id"]].outcome}
        | {"actor_kind": of_session[row["session_id"]].actor_kind}
        for row in _lake(runtime, "events")
    ]
    rows = rows_in(folders[format], "events")
    assert [_without(row, "split") for row in rows] == expected
    assert {row["split"] for row in rows} <= {"train", "validation", "test"}


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_frames_are_as_they_were_recorded(runtime: Runtime, folders: dict[str, Path], format: str) -> None:
    kept = [field.name for field in SCHEMAS["jsonl"]["frames"] if field.name not in ("workspace", "split")]
    expected = []
    for row in _lake(runtime, "frames"):
        if row["n_events"]:
            dhash = None if row["dhash"] is None else row["dhash"] % 2**64
            expected.append({"workspace": WORKSPACE} | {name: row[name] for name in kept} | {"dhash": dhash})
    rows = rows_in(folders[format], "frames")
    assert [_without(row, "image", "split") for row in rows] == expected
    assert ("image" in rows[0]) is (format != "jsonl")


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_frames_carry_their_pictures_until_these_expire(folders: dict[str, Path], format: str) -> None:
    for row in rows_in(folders[format], "frames"):
        session_id, seq = row["session_id"], row["seq"]
        there = {"bytes": picture(session_id, seq), "path": f"{session_id}-{seq:06d}.png"}
        assert row["image"] == (None if session_id == _EXPIRED else there)


def test_json_has_instants_in_milliseconds_and_hashes_in_hex(folders: dict[str, Path]) -> None:
    lines = "".join(path.read_text() for path in folders["jsonl"].glob("data/*/frames-*"))
    assert '"ts":"2026-05-01T08:00:00.100Z"' in lines
    assert '"dhash":"fffffffffffffffd"' in lines
    assert '"dhash":null' in lines


def test_the_formats_of_rows_hold_one_row_set(folders: dict[str, Path]) -> None:
    reports = {format: verify_manifest(folder) for format, folder in folders.items()}
    assert [report.problems for report in reports.values()] == [[]] * 4
    assert len({reports[format].row_set_sha256 for format in ROW_FORMATS}) == 1
    assert reports["webdataset"].row_set_sha256 != reports["jsonl"].row_set_sha256


@pytest.mark.parametrize("format", FORMATS)
def test_the_manifest_describes_the_columns_that_the_files_have(
    folders: dict[str, Path], format: ExportFormat
) -> None:
    schema = manifest_of(folders[format])["schema"]
    if format == "webdataset":
        frame, events = schema["samples"]["fields"][-2:]
        sample = next(item for item in samples_in(folders[format]) if item["events.json"] != b"[]")
        for field, row in (
            (frame, json.loads(sample["json"])),
            (events, json.loads(sample["events.json"])[0]),
        ):
            assert sorted(member["name"] for member in field["fields"]) == list(row)
        return
    for kind in ("events", "frames"):
        described = {field["name"]: field for field in schema[kind]["fields"]}
        rows = rows_in(folders[format], kind)
        assert list(described) == list(rows[0])
        with_null = {name for row in rows for name, value in row.items() if value is None}
        assert with_null == {name for name, field in described.items() if field["nullable"]}, "all were tried"


def test_json_is_described_by_the_types_it_has() -> None:
    types = {field["name"]: field["type"] for field in describe_dataset_schema("frames", "jsonl")}
    assert (types["ts"], types["dhash"], types["seq"]) == ("string", "string", "int32")


def test_readers_and_requests_know_the_same_formats() -> None:
    assert get_args(FormatName) == get_args(ExportFormat)


_SAMPLINGS: list[dict[str, Any]] = [
    {"mode": "event_only"},
    {"mode": "every_n_ms", "interval_ms": 500},
    {"mode": "keyframes_only"},
    {"mode": "all"},
]


@pytest.fixture(scope="module")
def long_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    opened = make_runtime(tmp_path_factory.mktemp("sampled"))
    clicks = [(t_ms, "click" if t_ms % 3 else "scroll") for t_ms in range(40, 3_000, 410)]
    seal(opened, [Recording(frames=list(range(0, 3_000, 130)), events=clicks) for _ in range(3)])
    yield opened
    opened.close()


def _expected_frames(frames: list[Row], sampling: dict[str, Any], keep_actions: bool) -> list[str]:
    """Return the frames that the rules of the specification choose, frame by frame."""
    results, slots = [], set()
    for frame in frames:
        slot = frame["session_id"], frame["t_ms"] // sampling.get("interval_ms", 1)
        taken = {
            "event_only": frame["n_events"] > 0,
            "every_n_ms": slot not in slots,
            "keyframes_only": frame["is_keyframe"],
            "all": True,
        }[sampling["mode"]]
        slots.add(slot)
        if taken or (keep_actions and frame["has_action"]):
            results.append(frame["frame_id"])
    return results


@pytest.mark.parametrize("keep_actions", [False, True])
@pytest.mark.parametrize("sampling", _SAMPLINGS, ids=lambda sampling: sampling["mode"])
def test_a_sampling_takes_the_frames_that_its_rule_names(
    long_runtime: Runtime, sampling: dict[str, Any], keep_actions: bool
) -> None:
    body = sampling | {"keep_action_frames": keep_actions}
    output = rows_in(export(long_runtime, format="jsonl", frame_sampling=body), "frames")
    expected = _expected_frames(_lake(long_runtime, "frames"), sampling, keep_actions)
    assert [row["frame_id"] for row in output] == expected


def _one_kind(count: int, length: int) -> pl.DataFrame:
    frames: dict[str, Any] = {"object": ["gone"] * count, "offset": [0] * count, "length": [length] * count}
    return pl.DataFrame(frames)


@pytest.mark.parametrize(("length", "sizes"), [(10, [100, 100, 50]), (30 * 2**20, [2] * 125)])
def test_no_more_pictures_are_read_at_once_than_memory_is_meant_for(
    tmp_path: Path, length: int, sizes: list[int]
) -> None:
    portions = shared.iterate_frame_images(_one_kind(250, length), Blobs(str(tmp_path)))
    assert [len(images) for images in portions] == sizes


def test_blocks_of_arrow_frames_are_as_bounded_as_row_groups(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(frames=list(range(0, 1_000, 4)))])
    folder = export(runtime, format="arrow", frame_sampling={"mode": "all"})
    with pa.ipc.open_file(next(folder.glob("data/*/frames-*"))) as file:
        assert [file.get_batch(index).num_rows for index in range(file.num_record_batches)] == [100, 100, 50]
