"""Datasets load in one line with the tools that people have, and hold what was recorded. docs/loading.md."""

import gc
import io
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from PIL import Image

import recorder
from recorder.runtime import Runtime
from tests.support.databases import part_is_missing
from tests.support.export_runs import export
from tests.support.hosted_exports import WORKFLOWS, picture

ROW_FORMATS = ["parquet", "jsonl", "arrow"]
#: All rows of a dataset that is divided, in the words of Hugging Face `datasets`.
ALL = "train+validation+test"


@pytest.fixture(scope="module")
def frames(exports: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return all frames by id, as polars reads them from Parquet without us."""
    rows = pl.read_parquet(exports["parquet"] / "data" / "*" / "frames-*.parquet", hive_partitioning=False)
    return {row["frame_id"]: row for row in rows.iter_rows(named=True)}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with instants and days as text, as JSONL has them."""
    times = {"ts": row["ts"], "date": row["date"]}
    texts = {name: time if isinstance(time, str) else time.isoformat() for name, time in times.items()}
    return row | {"ts": texts["ts"][:19], "date": texts["date"][:10]}


def place(row: dict[str, Any]) -> tuple[str, int]:
    """Return the place of a row in its dataset."""
    return row["session_id"], row["seq"]


@pytest.mark.parametrize("format", [*ROW_FORMATS, "webdataset"])
def test_without_a_split_all_rows_are_train(hf: Any, sealed_sessions: Runtime, format: str) -> None:
    folder = export(sealed_sessions, workflow=WORKFLOWS, format=format, frame_sampling={"mode": "all"})
    loaded = hf.load_dataset(str(folder), split="train")
    rows = loaded["json"] if format == "webdataset" else loaded
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    assert len(loaded) == manifest["totals"]["rows"]
    assert {row["split"] for row in rows} == {"train"}


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_hugging_face_loads_events(
    hf: Any, exports: dict[str, Path], events: pl.DataFrame, format: str
) -> None:
    loaded = hf.load_dataset(str(exports[format]), "events", split=ALL)
    expected = [plain(row) for row in events.iter_rows(named=True)]
    assert sorted(map(plain, loaded), key=place) == sorted(expected, key=place)
    for split in ALL.split("+"):
        part = hf.load_dataset(str(exports[format]), "events", split=split)
        assert {row["split"] for row in part} == {split}
        assert len(part) == sum(row["split"] == split for row in expected)
    assert format != "jsonl" or isinstance(loaded[0]["date"], date), "a day is no instant"
    assert not isinstance(loaded[0]["date"], datetime)
    opened = recorder.open_export(exports[format]).hf(split="validation")
    assert [plain(row) for row in opened] == [row for row in expected if row["split"] == "validation"]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_hugging_face_loads_frames_with_decoded_pictures(
    hf: Any, exports: dict[str, Path], frames: dict[str, dict[str, Any]], format: str
) -> None:
    loaded = hf.load_dataset(str(exports[format]), "frames", split=ALL)
    assert {row["frame_id"] for row in loaded} == set(frames)
    row = loaded[7]
    assert row["image"].getpixel((0, 0)) == pixel(picture(row["session_id"], row["seq"]))
    streamed = recorder.open_export(exports[format]).hf("frames", split="test", streaming=True)
    expected = [name for name, frame in frames.items() if frame["split"] == "test"]
    assert [row["frame_id"] for row in streamed] == expected


def test_hugging_face_loads_frames_of_jsonl_without_pictures(
    hf: Any, exports: dict[str, Path], frames: dict[str, dict[str, Any]]
) -> None:
    loaded = hf.load_dataset(str(exports["jsonl"]), "frames", split=ALL)
    hashes = {row["frame_id"]: row["dhash"] for row in loaded}
    assert "image" not in loaded.column_names
    assert hashes == {
        name: None if row["dhash"] is None else f"{row['dhash']:016x}" for name, row in frames.items()
    }


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_rows_of_jsonl_have_the_values_of_other_formats(
    hf: Any, exports: dict[str, Path], events: pl.DataFrame, tmp_path: Path, streaming: bool
) -> None:
    lines, other = recorder.open_export(exports["jsonl"]), recorder.open_export(exports["parquet"])
    options = {"streaming": streaming, "cache_dir": tmp_path}
    assert [dict(row) for row in lines.hf(**options)] == list(events.iter_rows(named=True))
    rows = [dict(row) for row in lines.hf("frames", split="test", **options)]
    expected = other.polars("frames", split="test").drop("image").collect()
    assert rows == list(expected.iter_rows(named=True)) and any(row["dhash"] for row in rows)


def test_hugging_face_loads_samples(
    hf: Any, exports: dict[str, Path], frames: dict[str, dict[str, Any]]
) -> None:
    loaded = hf.load_dataset(str(exports["webdataset"]), "samples", split=ALL)
    assert {row["json"]["frame_id"] for row in loaded} == set(frames)
    row = loaded[5]["json"]
    assert loaded[5]["png"].getpixel((0, 0)) == pixel(picture(row["session_id"], row["seq"]))
    opened = recorder.open_export(exports["webdataset"]).hf(split="test")
    assert {row["json"]["split"] for row in opened} == {"test"}


# Its reader leaves files to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_samples(exports: dict[str, Path], frames: dict[str, dict[str, Any]]) -> None:
    import webdataset

    archives = [str(path) for path in sorted(exports["webdataset"].glob("data/*/samples-*.tar"))]
    samples = list(webdataset.WebDataset(archives, shardshuffle=False).decode("pil"))
    assert {sample["json"]["frame_id"] for sample in samples} == set(frames)
    sample = samples[3]
    frame = frames[sample["json"]["frame_id"]]
    assert sample["png"].getpixel((0, 0)) == pixel(frame["image"]["bytes"])
    assert len(sample["events.json"]) == frame["n_events"]
    opened = recorder.open_export(exports["webdataset"]).webdataset(split="train")
    parts = [orjson.loads(sample["json"])["split"] for sample in opened]
    assert (set(parts), len(parts)) == ({"train"}, sum(row["split"] == "train" for row in frames.values()))
    gc.collect()


def test_polars_and_duckdb_scan_files(exports: dict[str, Path], events: pl.DataFrame) -> None:
    folder = exports["parquet"]
    assert pl.scan_parquet(f"{folder}/data/*/events-*.parquet").collect().equals(events)
    types = f"SELECT type, count(*) FROM '{folder}/data/*/events-*.parquet' GROUP BY type ORDER BY type"
    lines = f"SELECT count(*), min(event_id) FROM '{exports['jsonl']}/data/*/events-*.jsonl'"
    # In a process of its own: it tells of leaks when a process ends that holds much else.
    program = "import json, sys, duckdb; print(json.dumps([duckdb.sql(q).fetchall() for q in sys.argv[1:]]))"
    done = subprocess.run([sys.executable, "-c", program, types, lines], capture_output=True, check=True)
    counted = [list(row) for row in events.group_by("type").len().sort("type").rows()]
    assert orjson.loads(done.stdout) == [counted, [[events.height, events["event_id"].min()]]]


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_polars_and_arrow_give_the_same_table_whatever_the_format(
    exports: dict[str, Path], events: pl.DataFrame, format: str
) -> None:
    dataset = recorder.open_export(exports[format])
    assert dataset.polars().collect().equals(events)
    expected = events.filter(pl.col("split") == "train")
    assert dataset.polars(split="train").collect().equals(expected)
    result = dataset.arrow(split="train")
    table = result.read_all() if format == "jsonl" else result.to_table()
    assert pl.DataFrame(table).equals(expected)


@pytest.mark.parametrize("format", ["parquet", "webdataset"])
def test_a_data_loader_with_two_workers_gives_batches(
    exports: dict[str, Path], frames: dict[str, dict[str, Any]], format: str
) -> None:
    try:
        from torch.utils.data import DataLoader
    except ImportError:
        part_is_missing("torch is not installed (pip install torch==2.13.0).")
    dataset = recorder.open_export(exports[format])
    kind = dataset.kinds[-1]
    loader = DataLoader(dataset.torch(kind, transform=decoded), batch_size=16, num_workers=2)
    batches = list(loader)
    assert sorted(name for batch in batches for name in batch["frame_id"]) == sorted(frames)
    assert batches[0]["red"].shape == (16,)
    reds = {
        name: int(red) for batch in batches for name, red in zip(batch["frame_id"], batch["red"], strict=True)
    }
    assert reds == {name: pixel(row["image"]["bytes"])[0] for name, row in frames.items()}


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Return the input of a training run for a frame."""
    return {"frame_id": row["frame_id"], "red": pixel(row["image"]["bytes"])[0]}


def pixel(data: bytes) -> Any:
    """Return the colour of a picture."""
    return Image.open(io.BytesIO(data)).getpixel((0, 0))
