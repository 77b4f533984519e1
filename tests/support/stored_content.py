"""Everything a deployment has stored, as text: files, rows and objects, whatever packs them."""

import base64
import binascii
import gzip
import re
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from recorder.models.tables import METADATA
from recorder.runtime import Runtime

_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b\x08"
_BASE64 = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def stored_texts(runtime: Runtime) -> Iterator[str]:
    """Return the texts of all rows and of all files below the data folder, databases and logs included."""
    return (text for _, text in stored_texts_by_location(runtime))


def stored_texts_by_location(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield the same texts, each with its location: `table <name>`, or the path below the data folder."""
    with runtime.database.transaction(write=False) as db:
        for table in METADATA.sorted_tables:
            for row in db.connection().execute(table.select()):
                yield from ((f"table {table.name}", read_as_text(value)) for value in row)
    folder = runtime.settings.data_dir
    for path in _files(runtime):
        location = str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name
        yield from ((location, text) for text in texts_of_file(path))


def locations_of_words(texts: Iterable[tuple[str, str]], expression: str) -> dict[str, set[str]]:
    """Return the locations of each match, which may be plain, in escaped JSON or in base64."""
    locations: dict[str, set[str]] = defaultdict(set)
    pattern = re.compile(expression)
    for location, text in texts:
        for readable in readable_texts(text):
            for match in pattern.findall(readable):
                locations[match].add(location)
    return locations


def readable_texts(text: str) -> Iterator[str]:
    """Yield a text as it is, without escapes of JSON, and what is in it as base64."""
    yield text
    yield _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)
    yield from _decode(text)


def _decode(text: str) -> Iterator[str]:
    """Yield the texts that are in a text as base64."""
    for match in _BASE64.findall(text):
        try:
            yield base64.b64decode(match[: len(match) // 4 * 4]).decode("utf-8", "replace")
        except binascii.Error:  # letters that only look like base64
            continue


def found_in(texts: Iterable[str], expression: str) -> set[str]:
    """Return all matches in any of the texts."""
    return {match for text in texts for match in re.findall(expression, text)}


def _files(runtime: Runtime) -> Iterator[Path]:
    yield from (path for path in runtime.settings.data_dir.rglob("*") if path.is_file())
    if runtime.database.is_sqlite:
        database = Path(runtime.database.url.removeprefix("sqlite:///"))
        yield from database.parent.glob(f"{database.name}*")


def read_stored_file(path: Path) -> bytes:
    """Return the bytes of a file that may be a database in use.

    Another process reads those of SQLite: whoever closes such a file loses all locks of its process on it.
    """
    if ".db" not in path.name:
        return path.read_bytes()
    return subprocess.run(["cat", path], capture_output=True, check=True).stdout


def texts_of_file(path: Path) -> Iterator[str]:
    """Yield the texts of a file: raw, unpacked, and decoded."""
    data = read_stored_file(path)
    yield read_as_text(data)
    match path.suffix:
        case ".parquet":
            yield repr(pq.ParquetFile(path).read().to_pylist())
        case ".arrow":
            with pa.memory_map(str(path)) as file:
                yield repr(pa.ipc.open_file(file).read_all().to_pylist())
        case ".tar":
            with tarfile.open(path) as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    yield member.name + ("" if content is None else read_as_text(content.read()))


def read_as_text(value: Any) -> str:
    if not isinstance(value, bytes | memoryview):
        return str(value)
    data = bytes(value)
    unpacked = (_unpack(data[match.start() :]) for match in re.finditer(re.escape(_ZSTD), data))
    gunzipped = [_gunzip(data)] if data.startswith(_GZIP) else []
    return "\n".join(part.decode("utf-8", "replace") for part in (data, *unpacked, *gunzipped))


def _unpack(data: bytes) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError:  # bytes that only look like the beginning of a frame
        return b""


def _gunzip(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (EOFError, OSError):  # bytes that only look like the beginning of a file
        return b""
