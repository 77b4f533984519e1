"""Everything a deployment has stored, as text: files, rows and objects, whatever packs them."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard
from sqlmodel import SQLModel

from recorder.runtime import Runtime

_ZSTD = b"\x28\xb5\x2f\xfd"


def stored_texts(runtime: Runtime) -> Iterator[str]:
    """The texts of all rows, and of all files below the data folder, databases and their logs among them."""
    with runtime.database.transaction(write=False) as db:
        for table in SQLModel.metadata.sorted_tables:
            for row in db.connection().execute(table.select()):
                yield from (_text(value) for value in row)
    for path in _files(runtime):
        yield from _texts_of_file(path)


def found_in(texts: Iterable[str], expression: str) -> set[str]:
    """All that matches, in whichever text."""
    return {match for text in texts for match in re.findall(expression, text)}


def _files(runtime: Runtime) -> Iterator[Path]:
    yield from (path for path in runtime.settings.data_dir.rglob("*") if path.is_file())
    if runtime.database.is_sqlite:
        database = Path(runtime.database.url.removeprefix("sqlite:///"))
        yield from database.parent.glob(f"{database.name}*")


def _texts_of_file(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    yield _text(data)
    if path.suffix == ".parquet":
        yield repr(pq.ParquetFile(path).read().to_pylist())


def _text(value: Any) -> str:
    if not isinstance(value, bytes | memoryview):
        return str(value)
    data = bytes(value)
    unpacked = (_unpack(data[match.start() :]) for match in re.finditer(re.escape(_ZSTD), data))
    return "\n".join(part.decode("utf-8", "replace") for part in (data, *unpacked))


def _unpack(data: bytes) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError:  # bytes that only look like the beginning of a frame
        return b""
