"""What JSON spells as text, turned back: instants and 64-bit hashes, in JSONL rows and in samples."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recorder.digest import sha256_of
from recorder.exports.verify.archives import Member, members_of
from recorder.exports.verify.contents import Unreadable
from recorder.loading.cache import Cache
from recorder.loading.errors import FileDamaged
from recorder.loading.manifest import Shard
from recorder.loading.sources import Source

_TYPES = {
    "string": pl.String(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "bool": pl.Boolean(),
}
_INSTANT, _HASH = "ts", "dhash"
_INSTANT_FORMAT = "%Y-%m-%dT%H:%M:%S%.fZ"


def text_schema(fields: dict[str, str]) -> dict[str, pl.DataType]:
    """The columns of a JSONL file as they are read; it has no pictures.

    Args:
        fields: type of each column, as the manifest names them.
    """
    return {name: _TYPES.get(type, pl.String()) for name, type in fields.items() if name != "image"}


def typed_columns(fields: dict[str, str]) -> list[pl.Expr]:
    """Expressions that give a JSONL file the values that the other formats have."""
    found = []
    if _INSTANT in fields:
        naive = pl.col(_INSTANT).str.to_datetime(_INSTANT_FORMAT, time_unit="us")
        found.append(naive.dt.replace_time_zone("UTC"))
    if _HASH in fields:
        found.append(pl.col(_HASH).str.to_integer(base=16, dtype=pl.UInt64))
    return found


def typed_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row of JSON with the values that the other formats have."""
    if isinstance(row.get(_INSTANT), str):
        row[_INSTANT] = datetime.fromisoformat(row[_INSTANT])
    if isinstance(row.get(_HASH), str):
        row[_HASH] = int(row[_HASH], 16)
    return row


Row = dict[str, Any]
#: Rows that are made at once; pictures make frames large.
_AT_ONCE = {"events": 4096, "frames": 64}
_SPLIT = "split"


def read_rows(
    path: Path, kind: str, *, start: int = 0, columns: list[str] | None = None, split: str | None = None
) -> Iterator[Row]:
    """The rows of a file from the `start`-th on, in the order in which they lie there.

    Args:
        start: how many rows to pass over; of the split, if there is one.
        columns: the members a row shall have; None for all.
        split: take the rows of this part alone.

    Raises:
        FileDamaged: where it is broken.
    """
    with _told(path):
        match path.suffix:
            case ".tar":
                yield from _samples(path, start, columns, split)
            case ".jsonl":
                yield from _lines(path, start, columns, split)
            case ".parquet":
                yield from _parquet_rows(path, kind, start, columns, split)
            case _:
                yield from _arrow_rows(path, kind, start, columns, split)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (Unreadable, pa.ArrowInvalid) as error:
        raise FileDamaged(path.name) from error


def count_rows(path: Path, kind: str, split: str) -> int:
    """How many rows of a file belong to a part."""
    if path.suffix == ".parquet":
        return _of_split(pq.read_table(path, columns=[_SPLIT], partitioning=None), split)
    return sum(1 for _ in read_rows(path, kind, columns=[_SPLIT], split=split))


def _parquet_rows(
    path: Path, kind: str, start: int, columns: list[str] | None, split: str | None
) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            if split is None:
                rows = file.metadata.row_group(group).num_rows
            else:
                rows = _of_split(file.read_row_group(group, [_SPLIT], use_threads=False), split)
            if start < rows:
                batches = file.iter_batches(
                    _AT_ONCE[kind], row_groups=[group], columns=_needed(columns, split), use_threads=False
                )
                yield from _rows(batches, start, columns, split)
            start = max(0, start - rows)


def _arrow_rows(
    path: Path, kind: str, start: int, columns: list[str] | None, split: str | None
) -> Iterator[Row]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            # What lies in the buffers is taken as it is: lengths and offsets could lead anywhere.
            batch.validate(full=True)
            rows = batch.num_rows if split is None else _of_split(batch, split)
            if start < rows:
                places = range(0, batch.num_rows, _AT_ONCE[kind])
                batches = (batch.slice(place, _AT_ONCE[kind]) for place in places)
                yield from _rows(batches, start, columns, split)
            start = max(0, start - rows)


def _rows(
    batches: Iterable[pa.RecordBatch], start: int, columns: list[str] | None, split: str | None
) -> Iterator[Row]:
    for batch in batches:
        kept = batch if split is None else batch.filter(pc.equal(batch[_SPLIT], split))
        wanted = kept.select(columns or kept.schema.names).slice(start)
        start = max(0, start - kept.num_rows)
        # Column by column: a third faster than `to_pylist` of the whole.
        names, values = wanted.schema.names, [column.to_pylist() for column in wanted.columns]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))


def _lines(path: Path, start: int, columns: list[str] | None, split: str | None) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in file:
            if split is None and start > 0:
                start -= 1
                continue
            row = orjson.loads(line)
            if split is not None and (row[_SPLIT] != split or (start := start - 1) >= 0):
                continue
            yield _chosen(typed_row(row), columns)


def _samples(path: Path, start: int, columns: list[str] | None, split: str | None) -> Iterator[Row]:
    with path.open("rb") as file:
        samples = groupby(members_of(file), key=lambda member: member.name.partition(".")[0])
        for place, (key, members) in enumerate(samples):
            if split is None and place < start:
                continue
            sample = _sample(file, key, members)
            if split is not None and (sample[_SPLIT] != split or (start := start - 1) >= 0):
                continue
            yield _chosen(sample, columns)


def _sample(archive: BinaryIO, key: str, members: Iterator[Member]) -> Row:
    frame: Row = {}
    image, events = None, []
    for member in members:
        data = archive.read(member.size)
        match member.name.removeprefix(f"{key}."):
            case "json":
                frame = typed_row(orjson.loads(data))
            case "events.json":
                events = [typed_row(event) for event in orjson.loads(data)]
            case _:
                image = {"bytes": data, "path": member.name}
    return {"__key__": key, **frame, "image": image, "events": events}


def _chosen(row: Row, columns: list[str] | None) -> Row:
    return row if columns is None else {name: row[name] for name in columns}


def _of_split(rows: pa.Table | pa.RecordBatch, split: str) -> int:
    return int(pc.sum(pc.equal(rows[_SPLIT], split)).as_py() or 0)


def _needed(columns: list[str] | None, split: str | None) -> list[str] | None:
    """The columns to read: those asked for, and that of the split."""
    if columns is None or split is None or _SPLIT in columns:
        return columns
    return [*columns, _SPLIT]


@dataclass(frozen=True)
class Files:
    """What reading rows needs; it can be sent to another process."""

    source: Source
    cache: Cache
    kind: str
    shards: list[Shard]
    split: str | None
    #: How many rows each file has; of the split, if there is one.
    rows: list[int]

    @classmethod
    def of(cls, source: Source, cache: Cache, kind: str, shards: list[Shard], split: str | None) -> "Files":
        """The files with their numbers of rows; for a split they are fetched and counted."""
        if split is None:
            return cls(source, cache, kind, shards, None, [shard.rows for shard in shards])
        rows = [count_rows(source.fetch(shard, cache), kind, split) for shard in shards]
        return cls(source, cache, kind, shards, split, rows)

    @property
    def identity(self) -> str:
        """What fixes the sequence of rows: the files, and what is taken of them."""
        return sha256_of([self.kind, self.split, [[shard.path, shard.sha256] for shard in self.shards]])

    def read(self, file: int, start: int, columns: list[str] | None) -> Iterator[Row]:
        """The rows of a file from the `start`-th on."""
        path = self.source.fetch(self.shards[file], self.cache)
        yield from read_rows(path, self.kind, start=start, columns=columns, split=self.split)
