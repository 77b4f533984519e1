"""Datasets in folders whose names have characters with a meaning to reading libraries. docs/loading.md."""

import gc
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import recorder
from recorder.datasets.errors import NotInDataset

TABLES = ["parquet", "arrow", "jsonl"]
NAMES = ["run[1]", "run*", "run?", "run{1,2}", "run#1", "50%25", "a::b", "x y"]


def place_between_siblings(exported: Path, parent: Path, name: str) -> Path:
    """Copy a dataset to a folder, beside folders with other rows that its name matches as a glob."""
    shutil.copytree(exported, parent / name)
    for sibling in ("run1", "run2", "runs"):
        shutil.copytree(exported, parent / sibling)
        first, *others = sorted((parent / sibling).glob("data/*/[es]*-train-*"))
        for other in others:
            shutil.copyfile(first, other)
    return parent / name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", TABLES)
def test_tables_are_read_from_the_folder_of_that_name(
    exports: dict[str, Path], events: pl.DataFrame, tmp_path: Path, format: str, name: str
) -> None:
    dataset = recorder.open_export(str(place_between_siblings(exports[format], tmp_path, name)))
    assert dataset.polars().collect().equals(events)
    table = dataset.arrow().read_all() if format == "jsonl" else dataset.arrow().to_table()
    assert pl.DataFrame(table).equals(events)
    assert len(list(dataset.torch())) == events.height
    assert dataset.verify().problems == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "a::b"])
@pytest.mark.parametrize("format", [*TABLES, "webdataset"])
def test_hugging_face_reads_the_folder_of_that_name(
    hf: Any, exports: dict[str, Path], tmp_path: Path, format: str, name: str
) -> None:
    dataset = recorder.open_export(place_between_siblings(exports[format], tmp_path / "sets", name))
    loaded = dataset.hf(cache_dir=tmp_path / "cache")
    rows = loaded["json"] if format == "webdataset" else loaded
    assert [(row["session_id"], row["t_ms"]) for row in rows] == [
        (row["session_id"], row["t_ms"]) for row in dataset.torch()
    ]


def test_hugging_face_refuses_names_that_it_reads_as_something_else(
    hf: Any, exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN", "run1")
    for name in ("a::b", "$RUN"):
        folder = place_between_siblings(exports["parquet"], tmp_path / name[0], name)
        with pytest.raises(NotInDataset, match=rf"does not open the path {re.escape(str(folder))}.*Rename"):
            recorder.open_export(folder).hf()


# Its reader leaves files to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_all_names_but_those_that_it_cuts(exports: dict[str, Path], tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        folder = place_between_siblings(exports["webdataset"], tmp_path / str(number), name)
        dataset = recorder.open_export(folder)
        if "?" in name or "#" in name:
            with pytest.raises(NotInDataset, match=r"webdataset does not open the path .* torch\(\)"):
                dataset.webdataset()
        else:
            assert sum(1 for _ in dataset.webdataset()) == dataset.rows
    gc.collect()
