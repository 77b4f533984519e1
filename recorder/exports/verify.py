"""Checking a dataset against its manifest: size, rows and hash of each file, and the row set. Spec §2.5."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import fsspec
import httpx
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.errors import RecorderError
from recorder.exports.names import MANIFEST
from recorder.rowset import SessionRows, events_digest, frames_digest, row_set_sha256

_ROWS_AT_ONCE = 50_000
_IMAGES_AT_ONCE = 100
_EVENT_KEY = ["event_id", "t_ms", "ts", "type", "frame_id", "payload"]
_HTTP_SECONDS = 60.0


class ManifestUnreadable(RecorderError):
    """There is no manifest at this address, or not one of ours."""

    code = "manifest_unreadable"
    title = "Manifest unreadable"

    def __init__(self) -> None:
        super().__init__("No manifest can be read there; give its path, its folder or its signed address.")


@dataclass
class VerifyReport:
    """What a check of a dataset found."""

    export_id: str
    manifest_sha256: str
    shards: int = 0
    rows: int = 0
    frames: int = 0
    size_bytes: int = 0
    row_set_sha256: str = ""
    #: What is wrong, one sentence each; empty if all is well.
    problems: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Whether files and manifest agree in everything."""
        return not self.problems


def verify_manifest(source: str | Path) -> VerifyReport:
    """Recompute from the files what a manifest says of them; needs nothing but them.

    Args:
        source: path of a manifest or its folder, any address fsspec knows, or a signed `manifest_url`.

    Raises:
        ManifestUnreadable: if there is no manifest.
    """
    files = _open_files(str(source))
    text = files.manifest()
    try:
        manifest = orjson.loads(text)
        report = VerifyReport(manifest["export_id"], hashlib.sha256(text).hexdigest())
        entries = manifest["shards"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ManifestUnreadable from error
    digests: list[SessionRows] = []
    with tempfile.TemporaryDirectory(prefix="recorder-verify-") as folder:
        for entry in entries:
            path = files.fetch(entry, Path(folder))
            if path is None:
                report.problems.append(f"{entry['path']} is missing.")
            else:
                digests.extend(_check_shard(path, entry, report))
    _check_whole(manifest, digests, report)
    return report


def _check_shard(path: Path, entry: dict[str, Any], report: VerifyReport) -> list[SessionRows]:
    """Check one file; gives the digests of the sessions in it."""
    name, size = entry["path"], path.stat().st_size
    report.shards += 1
    report.size_bytes += size
    if size != entry["size_bytes"]:
        report.problems.append(f"{name} has {size} bytes, the manifest says {entry['size_bytes']}.")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            report.problems.append(f"{name} has another SHA-256 than the manifest says.")
    try:
        with pq.ParquetFile(path) as parquet:
            if entry["kind"] == "events":
                digests = list(_event_digests(parquet))
            else:
                digests = list(_frame_digests(parquet, name, report))
    except (pa.ArrowException, OSError, KeyError) as error:
        report.problems.append(f"{name} cannot be read as Parquet: {type(error).__name__}.")
        return []
    rows = sum(session.n_rows for session in digests)
    if rows != entry["rows"] or len(digests) != entry["sessions"]:
        text = f"{name} has {rows} rows of {len(digests)} sessions, the manifest says "
        report.problems.append(f"{text}{entry['rows']} of {entry['sessions']}.")
    if entry["kind"] == "events":
        report.rows += rows
    else:
        report.frames += rows
    return digests


def _event_digests(file: pq.ParquetFile) -> Iterator[SessionRows]:
    rows = _rows(file, ["session_id", *_EVENT_KEY], _ROWS_AT_ONCE)
    for session_id, members in groupby(rows, key=lambda row: row[0]):
        keys = [row[1:] for row in members]
        yield SessionRows("events", session_id, len(keys), events_digest(keys))


def _frame_digests(file: pq.ParquetFile, name: str, report: VerifyReport) -> Iterator[SessionRows]:
    """Digests of the frames, each picture compared with the hash in its row on the way."""
    rows = _rows(file, ["session_id", "frame_id", "sha256", "image"], _IMAGES_AT_ONCE)
    for session_id, members in groupby(rows, key=lambda row: row[0]):
        keys = []
        for _, frame_id, sha256, image in members:
            keys.append((frame_id, sha256))
            if image is not None and hashlib.sha256(image["bytes"]).hexdigest() != sha256:
                report.problems.append(f"{name} holds another picture than its row says ({frame_id}).")
        yield SessionRows("frames", session_id, len(keys), frames_digest(keys))


def _rows(file: pq.ParquetFile, columns: list[str], at_once: int) -> Iterator[tuple[Any, ...]]:
    for batch in file.iter_batches(batch_size=at_once, columns=columns):
        rows = pl.DataFrame(pa.Table.from_batches([batch])).select(columns)
        yield from rows.with_columns(pl.col(pl.Datetime).dt.epoch("us")).iter_rows()


def _check_whole(manifest: dict[str, Any], digests: Iterable[SessionRows], report: VerifyReport) -> None:
    totals = manifest["totals"]
    report.row_set_sha256 = row_set_sha256(digests)
    if report.row_set_sha256 != manifest["row_set_sha256"]:
        report.problems.append("The rows in the files are not the row set of the manifest.")
    found = {
        "shards": report.shards,
        "rows": report.rows,
        "frames": report.frames,
        "bytes": report.size_bytes,
    }
    for name, value in found.items():
        if value != totals[name]:
            report.problems.append(f"The files hold {value} {name}, the manifest says {totals[name]}.")


class _Folder:
    """A dataset in a folder, here or at an fsspec address."""

    def __init__(self, source: str) -> None:
        self._fs, path = fsspec.core.url_to_fs(source)
        self._root = path.removesuffix(f"/{MANIFEST}").rstrip("/")

    def manifest(self) -> bytes:
        try:
            data: bytes = self._fs.cat_file(f"{self._root}/{MANIFEST}")
        except OSError as error:
            raise ManifestUnreadable from error
        return data

    def fetch(self, entry: dict[str, Any], folder: Path) -> Path | None:
        """The shard as a local file; other stores than the local one are copied from."""
        path = f"{self._root}/{entry['path']}"
        if not self._fs.isfile(path):
            return None
        if "file" in self._fs.protocol:
            return Path(path)
        copy = folder / "shard"
        self._fs.get_file(path, str(copy))
        return copy


class _Signed:
    """A hosted dataset behind signed addresses."""

    def __init__(self, url: str) -> None:
        self._url = url

    def manifest(self) -> bytes:
        try:
            return httpx.get(self._url, timeout=_HTTP_SECONDS).raise_for_status().content
        except httpx.HTTPError as error:
            raise ManifestUnreadable from error

    def fetch(self, entry: dict[str, Any], folder: Path) -> Path | None:
        copy = folder / "shard"
        try:
            with httpx.stream("GET", entry["url"], timeout=_HTTP_SECONDS) as answer, copy.open("wb") as file:
                answer.raise_for_status()
                for chunk in answer.iter_bytes():
                    file.write(chunk)
        except httpx.HTTPError:
            return None
        return copy


def _open_files(source: str) -> _Folder | _Signed:
    return _Signed(source) if source.startswith(("http://", "https://")) else _Folder(source)
