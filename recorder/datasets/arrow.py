"""Arrow IPC files of a dataset, in the random-access file format. Spec §4.3 (format `arrow`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import polars as pl
import pyarrow as pa

from recorder.datasets.row_values import (
    EVENTS_AT_ONCE,
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


def write_events(events: pl.DataFrame, file: RowOutput) -> None:
    """Write events as an Arrow IPC file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
        file: file to write to.
    """
    fix_nulls(events, EVENTS).lazy().sink_ipc(
        cast(IO[bytes], file),  # polars calls write and flush alone
        record_batch_size=EVENTS_AT_ONCE,
        # Newer forms of strings keep the layout that they had in memory.
        compat_level=pl.CompatLevel.oldest(),
    )


def write_event_portions(portions: Iterator[pl.DataFrame], file: RowOutput) -> None:
    """Write events from portions as an Arrow IPC file; no more than one record batch is in memory.

    The batches have 65,536 rows, or fewer with about 32 MiB of payloads.
    """
    with pa.ipc.new_file(file, WIDE_EVENTS) as writer:
        for table in iterate_event_tables(portions):
            writer.write_table(_pack_buffers(table))


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: RowOutput) -> None:
    """Write frames with pictures as an Arrow IPC file; no more than one record batch is in memory.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
        blobs: store of the pictures.
        file: file to write to.
    """
    with pa.ipc.new_file(file, FRAMES) as writer:
        for table in iterate_frame_tables(frames, blobs):
            writer.write_table(_pack_buffers(table))


def _pack_buffers(table: pa.Table) -> pa.Table:
    """Return the rows in packed buffers; otherwise buffers are written as they are in memory."""
    return table.take(pa.array(range(table.num_rows))).combine_chunks()


def scan(paths: list[Path], fields: dict[str, str]) -> pl.LazyFrame:
    """Return the rows of Arrow IPC files, lazily, in the order of the files."""
    return pl.scan_ipc(paths, glob=False, hive_partitioning=False)


def read_batches(
    path: Path,
    columns: list[str] | None = None,
    *,
    rows_at_once: int,
    start: int = 0,
    split: str | None = None,
    is_training: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow IPC file in its order, in batches that stay small when expanded.

    The arguments are those of `parquet.read_batches`; `is_training` changes nothing.

    Raises:
        DatasetUnreadable: if a row is larger than any that the writer makes.
    """
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            batch = batch if columns is None else batch.select(columns)
            # Buffers are mapped without a check: lengths and offsets could point anywhere.
            batch.validate(full=True)
            for first in range(0, batch.num_rows, rows_at_once):
                part = batch.slice(first, rows_at_once)
                count = part.num_rows if split is None else count_split_rows(part, split)
                if start < count:
                    yield from expand_record_batch(part, start=start, split=split)
                start = max(0, start - count)
