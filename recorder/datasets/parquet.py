"""Parquet files of a dataset, with bytes that depend on the rows alone. Spec §4.3 (format `parquet`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recorder import limits
from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.row_values import (
    EVENTS_AT_ONCE,
    FRAME_FACTS,
    SPLIT,
    WIDE_EVENTS,
    RowOutput,
    count_split_rows,
    expand_record_batch,
    fix_nulls,
    iterate_event_tables,
    iterate_frame_tables,
)
from recorder.datasets.schemas import EVENTS, FRAMES
from recorder.storage.blobs import Blobs

_LEVEL = 1
#: Larger than any row group of pictures that the writer makes.
_IMAGES_BYTES = 1024 * 1024 * 1024
#: Larger than any row group of events that the writer makes: each event at its limit, and room beside it.
_EVENTS_BYTES = 2 * EVENTS_AT_ONCE * limits.EVENT_BYTES


def write_events(events: pl.DataFrame, file: RowOutput) -> None:
    """Write events as a Parquet file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
        file: file to write to.
    """
    fix_nulls(events, EVENTS).lazy().sink_parquet(
        cast(IO[bytes], file),  # polars calls write and flush alone
        compression="zstd",
        compression_level=_LEVEL,
        row_group_size=EVENTS_AT_ONCE,
    )


def write_event_portions(portions: Iterator[pl.DataFrame], file: RowOutput) -> None:
    """Write events from portions as a Parquet file; no more than one row group is in memory.

    The row groups have 65,536 rows, or fewer with about 32 MiB of payloads.
    """
    with pq.ParquetWriter(file, WIDE_EVENTS, compression="zstd", compression_level=_LEVEL) as writer:
        for table in iterate_event_tables(portions):
            writer.write_table(table)


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: RowOutput) -> None:
    """Write frames with pictures as a Parquet file; no more than one row group is in memory.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
        blobs: store of the pictures.
        file: file to write to.
    """
    with pq.ParquetWriter(file, FRAMES, compression=_choose_frame_codecs()) as writer:
        for table in iterate_frame_tables(frames, blobs):
            writer.write_table(table)


def scan(paths: list[Path], fields: dict[str, str]) -> pl.LazyFrame:
    """Return the rows of Parquet files, lazily, in the order of the files."""
    return pl.scan_parquet(paths, glob=False, hive_partitioning=False)


def read_batches(
    path: Path,
    columns: list[str] | None = None,
    *,
    rows_at_once: int,
    start: int = 0,
    split: str | None = None,
    is_training: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in its order, in batches that stay small when expanded.

    Args:
        path: file to read.
        columns: columns to read, with `split` where a split is chosen; None reads all.
        rows_at_once: most rows of a batch.
        start: number of rows to skip; of the split, if there is one.
        split: yield the rows of this split only.
        is_training: read in one thread and without dictionaries, in two thirds of the time; one long value
            that many rows repeat is then in memory once per row of a batch.

    Raises:
        DatasetUnreadable: if a row group or a row is larger than any that the writer makes.
    """
    names = list(pq.read_schema(path).names) if columns is None else columns
    leaves = [name for name in names if name != "image"]
    leaves += ["image.bytes", "image.path"] if "image" in names else []
    limit = _IMAGES_BYTES if "image" in names else _EVENTS_BYTES
    use_threads = not is_training
    # A dictionary may repeat one long value in a thousand rows; it is expanded a few rows at a time.
    with pq.ParquetFile(path, read_dictionary=None if is_training else leaves) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            chunks = map(group.column, range(group.num_columns))
            size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in leaves)
            if size > limit:
                raise DatasetUnreadable(f"has a row group of {size} bytes")
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if split is not None:
                parts = file.iter_batches(EVENTS_AT_ONCE, [number], [SPLIT], use_threads=use_threads)
                rows = sum(count_split_rows(part, split) for part in parts)
            if start < rows:
                skip = start
                # Each group alone: Arrow makes no struct of a member with the dictionaries of two groups.
                for batch in file.iter_batches(rows_at_once, [number], leaves, use_threads=use_threads):
                    count = batch.num_rows if split is None else count_split_rows(batch, split)
                    if skip < count:
                        yield from expand_record_batch(batch, start=skip, split=split)
                    skip = max(0, skip - count)
            start = max(0, start - rows)


def _choose_frame_codecs() -> dict[str, str]:
    """Return the codec of each column: pictures are compressed already, the other columns gain."""
    columns = dict.fromkeys(FRAME_FACTS.names, "zstd")
    return columns | {"image.bytes": "none", "image.path": "zstd"}
