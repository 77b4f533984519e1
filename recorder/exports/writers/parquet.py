"""Parquet files of a dataset, with bytes that depend on the rows alone. Spec §4.3 (format `parquet`)."""

from typing import IO, cast

import polars as pl
import pyarrow.parquet as pq

from recorder.exports.schemas import EVENTS, FRAMES
from recorder.exports.writers.rows import EVENTS_AT_ONCE, FRAME_FACTS, Output, fixed, frame_tables
from recorder.storage.blobs import Blobs

_LEVEL = 1


def write_events(events: pl.DataFrame, file: Output) -> None:
    """Write an events file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
    """
    fixed(events, EVENTS).lazy().sink_parquet(
        cast(IO[bytes], file),  # polars calls write and flush alone
        compression="zstd",
        compression_level=_LEVEL,
        row_group_size=EVENTS_AT_ONCE,
    )


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: Output) -> None:
    """Write a frames file with its pictures; no more than one row group of them is in memory.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
    """
    with pq.ParquetWriter(file, FRAMES, compression=_frames_compression()) as writer:
        for table in frame_tables(frames, blobs):
            writer.write_table(table)


def _frames_compression() -> dict[str, str]:
    """Pictures are compressed already; the other columns gain."""
    columns = dict.fromkeys(FRAME_FACTS.names, "zstd")
    return columns | {"image.bytes": "none", "image.path": "zstd"}
