"""Row functions that the formats share: nulls, ranges of pictures, splits, bounded batches, read errors.

Bytes depend on the rows alone only if nothing of their way through memory is left in them
(docs/decisions/0011-deterministic-bytes.md). Files that are read may be hostile: a batch is expanded a few
rows at a time.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple, Protocol

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.schemas import EVENTS, FRAMES, IMAGE
from recorder.storage.blobs import Blobs

#: Rows of a block of events: fixed, since a writer that chooses for itself chooses by thread timing.
EVENTS_AT_ONCE = 65_536
#: Size of the payloads after which such a block ends early, where it is written from portions.
PAYLOAD_BYTES_AT_ONCE = 32 * 1024 * 1024
#: `EVENTS` as polars writes them: every file of a dataset has the same types.
WIDE_EVENTS = pa.schema(
    [(field.name, pa.large_string() if pa.types.is_string(field.type) else field.type) for field in EVENTS]
)
#: Column with the split of a row.
SPLIT = "split"
_FRAMES_AT_ONCE = 100
_IMAGE_BYTES_AT_ONCE = 64 * 1024 * 1024
#: Largest gap between two wanted pictures that one request reads along.
_GAP_BYTES = 64 * 1024
#: Size of rows that are expanded together; one row may have as many bytes.
_EXPANDED_BYTES = 64 * 1024 * 1024
#: Their values may overlap, so that the size of their buffers does not bound their length.
_UNUSED_TYPES = (pa.types.is_run_end_encoded, pa.types.is_string_view, pa.types.is_binary_view)
#: The columns of a frame that are known without its picture.
FRAME_FACTS = pa.schema([field for field in FRAMES if field.name != "image"])
FILE_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}


class RowOutput(Protocol):
    """Methods of a file that a writer needs."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append bytes."""

    def flush(self) -> None:
        """Pass the bytes on."""


def fix_nulls(rows: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
    """Return the schema's columns with fixed values in the slots under nulls.

    Polars writes the values that are in these slots, and they depend on threads and on the files read.
    """
    return rows.select(
        pl.when(pl.col(field.name).is_not_null())
        .then(pl.col(field.name).fill_null("" if pa.types.is_string(field.type) else 0))
        .alias(field.name)
        if field.nullable
        else pl.col(field.name)
        for field in schema
    )


def iterate_event_tables(portions: Iterator[pl.DataFrame]) -> Iterator[pa.Table]:
    """Yield events as Arrow tables of one chunk with at most 65,536 rows, and about 32 MiB of payloads.

    Where a table ends depends on the rows alone, not on how they are divided into portions.

    Args:
        portions: columns of `EVENTS`, in the order of its sort key.
    """
    for rows in _join_event_portions(portions):
        yield fix_nulls(rows, EVENTS).to_arrow().cast(WIDE_EVENTS).combine_chunks()


def _join_event_portions(portions: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield events in portions of bounded rows and payload bytes, across the borders of the given ones."""
    joined: list[pl.DataFrame] = []
    rows = size = 0
    for portion in portions:
        sizes = portion["payload"].str.len_bytes().cast(pl.Int64).cum_sum()
        start = before = 0
        while start < portion.height:
            # The row that reaches the size is the last one.
            full = int(sizes.search_sorted(before + PAYLOAD_BYTES_AT_ONCE - size)) + 1
            end = min(full, start + EVENTS_AT_ONCE - rows, portion.height)
            joined.append(portion[start:end])
            rows, size = rows + end - start, size + int(sizes[end - 1]) - before
            start, before = end, int(sizes[end - 1])
            if rows == EVENTS_AT_ONCE or size >= PAYLOAD_BYTES_AT_ONCE:
                yield pl.concat(joined)
                joined, rows, size = [], 0, 0
    if joined:
        yield pl.concat(joined)


class ImageRange(NamedTuple):
    """Range of an object that holds one picture."""

    object: str
    offset: int
    length: int


def read_image_ranges(blobs: Blobs, ranges: list[ImageRange]) -> list[memoryview | None]:
    """Return the pictures in these ranges, in the same order, not copied; None where the object is gone.

    Neighbours in one object are read in one request.
    """
    images: dict[ImageRange, memoryview | None] = {}
    for run in _group_neighbouring_ranges(sorted(set(ranges))):
        images.update(_read_image_ranges_at_once(blobs, run))
    return [images[range] for range in ranges]


def iterate_frame_images(frames: pl.DataFrame, blobs: Blobs) -> Iterator[list[memoryview | None]]:
    """Yield the pictures of the frames, at most 100 and, but for a single larger one, 64 MiB at once.

    Args:
        frames: rows with `object`, `offset`, `length`.
        blobs: store of the pictures.

    Yields:
        Pictures in the order of the frames, not copied; None where the bytes are gone.
    """
    ranges = [ImageRange(*row) for row in frames.select("object", "offset", "length").iter_rows()]
    for start, end in _cut_pictures_by_size([range.length for range in ranges]):
        yield read_image_ranges(blobs, ranges[start:end])


def iterate_frame_tables(frames: pl.DataFrame, blobs: Blobs) -> Iterator[pa.Table]:
    """Yield the frames with their pictures as Arrow tables of one chunk, with the columns of `FRAMES`."""
    start = 0
    for images in iterate_frame_images(frames, blobs):
        part = frames[start : start + len(images)]
        start += len(images)
        table = fix_nulls(part, FRAME_FACTS).to_arrow().cast(FRAME_FACTS).combine_chunks()
        column = pa.array(
            [
                # Copied: pyarrow keeps a memoryview that it reads, and with it the whole pack, for good.
                None if data is None else {"bytes": bytes(data), "path": name}
                for data, name in zip(images, frame_image_names(part), strict=True)
            ],
            type=IMAGE,
        )
        yield table.append_column(FRAMES.field("image"), column)


def frame_keys(frames: pl.DataFrame) -> list[str]:
    """Return the key of each frame: its session and its `seq`."""
    return [f"{session}-{seq:06d}" for session, seq in frames.select("session_id", "seq").iter_rows()]


def frame_image_names(frames: pl.DataFrame) -> list[str]:
    """Return the file name of each frame's picture."""
    endings = [FILE_ENDINGS[kind] for kind in frames["content_type"]]
    return [f"{key}.{ending}" for key, ending in zip(frame_keys(frames), endings, strict=True)]


@contextmanager
def convert_row_read_errors() -> Iterator[None]:
    """Raise every error of a library about a broken file as `DatasetUnreadable`."""
    try:
        yield
    except DatasetUnreadable:
        raise
    except (
        pa.ArrowException,
        pl.exceptions.PolarsError,
        msgspec.MsgspecError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise DatasetUnreadable(f"cannot be read ({type(error).__name__})") from error


def expand_record_batch(
    batch: pa.RecordBatch, *, start: int = 0, split: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch without dictionaries, in slices that stay small.

    Args:
        batch: rows as they were read.
        start: number of rows to skip; of the split, if there is one.
        split: take the rows of this split only.

    Raises:
        DatasetUnreadable: if one row alone is too long.
    """
    for part in _split_into_bounded_slices(batch):
        columns = [_decode_dictionaries(column) for column in part.columns]
        rows = pa.RecordBatch.from_arrays(columns, names=part.schema.names)
        if split is not None:
            rows = rows.filter(make_row_split_mask(rows[SPLIT], split))
        if start < rows.num_rows:
            yield rows.slice(start)
        start = max(0, start - rows.num_rows)


def make_row_split_mask(column: pa.Array, split: str) -> pa.BooleanArray:
    """Return whether each row belongs to a split; a dictionary is not expanded."""
    if pa.types.is_dictionary(column.type):
        return pc.equal(column.dictionary, split).take(column.indices)
    return pc.equal(column, split)


def count_split_rows(batch: pa.RecordBatch, split: str) -> int:
    """Return the number of rows of a split."""
    return int(pc.sum(make_row_split_mask(batch[SPLIT], split)).as_py() or 0)


def _split_into_bounded_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch that take a bounded memory once their values are expanded."""
    size = sum(map(_count_expanded_bytes, batch.columns))
    if size <= _EXPANDED_BYTES:
        yield batch
    elif batch.num_rows == 1:
        raise DatasetUnreadable(f"has a row of {size} bytes")
    else:
        middle = batch.num_rows // 2
        yield from _split_into_bounded_slices(batch.slice(0, middle))
        yield from _split_into_bounded_slices(batch.slice(middle))


def _count_expanded_bytes(column: pa.Array) -> int:
    """Return the size of a column once each row has its own value."""
    if pa.types.is_struct(column.type):
        return sum(map(_count_expanded_bytes, column.flatten()))
    if any(is_unused(column.type) for is_unused in _UNUSED_TYPES):
        raise DatasetUnreadable(f"has a column of a type that no writer uses ({column.type})")
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    bound = len(column) * int(pc.max(lengths).as_py() or 0)
    # The exact sum visits each row; the bound is nearly always enough.
    return bound if bound <= _EXPANDED_BYTES // 8 else int(pc.sum(lengths.take(column.indices)).as_py() or 0)


def _decode_dictionaries(column: pa.Array) -> pa.Array:
    """Return a column with plain values in place of dictionary-encoded ones, also within structs."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if pa.types.is_struct(column.type) and any(pa.types.is_dictionary(field.type) for field in column.type):
        members = [_decode_dictionaries(column.field(index)) for index in range(column.type.num_fields)]
        names = [field.name for field in column.type]
        return pa.StructArray.from_arrays(members, names, mask=column.is_null())
    return column


def _cut_pictures_by_size(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of portions of pictures that are loaded together, by their sizes in bytes."""
    start = n_bytes = 0
    for index, length in enumerate(lengths):
        if index > start and (index - start == _FRAMES_AT_ONCE or n_bytes + length > _IMAGE_BYTES_AT_ONCE):
            yield start, index
            start, n_bytes = index, 0
        n_bytes += length
    if lengths:
        yield start, len(lengths)


def _group_neighbouring_ranges(ranges: Iterable[ImageRange]) -> Iterator[list[ImageRange]]:
    """Yield sorted ranges of one object in groups that one request reads."""
    for _, members in groupby(ranges, key=lambda range: range.object):
        run: list[ImageRange] = []
        for range in members:
            if run and range.offset - (run[-1].offset + run[-1].length) > _GAP_BYTES:
                yield run
                run = []
            run.append(range)
        yield run


def _read_image_ranges_at_once(blobs: Blobs, run: list[ImageRange]) -> dict[ImageRange, memoryview | None]:
    start = run[0].offset
    end = max(range.offset + range.length for range in run)
    try:
        data = memoryview(blobs.get(run[0].object, start, end - start))
    except KeyError:
        return dict.fromkeys(run)
    return {range: data[range.offset - start : range.offset - start + range.length] for range in run}
