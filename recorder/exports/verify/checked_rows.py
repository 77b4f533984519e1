"""Rows of a dataset's files for checks: the members that the row set and the pictures depend on. Spec §2.5.

Files may be hostile: a portion is read at a time.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa

from recorder.clock import EPOCH
from recorder.datasets import jsonl
from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.formats import FormatName
from recorder.datasets.row_values import convert_row_read_errors
from recorder.datasets.tables import TABLE_FORMATS
from recorder.row_digests import EventKey

_ROWS_AT_ONCE = 10_000
_IMAGES_AT_ONCE = 16
_MICROSECOND = timedelta(microseconds=1)
_TEXT = pa.large_string()
_EVENT = pa.schema(
    {
        "session_id": _TEXT,
        "event_id": _TEXT,
        "t_ms": pa.int64(),
        "ts": pa.timestamp("us", tz="UTC"),
        "type": _TEXT,
        "frame_id": _TEXT,
        "payload": _TEXT,
        "bound_frame_id": _TEXT,
        "frame_seq": pa.int64(),
        "is_action": pa.bool_(),
    }
)
_FRAME = pa.schema({"session_id": _TEXT, "frame_id": _TEXT, "sha256": _TEXT})


class VerifiedEvent(NamedTuple):
    """Members of an event row that are checked."""

    session_id: str
    event_id: str
    t_ms: int
    ts_us: int
    type: str
    frame_id: str | None
    payload: str
    bound_frame_id: str | None
    frame_seq: int | None
    is_action: bool

    @property
    def key(self) -> EventKey:
        """Members that the row set covers."""
        return EventKey(*self[1:7])


class VerifiedFrame(NamedTuple):
    """Members of a frame that the row set covers, and the digest of its picture."""

    session_id: str
    frame_id: str
    sha256: str
    image_sha256: str | None


class _EventLine(msgspec.Struct):
    session_id: str
    event_id: str
    t_ms: int
    ts: datetime
    type: str
    frame_id: str | None
    payload: str
    bound_frame_id: str | None
    frame_seq: int | None
    is_action: bool


class _FrameLine(msgspec.Struct):
    session_id: str
    frame_id: str
    sha256: str


def read_checked_events(path: Path, format: FormatName) -> Iterator[VerifiedEvent]:
    """Yield the events of a file, in its order.

    Raises:
        DatasetUnreadable: if the file is broken.
    """
    with convert_row_read_errors():
        if format == "jsonl":
            for line in _decode_checked_lines(path, _EventLine):
                ts_us = (line.ts - EPOCH) // _MICROSECOND
                key = (line.event_id, line.t_ms, ts_us, line.type, line.frame_id, line.payload)
                bound = (line.bound_frame_id, line.frame_seq, line.is_action)
                yield VerifiedEvent(line.session_id, *key, *bound)
            return
        for batch in _read_checked_batches(path, format, _EVENT.names, _ROWS_AT_ONCE):
            rows = pl.DataFrame(_cast_batch(batch, _EVENT)).with_columns(pl.col("ts").dt.epoch("us"))
            yield from map(VerifiedEvent._make, rows.iter_rows())


def read_checked_frames(path: Path, format: FormatName) -> Iterator[VerifiedFrame]:
    """Yield the frames of a file, in its order, with the digest of each picture; JSONL has no pictures.

    Raises:
        DatasetUnreadable: if the file is broken.
    """
    with convert_row_read_errors():
        if format == "jsonl":
            for line in _decode_checked_lines(path, _FrameLine):
                yield VerifiedFrame(line.session_id, line.frame_id, line.sha256, None)
            return
        for batch in _read_checked_batches(path, format, [*_FRAME.names, "image"], _IMAGES_AT_ONCE):
            rows = pl.DataFrame(_cast_batch(batch, _FRAME)).iter_rows()
            for row, image_sha256 in zip(rows, _hash_images(batch.column("image")), strict=True):
                yield VerifiedFrame._make((*row, image_sha256))


def _decode_checked_lines(path: Path, kind: type[Any]) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(jsonl.read_lines(path), 1):
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DatasetUnreadable(f"has no row of its kind in line {number}: {error}") from error


def _read_checked_batches(
    path: Path, format: FormatName, columns: list[str], rows_at_once: int
) -> Iterator[pa.RecordBatch]:
    module: Any = TABLE_FORMATS[format]
    yield from module.read_batches(path, columns, rows_at_once=rows_at_once)


def _cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a record batch of a checked file as a table of the schema that the format documents."""
    return pa.table([batch.column(name) for name in schema.names], names=schema.names).cast(schema)


def _hash_images(images: pa.StructArray) -> Iterator[str | None]:
    pictures = images.field("bytes").cast(pa.large_binary())
    for is_there, picture in zip(images.is_valid(), pictures, strict=True):
        data = picture.as_buffer() if is_there.as_py() else None
        yield None if data is None else hashlib.sha256(data).hexdigest()
