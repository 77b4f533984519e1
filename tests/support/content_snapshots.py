"""Snapshots of a deployment's content: what an erasure must change, and what it must leave alone."""

import hashlib
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recorder.models.tables import METADATA
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS
from recorder.tenant import Tenant
from tests.support.stored_content import read_as_text, readable_texts, texts_of_file

#: Folders whose files stay byte for byte, unless they hold content of an erased session.
_FOLDERS = ("blobs", "cold", "exports", "local")


@dataclass(frozen=True)
class StoredFile:
    """Digest of a file, and whether it names an erased person or session."""

    digest: str
    is_named: bool


@dataclass(frozen=True)
class ContentSnapshot:
    """Rows that name no erased person or session, all files, and the records of lake and datasets."""

    #: Columns as text by table and primary key.
    rows: dict[tuple[str, str], dict[str, str]]
    #: Tables and primary keys of the other rows.
    named_rows: set[tuple[str, str]]
    files: dict[str, StoredFile]
    #: Number of each record that names no erased session, by kind of lake table or folder of a dataset.
    records: dict[str, Counter[str]]


def take_snapshot(runtime: Runtime, tenant: Tenant, erased: str) -> ContentSnapshot:
    """Take a snapshot.

    Args:
        runtime: the deployment.
        tenant: workspace and mode of the sessions.
        erased: regular expression of the words and ids of erased persons and their sessions.
    """
    pattern = re.compile(erased)
    folder = runtime.settings.data_dir
    files, records = {}, {}
    for path in (path for name in _FOLDERS for path in sorted((folder / name).rglob("*"))):
        if path.is_file():
            is_named = any(_names(pattern, text) for text in texts_of_file(path))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            files[str(path.relative_to(folder))] = StoredFile(digest, is_named)
    for manifest in (
        path for name in ("exports", "local") for path in (folder / name).rglob("manifest.json")
    ):
        shards = [path for path in (manifest.parent / "data").rglob("*") if path.is_file()]
        records[str(manifest.parent.relative_to(folder))] = Counter(
            record for path in shards for record in _read_records(path) if not _names(pattern, record)
        )
    for kind in LAYOUTS:
        rows = map(repr, runtime.lake.scan(kind, tenant).collect().rows())
        records[f"lake {kind}"] = Counter(row for row in rows if not _names(pattern, row))
    unnamed, named = _read_rows(runtime, pattern)
    return ContentSnapshot(unnamed, named, files, records)


def _read_rows(
    runtime: Runtime, pattern: re.Pattern[str]
) -> tuple[dict[tuple[str, str], dict[str, str]], set[tuple[str, str]]]:
    """Return the rows that name no erased person or session, and the keys of the others."""
    unnamed, named = {}, set()
    with runtime.database.transaction(write=False) as db:
        for table in METADATA.sorted_tables:
            for row in db.connection().execute(table.select()).mappings():
                key = str(table.name), repr([row[column.name] for column in table.primary_key])
                if any(_names(pattern, read_as_text(value)) for value in row.values()):
                    named.add(key)
                else:
                    unnamed[key] = {str(name): repr(value) for name, value in row.items()}
    return unnamed, named


def _names(pattern: re.Pattern[str], text: str) -> bool:
    return any(pattern.search(readable) for readable in readable_texts(text))


def _read_records(path: Path) -> Iterator[str]:
    """Yield the records of a shard: rows, or the samples of an archive with the digests of their files."""
    match path.suffix:
        case ".parquet":
            yield from map(repr, pq.ParquetFile(path).read().to_pylist())
        case ".arrow":
            with pa.memory_map(str(path)) as file:
                yield from map(repr, pa.ipc.open_file(file).read_all().to_pylist())
        case ".jsonl":
            yield from map(_read_line, path.read_text().splitlines())
        case ".tar":
            yield from _read_samples(path)
        case _:
            raise ValueError(f"{path.name} is of no known format.")


def _read_line(line: str) -> str:
    value: Any = json.loads(line)
    return repr(value)


def _read_samples(path: Path) -> Iterator[str]:
    samples: dict[str, list[str]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            data = b"" if content is None else content.read()
            text = data.decode() if member.name.endswith(".json") else hashlib.sha256(data).hexdigest()
            samples.setdefault(member.name.partition(".")[0], []).append(f"{member.name} {text}")
    yield from map(repr, samples.values())
