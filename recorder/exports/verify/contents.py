"""The rows of a file, with care: it may come from anywhere, and is read a portion at a time. Spec §2.5.

Of a row only that is read which the row set and the pictures are checked by.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recorder import limits
from recorder.exports.formats import FormatName
from recorder.rowset import EventKey

_ROWS_AT_ONCE = 10_000
_IMAGES_AT_ONCE = 16
#: No line and no row group of pictures that the writers make comes near it.
_PORTION_BYTES = 1024 * 1024 * 1024
#: As many as the writers put together, each as long as events get, and room beside that.
_EVENTS_BYTES = 2 * 65_536 * limits.EVENT_BYTES
#: What rows that are expanded together may come to; one row may be as long.
_EXPANDED_BYTES = 64 * 1024 * 1024
_LINE_BYTES = 16 * limits.EVENT_BYTES
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Their values may lie on each other, so that their buffers do not tell how long they are.
_UNUSED_TYPES = (pa.types.is_run_end_encoded, pa.types.is_string_view, pa.types.is_binary_view)
_TEXT, _BYTES = pa.large_string(), pa.large_binary()
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


class Unreadable(Exception):
    """A file is not what its format says; tells what is wrong, as the end of a sentence."""


class Event(NamedTuple):
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
        """The members that the row set covers."""
        return EventKey(*self[1:7])


class Frame(NamedTuple):
    """What the row set covers of a frame, and the digest of the picture that is there."""

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


@contextmanager
def told_apart() -> Iterator[None]:
    """Whatever a library says of a broken file, as `Unreadable`."""
    try:
        yield
    except Unreadable:
        raise
    except (pa.ArrowException, pl.exceptions.PolarsError, msgspec.MsgspecError) as error:
        raise Unreadable(f"cannot be read ({type(error).__name__})") from error
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError, MemoryError) as error:
        raise Unreadable(f"cannot be read ({type(error).__name__})") from error


def read_events(path: Path, format: FormatName) -> Iterator[Event]:
    """The events of a file, in its order.

    Raises:
        Unreadable: where it is broken.
    """
    with told_apart():
        if format == "jsonl":
            for line in _lines(path, _EventLine):
                ts_us = (line.ts - _EPOCH) // _MICROSECOND
                key = (line.event_id, line.t_ms, ts_us, line.type, line.frame_id, line.payload)
                bound = (line.bound_frame_id, line.frame_seq, line.is_action)
                yield Event(line.session_id, *key, *bound)
            return
        for batch in _BATCHES[format](path, _EVENT.names, _ROWS_AT_ONCE):
            rows = pl.DataFrame(_typed(batch, _EVENT)).with_columns(pl.col("ts").dt.epoch("us"))
            yield from map(Event._make, rows.iter_rows())


def read_frames(path: Path, format: FormatName) -> Iterator[Frame]:
    """The frames of a file, in its order, with the digest of each picture; JSONL has no pictures.

    Raises:
        Unreadable: where it is broken.
    """
    with told_apart():
        if format == "jsonl":
            for line in _lines(path, _FrameLine):
                yield Frame(line.session_id, line.frame_id, line.sha256, None)
            return
        for batch in _BATCHES[format](path, [*_FRAME.names, "image"], _IMAGES_AT_ONCE):
            rows = pl.DataFrame(_typed(batch, _FRAME)).iter_rows()
            for row, image_sha256 in zip(rows, _digests(batch.column("image")), strict=True):
                session_id, frame_id, sha256 = row
                yield Frame(session_id, frame_id, sha256, image_sha256)


def _lines(path: Path, kind: type[Any]) -> Iterator[Any]:
    """The rows of a JSONL file."""
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES + 1):
            number += 1
            if len(line) > _LINE_BYTES:
                raise Unreadable(f"has a line of more than {_LINE_BYTES} bytes (line {number})")
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise Unreadable(f"has no row of its kind in line {number}: {error}") from error


def _parquet_batches(path: Path, columns: list[str], at_once: int) -> Iterator[pa.RecordBatch]:
    # One long value that a thousand rows repeat takes a few bytes here, and is made a thousand only later,
    # by a few rows at a time.
    leaves = ["image.bytes" if name == "image" else name for name in columns]
    most = _PORTION_BYTES if "image" in columns else _EVENTS_BYTES
    with pq.ParquetFile(path, read_dictionary=leaves) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            chunks = map(group.column, range(group.num_columns))
            size = sum(one.total_uncompressed_size for one in chunks if one.path_in_schema in leaves)
            if size > most:
                raise Unreadable(f"has a row group of {size} bytes")
        for number in range(file.num_row_groups):
            # Each alone: Arrow gives no struct whose member has the dictionaries of two in one batch.
            for batch in file.iter_batches(batch_size=at_once, columns=leaves, row_groups=[number]):
                yield from _portions(batch)


def _portions(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in slices that stay small when they are expanded.

    Raises:
        Unreadable: if one row alone is too long.
    """
    size = sum(map(_expanded_bytes, batch.columns))
    if size <= _EXPANDED_BYTES:
        yield batch
    elif batch.num_rows == 1:
        raise Unreadable(f"has a row of {size} bytes")
    else:
        middle = batch.num_rows // 2
        yield from _portions(batch.slice(0, middle))
        yield from _portions(batch.slice(middle))


def _expanded_bytes(column: pa.Array) -> int:
    """What a column takes once each row has its own value."""
    if pa.types.is_struct(column.type):
        return sum(map(_expanded_bytes, column.flatten()))
    if any(is_one(column.type) for is_one in _UNUSED_TYPES):
        raise Unreadable(f"has a column of a type that no writer uses ({column.type})")
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    most = len(column) * int(pc.max(lengths).as_py() or 0)
    # Looking at each row takes time, and is seldom needed.
    return most if most <= _EXPANDED_BYTES // 8 else int(pc.sum(lengths.take(column.indices)).as_py() or 0)


def _arrow_batches(path: Path, columns: list[str], at_once: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(columns)
            # What lies in the buffers is taken as it is: lengths and offsets could lead anywhere.
            batch.validate(full=True)
            for start in range(0, batch.num_rows, at_once):
                yield from _portions(batch.slice(start, at_once))


_BATCHES: dict[str, Callable[[Path, list[str], int], Iterator[pa.RecordBatch]]] = {
    "parquet": _parquet_batches,
    "arrow": _arrow_batches,
}


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    columns = [_plain(batch.column(name)) for name in schema.names]
    return pa.table(columns, names=schema.names).cast(schema)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _digests(images: pa.StructArray) -> Iterator[str | None]:
    pictures = _plain(images.field("bytes")).cast(_BYTES)
    for is_there, picture in zip(images.is_valid(), pictures, strict=True):
        data = picture.as_buffer() if is_there.as_py() else None
        yield None if data is None else hashlib.sha256(data).hexdigest()
