"""Rows of a dataset as plain Python, by readers that are not ours; JSON's texts are turned back."""

import json
import tarfile
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROW_FORMATS = ("parquet", "jsonl", "arrow")
FORMATS = (*ROW_FORMATS, "webdataset")
Row = dict[str, Any]


def rows_in(folder: Path, kind: str) -> list[Row]:
    """Return all rows of a kind of file, in the order of path and file."""
    return [row for path in sorted(folder.glob(f"data/*/{kind}-*")) for row in _rows(path)]


def samples_in(folder: Path) -> list[dict[str, bytes]]:
    """Return all samples as `tarfile` gives them: `__key__` and members by ending."""
    return [sample for path in sorted(folder.glob("data/*/samples-*.tar")) for sample in _samples(path)]


def typed(row: Row) -> Row:
    """Return a row of JSON with instants and numbers in place of texts."""
    hash_text = {"dhash": row["dhash"] and int(row["dhash"], 16)} if "dhash" in row else {}
    return row | {"ts": datetime.fromisoformat(row["ts"])} | hash_text


def _rows(path: Path) -> list[Row]:
    match path.suffix:
        case ".parquet":
            return pq.ParquetFile(path).read().to_pylist()
        case ".arrow":
            return pa.ipc.open_file(path).read_all().to_pylist()
        case _:
            return [typed(json.loads(line)) for line in path.read_text().splitlines()]


def _samples(path: Path) -> Iterator[dict[str, bytes]]:
    with tarfile.open(path) as archive:
        for key, members in groupby(archive, key=lambda member: member.name.split(".", 1)[0]):
            sample = {member.name.removeprefix(f"{key}."): member for member in members}
            contents = {ending: archive.extractfile(member) for ending, member in sample.items()}
            yield {"__key__": key.encode()} | {
                ending: file.read() for ending, file in contents.items() if file is not None
            }
