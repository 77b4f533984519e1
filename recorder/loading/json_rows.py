"""What JSON spells as text, turned back: instants and 64-bit hashes, in JSONL rows and in samples."""

from datetime import datetime
from typing import Any

import polars as pl

_TYPES = {
    "string": pl.String(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "bool": pl.Boolean(),
}
_INSTANT, _HASH = "ts", "dhash"
_INSTANT_FORMAT = "%Y-%m-%dT%H:%M:%S%.fZ"


def text_schema(fields: dict[str, str]) -> dict[str, pl.DataType]:
    """The columns of a JSONL file as they are read; it has no pictures.

    Args:
        fields: type of each column, as the manifest names them.
    """
    return {name: _TYPES.get(type, pl.String()) for name, type in fields.items() if name != "image"}


def typed_columns(fields: dict[str, str]) -> list[pl.Expr]:
    """Expressions that give a JSONL file the values that the other formats have."""
    found = []
    if _INSTANT in fields:
        naive = pl.col(_INSTANT).str.to_datetime(_INSTANT_FORMAT, time_unit="us")
        found.append(naive.dt.replace_time_zone("UTC"))
    if _HASH in fields:
        found.append(pl.col(_HASH).str.to_integer(base=16, dtype=pl.UInt64))
    return found


def typed_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row of JSON with the values that the other formats have."""
    if isinstance(row.get(_INSTANT), str):
        row[_INSTANT] = datetime.fromisoformat(row[_INSTANT])
    if isinstance(row.get(_HASH), str):
        row[_HASH] = int(row[_HASH], 16)
    return row
