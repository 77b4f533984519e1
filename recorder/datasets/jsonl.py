"""JSONL files of a dataset: one row per line, without pictures. Spec §4.3 (format `jsonl`).

JSON has no instants and loses digits of large numbers: both are written as text, and readers convert them.
"""

from collections.abc import Iterator
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import IO, Any, cast

import orjson
import polars as pl

from recorder import limits
from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.row_values import FRAME_FACTS, SPLIT, RowOutput
from recorder.datasets.schemas import EVENTS
from recorder.storage.blobs import Blobs

#: Longest line that is read.
_LINE_BYTES = 16 * limits.EVENT_BYTES
_TYPES = {
    "string": pl.String(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "bool": pl.Boolean(),
}
_INSTANT, _HASH = "ts", "dhash"
_INSTANT_FORMAT = "%Y-%m-%dT%H:%M:%S%.fZ"


def write_events(events: pl.DataFrame, file: RowOutput) -> None:
    """Write events as a JSON Lines file.

    Args:
        events: columns of `schemas.EVENTS`, in the order of its sort key.
        file: file to write to.
    """
    _write_jsonl_rows(events.select(EVENTS.names), file)


def write_event_portions(portions: Iterator[pl.DataFrame], file: RowOutput) -> None:
    """Write events from portions as a JSON Lines file; the bytes are those of `write_events`."""
    for portion in portions:
        write_events(portion, file)


def write_frames(frames: pl.DataFrame, blobs: Blobs, file: RowOutput) -> None:
    """Write frames as a JSON Lines file, without pictures, which have addresses of their own.

    Args:
        frames: columns of `schemas.FRAMES` but `image`, in the order of its sort key.
        blobs: store of the pictures; not read.
        file: file to write to.
    """
    _write_jsonl_rows(frames.select(FRAME_FACTS.names), file)


def json_forms(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with JSON's spelling: instants as ISO 8601 with `Z` and milliseconds, hashes in hex.

    JavaScript loses whole numbers above 2^53, hence 16 hex digits for `dhash`.
    """
    forms = [pl.col(_INSTANT).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")]
    if _HASH in rows.columns:
        digits = rows[_HASH].fill_null(0).to_numpy().astype(">u8").tobytes().hex()
        texts = pl.Series(
            [digits[start : start + 16] for start in range(0, len(digits), 16)], dtype=pl.String
        )
        forms.append(pl.when(pl.col(_HASH).is_not_null()).then(texts).alias(_HASH))
    return rows.with_columns(forms)


def scan(paths: list[Path], fields: dict[str, str]) -> pl.LazyFrame:
    """Return the rows of JSON Lines files, lazily, in their order, with the values of other formats.

    Args:
        paths: files to read.
        fields: type of each column, as the manifest names them.
    """
    # This reader always takes its paths as globs.
    escaped = [escape(str(path)) for path in paths]
    return pl.scan_ndjson(escaped, schema=jsonl_text_schema(fields)).with_columns(
        _make_typed_jsonl_columns(fields)
    )


def make_empty_jsonl_rows(fields: dict[str, str]) -> pl.LazyFrame:
    """Return no rows, with the columns that `scan` returns."""
    return pl.LazyFrame(schema=jsonl_text_schema(fields)).with_columns(_make_typed_jsonl_columns(fields))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a JSON Lines file.

    Raises:
        DatasetUnreadable: if a line is longer than any that the writer makes.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES + 1):
            number += 1
            if len(line) > _LINE_BYTES:
                raise DatasetUnreadable(f"has a line of more than {_LINE_BYTES} bytes (line {number})")
            yield line


def read_jsonl_rows(path: Path, *, start: int = 0, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file, in its order, with the values that other formats have.

    Args:
        path: file to read.
        start: number of rows to skip; of the split, if there is one.
        split: yield the rows of this split only.

    Raises:
        DatasetUnreadable: if a line is longer than any that the writer makes.
    """
    for line in read_lines(path):
        if split is None and start > 0:
            start -= 1
            continue
        row = orjson.loads(line)
        if split is not None and (row[SPLIT] != split or (start := start - 1) >= 0):
            continue
        yield typed_jsonl_row(row)


def typed_jsonl_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return one row of JSON with the values that the other formats have."""
    if isinstance(row.get(_INSTANT), str):
        row[_INSTANT] = datetime.fromisoformat(row[_INSTANT])
    if isinstance(row.get(_HASH), str):
        row[_HASH] = int(row[_HASH], 16)
    return row


def _write_jsonl_rows(rows: pl.DataFrame, file: RowOutput) -> None:
    json_forms(rows).lazy().sink_ndjson(cast(IO[bytes], file))  # polars calls write and flush alone


def jsonl_text_schema(fields: dict[str, str]) -> dict[str, pl.DataType]:
    """Return the columns as a JSON Lines file spells them; it has no pictures."""
    return {name: _TYPES.get(type, pl.String()) for name, type in fields.items() if name != "image"}


def _make_typed_jsonl_columns(fields: dict[str, str]) -> list[pl.Expr]:
    columns = []
    if _INSTANT in fields:
        naive = pl.col(_INSTANT).str.to_datetime(_INSTANT_FORMAT, time_unit="us")
        columns.append(naive.dt.replace_time_zone("UTC"))
    if _HASH in fields:
        columns.append(pl.col(_HASH).str.to_integer(base=16, dtype=pl.UInt64))
    return columns
