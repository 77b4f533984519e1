"""Parquet files of a dataset, with bytes that depend on the rows alone. Spec §4.3 (format `parquet`)."""

from collections.abc import Iterator
from typing import IO, Protocol, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.exports.images import FILE_ENDINGS, Place, read_images
from recorder.exports.schemas import EVENTS, FRAMES, IMAGE
from recorder.storage.blobs import Blobs

# Fixed, since a writer that chooses for itself chooses by thread timing.
_ROW_GROUP = 65_536
_FRAMES_ROW_GROUP = 100
_FRAMES_ROW_GROUP_BYTES = 64 * 1024 * 1024
_LEVEL = 1
_FRAME_FACTS = pa.schema([field for field in FRAMES if field.name != "image"])


class Output(Protocol):
    """What a writer needs of a file."""

    def write(self, data: bytes, /) -> int:
        """Append bytes."""

    def flush(self) -> None:
        """Hand the bytes on."""


def write_events(events: pl.DataFrame, file: Output) -> None:
    """Write an events file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
    """
    events.select(EVENTS.names).with_columns(_blank_nulls(EVENTS)).lazy().sink_parquet(
        cast(IO[bytes], file),  # polars calls write and flush alone
        compression="zstd",
        compression_level=_LEVEL,
        row_group_size=_ROW_GROUP,
    )


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: Output) -> None:
    """Write a frames file with its pictures; no more than one row group of them is in memory.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
    """
    facts = frames.with_columns(_blank_nulls(_FRAME_FACTS))
    with pq.ParquetWriter(file, FRAMES, compression=_frames_compression()) as writer:
        for group in _row_groups(facts):
            table = group.select(_FRAME_FACTS.names).to_arrow().combine_chunks().cast(_FRAME_FACTS)
            writer.write_table(table.append_column(FRAMES.field("image"), _images(group, blobs)))


def _blank_nulls(schema: pa.Schema) -> list[pl.Expr]:
    """Expressions that put fixed values into the slots under nulls.

    Polars writes what lies there, and what lies there depends on threads and on the files read
    (docs/decisions/0011-deterministic-bytes.md).
    """
    return [
        pl.when(pl.col(field.name).is_not_null())
        .then(pl.col(field.name).fill_null("" if pa.types.is_string(field.type) else 0))
        .alias(field.name)
        for field in schema
        if field.nullable
    ]


def _frames_compression() -> dict[str, str]:
    """Pictures are compressed already; the other columns gain."""
    columns = dict.fromkeys(_FRAME_FACTS.names, "zstd")
    return columns | {"image.bytes": "none", "image.path": "zstd"}


def _row_groups(frames: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Slices of at most 100 rows and, but for a single larger picture, 64 MiB."""
    start = n_bytes = 0
    for index, length in enumerate(frames["length"]):
        if index > start and (
            index - start == _FRAMES_ROW_GROUP or n_bytes + length > _FRAMES_ROW_GROUP_BYTES
        ):
            yield frames[start:index]
            start, n_bytes = index, 0
        n_bytes += length
    if start < frames.height:
        yield frames[start:]


def _images(frames: pl.DataFrame, blobs: Blobs) -> pa.Array:
    places = [Place(*row) for row in frames.select("object", "offset", "length").iter_rows()]
    names = frames.select("session_id", "seq", "content_type").iter_rows()
    return pa.array(
        [
            None if data is None else {"bytes": data, "path": f"{session}-{seq:06d}.{FILE_ENDINGS[kind]}"}
            for data, (session, seq, kind) in zip(read_images(blobs, places), names, strict=True)
        ],
        type=IMAGE,
    )
