"""What the writers share: fixed slots under nulls, text forms for JSON, and frames a portion at a time.

Bytes depend on the rows alone only if nothing of their way through memory is left in them
(docs/decisions/0011-deterministic-bytes.md).
"""

from collections.abc import Iterator
from typing import Protocol

import polars as pl
import pyarrow as pa

from recorder.exports.schemas import FRAMES, IMAGE
from recorder.exports.writers.images import FILE_ENDINGS, Place, read_images
from recorder.storage.blobs import Blobs

#: Rows of a block of events: fixed, since a writer that chooses for itself chooses by thread timing.
EVENTS_AT_ONCE = 65_536
_FRAMES_AT_ONCE = 100
_IMAGE_BYTES_AT_ONCE = 64 * 1024 * 1024
#: The columns of a frame that are known without its picture.
FRAME_FACTS = pa.schema([field for field in FRAMES if field.name != "image"])


class Output(Protocol):
    """What a writer needs of a file."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append bytes."""

    def flush(self) -> None:
        """Hand the bytes on."""


def fixed(rows: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
    """The schema's columns, with fixed values in the slots under nulls.

    Polars writes what lies there, and what lies there depends on threads and on the files read.
    """
    return rows.select(
        pl.when(pl.col(field.name).is_not_null())
        .then(pl.col(field.name).fill_null("" if pa.types.is_string(field.type) else 0))
        .alias(field.name)
        if field.nullable
        else pl.col(field.name)
        for field in schema
    )


def json_forms(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows as JSON spells them: instants as ISO 8601 with `Z` and milliseconds, 64-bit hashes in hex.

    JavaScript loses whole numbers above 2^53, hence 16 hex digits for `dhash`.
    """
    forms = [pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")]
    if "dhash" in rows.columns:
        digits = rows["dhash"].fill_null(0).to_numpy().astype(">u8").tobytes().hex()
        texts = pl.Series(
            [digits[start : start + 16] for start in range(0, len(digits), 16)], dtype=pl.String
        )
        forms.append(pl.when(pl.col("dhash").is_not_null()).then(texts).alias("dhash"))
    return rows.with_columns(forms)


def image_portions(frames: pl.DataFrame, blobs: Blobs) -> Iterator[list[memoryview | None]]:
    """The pictures of the frames, at most 100 and, but for a single larger one, 64 MiB at once.

    Args:
        frames: with `object`, `offset`, `length`.

    Yields:
        Pictures in the order of the frames, not copied; None where the bytes are gone.
    """
    places = [Place(*row) for row in frames.select("object", "offset", "length").iter_rows()]
    for start, end in _portions([place.length for place in places]):
        yield read_images(blobs, places[start:end])


def frame_tables(frames: pl.DataFrame, blobs: Blobs) -> Iterator[pa.Table]:
    """The same as Arrow tables of one chunk, with the columns of `schemas.FRAMES`."""
    start = 0
    for images in image_portions(frames, blobs):
        part = frames[start : start + len(images)]
        start += len(images)
        table = fixed(part, FRAME_FACTS).to_arrow().cast(FRAME_FACTS).combine_chunks()
        column = pa.array(
            [
                # Copied: pyarrow keeps a memoryview that it reads, and with it the whole pack, for good.
                None if data is None else {"bytes": bytes(data), "path": name}
                for data, name in zip(images, image_names(part), strict=True)
            ],
            type=IMAGE,
        )
        yield table.append_column(FRAMES.field("image"), column)


def keys(frames: pl.DataFrame) -> list[str]:
    """What names each frame's files: session and place within it."""
    return [f"{session}-{seq:06d}" for session, seq in frames.select("session_id", "seq").iter_rows()]


def image_names(frames: pl.DataFrame) -> list[str]:
    """The file name of each frame's picture."""
    endings = [FILE_ENDINGS[kind] for kind in frames["content_type"]]
    return [f"{key}.{ending}" for key, ending in zip(keys(frames), endings, strict=True)]


def _portions(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Where each portion begins and ends."""
    start = n_bytes = 0
    for index, length in enumerate(lengths):
        if index > start and (index - start == _FRAMES_AT_ONCE or n_bytes + length > _IMAGE_BYTES_AT_ONCE):
            yield start, index
            start, n_bytes = index, 0
        n_bytes += length
    if lengths:
        yield start, len(lengths)
