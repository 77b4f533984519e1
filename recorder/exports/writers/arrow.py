"""Arrow IPC files of a dataset, in the file format, which is read at random. Spec §4.3 (format `arrow`)."""

from typing import IO, cast

import polars as pl
import pyarrow as pa

from recorder.exports.schemas import EVENTS, FRAMES
from recorder.exports.writers.rows import EVENTS_AT_ONCE, Output, fixed, frame_tables
from recorder.storage.blobs import Blobs


def write_events(events: pl.DataFrame, file: Output) -> None:
    """Write an events file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
    """
    fixed(events, EVENTS).lazy().sink_ipc(
        cast(IO[bytes], file),  # polars calls write and flush alone
        record_batch_size=EVENTS_AT_ONCE,
        # Newer forms of strings keep the layout that they had in memory.
        compat_level=pl.CompatLevel.oldest(),
    )


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: Output) -> None:
    """Write a frames file with its pictures; no more than one record batch of them is in memory.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
    """
    with pa.ipc.new_file(file, FRAMES) as writer:
        for table in frame_tables(frames, blobs):
            # Taking the rows packs the buffers, which would else be written as they lie in memory.
            writer.write_table(table.take(pa.array(range(table.num_rows))).combine_chunks())
