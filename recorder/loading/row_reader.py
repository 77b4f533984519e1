"""Rows of a dataset's files one by one, from any row on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recorder.datasets import jsonl, parquet, webdataset
from recorder.datasets.errors import DatasetUnreadable, FileDamaged
from recorder.datasets.manifest import Shard
from recorder.datasets.row_values import EVENTS_AT_ONCE, SPLIT, convert_row_read_errors
from recorder.datasets.sources import DatasetSource
from recorder.datasets.tables import TABLE_FORMATS
from recorder.hashing import compute_sha256
from recorder.loading.cache import Cache

DatasetRow = dict[str, Any]
#: Rows that are made at once; pictures make frames large.
_ROWS_AT_ONCE = {"events": 4096, "frames": 64}


def read_dataset_file_rows(
    path: Path, kind: str, *, start: int = 0, columns: list[str] | None = None, split: str | None = None
) -> Iterator[DatasetRow]:
    """Yield the rows of a file from the `start`-th on, in the order of the file.

    Args:
        path: file to read.
        kind: kind of its rows.
        start: number of rows to skip; of the split, if there is one.
        columns: members that a row has; None for all.
        split: yield the rows of this split only.

    Raises:
        FileDamaged: if the file is broken.
    """
    with _convert_errors_of_damaged_file(path):
        yield from _read_file_rows(path, kind, start=start, columns=columns, split=split)


def _read_file_rows(
    path: Path, kind: str, *, start: int, columns: list[str] | None, split: str | None
) -> Iterator[DatasetRow]:
    match path.suffix:
        case ".tar":
            rows: Iterable[DatasetRow] = webdataset.read_webdataset_rows(path, start=start, split=split)
        case ".jsonl":
            rows = jsonl.read_jsonl_rows(path, start=start, split=split)
        case suffix:
            module: Any = TABLE_FORMATS[suffix.removeprefix(".")]
            batches = module.read_batches(
                path,
                _add_split_column_to_read(columns, split),
                rows_at_once=_ROWS_AT_ONCE[kind],
                start=start,
                split=split,
                is_training=True,
            )
            yield from _convert_batches_to_rows(batches, columns)
            return
    yield from rows if columns is None else ({name: row[name] for name in columns} for row in rows)


def _count_dataset_file_rows(path: Path, kind: str, split: str) -> int:
    if path.suffix != ".parquet":
        return sum(1 for _ in read_dataset_file_rows(path, kind, columns=[SPLIT], split=split))
    with _convert_errors_of_damaged_file(path):
        batches = parquet.read_batches(path, [SPLIT], rows_at_once=EVENTS_AT_ONCE, split=split)
        return sum(batch.num_rows for batch in batches)


@contextmanager
def _convert_errors_of_damaged_file(path: Path) -> Iterator[None]:
    """Raise every error of a library about the bytes of a file as `FileDamaged`; errors of the disk stay."""
    try:
        with convert_row_read_errors():
            yield
    except DatasetUnreadable as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
            raise error.__cause__ from None
        raise FileDamaged(path.name) from error


def _convert_batches_to_rows(
    batches: Iterable[pa.RecordBatch], columns: list[str] | None
) -> Iterator[DatasetRow]:
    for batch in batches:
        rows = batch if columns is None else batch.select(columns)
        # Column by column: a third faster than `to_pylist` of the whole.
        names, values = rows.schema.names, [column.to_pylist() for column in rows.columns]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))


def _add_split_column_to_read(columns: list[str] | None, split: str | None) -> list[str] | None:
    """Return the columns to read: those of the rows, and that of the split."""
    if columns is None or split is None or SPLIT in columns:
        return columns
    return [*columns, SPLIT]


@dataclass(frozen=True)
class RowFiles:
    """Files of one kind with their numbers of rows; they can be sent to another process."""

    source: DatasetSource
    cache: Cache
    kind: str
    shards: list[Shard]
    split: str | None
    #: Number of rows of each file; of the split, if there is one.
    rows: list[int]

    @classmethod
    def open(
        cls, source: DatasetSource, cache: Cache, kind: str, shards: list[Shard], split: str | None
    ) -> "RowFiles":
        """Return the files with their numbers of rows; files of several splits are fetched and counted."""
        rows = [
            shard.rows
            if split in (None, shard.split)
            else _count_dataset_file_rows(cache.fetch(source, shard), kind, split)
            for shard in shards
        ]
        return cls(source, cache, kind, shards, split, rows)

    @property
    def identity(self) -> str:
        """Digest of the files and the split, which fix the sequence of rows."""
        return compute_sha256([self.kind, self.split, [[shard.path, shard.sha256] for shard in self.shards]])

    def read(self, file: int, start: int, columns: list[str] | None) -> Iterator[DatasetRow]:
        """Yield the rows of a file from the `start`-th on."""
        path = self.cache.fetch(self.source, self.shards[file])
        yield from read_dataset_file_rows(path, self.kind, start=start, columns=columns, split=self.split)
