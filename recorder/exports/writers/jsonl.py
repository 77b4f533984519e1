"""JSONL files of a dataset: one row per line, without pictures. Spec §4.3 (format `jsonl`)."""

from typing import IO, cast

import polars as pl

from recorder.exports.schemas import EVENTS
from recorder.exports.writers.rows import FRAME_FACTS, Output, json_forms
from recorder.storage.blobs import Blobs


def write_events(events: pl.DataFrame, file: Output) -> None:
    """Write an events file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
    """
    _write(events.select(EVENTS.names), file)


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: Output) -> None:
    """Write a frames file; the pictures stay where they are and have addresses of their own.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, in the order of its sort key.
    """
    _write(frames.select(FRAME_FACTS.names), file)


def _write(rows: pl.DataFrame, file: Output) -> None:
    json_forms(rows).lazy().sink_ndjson(cast(IO[bytes], file))  # polars calls write and flush alone
