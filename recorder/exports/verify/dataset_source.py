"""Where a dataset that is checked lies: a folder here, a store, or the service that hosts it. Spec §2.5.

Nothing beside it is read, whatever its manifest says.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import fsspec
import httpx

from recorder.exports.destinations.local import Folder
from recorder.exports.formats import MANIFEST
from recorder.exports.verify.listing import MAX_BYTES, Entry, ManifestUnreadable

_HTTP_SECONDS = 60.0
_CHUNK_BYTES = 1024 * 1024
#: What a copy may have beyond the size that the manifest names, so that a longer file is seen to be longer.
_MORE_BYTES = 1


class NotFetched(Exception):
    """A file cannot be had; says why, as the end of a sentence that begins with its path."""


class Place(Protocol):
    """Gives the manifest of one dataset and its files."""

    def manifest(self) -> bytes:
        """The manifest's bytes."""

    def fetch(self, entry: Entry, folder: Path) -> Path:
        """The file itself where it lies on this machine, else a copy in `folder`.

        Raises:
            NotFetched: if it is not there, or leads elsewhere.
        """


class Directory(Protocol):
    """What is needed of an export's destination, which has rights of its own."""

    def size(self, path: str) -> int:
        """How many bytes a file has; KeyError if there is none."""

    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to, not including, `end`; KeyError if there is no such file."""

    def fetch(self, path: str, folder: Path) -> Path:
        """A file of this machine with the bytes; KeyError if there is none."""


def open_place(source: str | Path | Directory) -> Place:
    """The place that a path, an address of a store or a signed address names, or a destination.

    Raises:
        ManifestUnreadable: if nothing can open the address.
    """
    if not isinstance(source, str | Path):
        return _Opened(source)
    source = str(source)
    if source.startswith(("http://", "https://")):
        return _Hosted(source)
    if "://" not in source and "::" not in source:
        return _Folder(Path(source))
    try:
        files, path = fsspec.core.url_to_fs(source)
    except (ValueError, ImportError, OSError) as error:
        raise ManifestUnreadable from error
    return _Folder(Path(path)) if "file" in files.protocol else _Store(files, path)


class _Folder:
    """A dataset in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._root = path.parent if path.name == MANIFEST else path

    def manifest(self) -> bytes:
        path = self._root / MANIFEST
        try:
            if not path.is_file() or path.stat().st_size > MAX_BYTES:
                raise ManifestUnreadable
            return path.read_bytes()
        except (OSError, ValueError) as error:
            raise ManifestUnreadable from error

    def fetch(self, entry: Entry, folder: Path) -> Path:
        return path_within(self._root, entry.path)


class _Opened:
    """A dataset in the destination that it was written to."""

    def __init__(self, destination: Directory) -> None:
        self._destination = destination

    def manifest(self) -> bytes:
        try:
            size = self._destination.size(MANIFEST)
            if size > MAX_BYTES:
                raise ManifestUnreadable
            return b"".join(self._destination.read_range(MANIFEST, 0, size))
        except KeyError as error:
            raise ManifestUnreadable from error

    def fetch(self, entry: Entry, folder: Path) -> Path:
        try:
            if isinstance(self._destination, Folder):
                return self._destination.fetch(entry.path, folder)
            size = min(self._destination.size(entry.path), entry.size_bytes + _MORE_BYTES)
            return _copy(self._destination.read_range(entry.path, 0, size), entry, folder)
        except KeyError as error:
            raise NotFetched("is missing") from error


class _Store:
    """A dataset in a store that fsspec opens."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._root = path.removesuffix(f"/{MANIFEST}").rstrip("/")

    def manifest(self) -> bytes:
        path = f"{self._root}/{MANIFEST}"
        try:
            if self._files.size(path) > MAX_BYTES:
                raise ManifestUnreadable
            data: bytes = self._files.cat_file(path)
        except OSError as error:
            raise ManifestUnreadable from error
        return data

    def fetch(self, entry: Entry, folder: Path) -> Path:
        try:
            with self._files.open(f"{self._root}/{entry.path}", "rb") as file:
                return _copy(iter(lambda: file.read(_CHUNK_BYTES), b""), entry, folder)
        except FileNotFoundError as error:
            raise NotFetched("is missing") from error
        except OSError as error:
            raise NotFetched(f"cannot be read ({type(error).__name__})") from error


class _Hosted:
    """A dataset that the service keeps, behind signed addresses."""

    def __init__(self, url: str) -> None:
        self._url = url

    def manifest(self) -> bytes:
        try:
            with httpx.stream("GET", self._url, timeout=_HTTP_SECONDS) as answer:
                answer.raise_for_status()
                data = b""
                for chunk in answer.iter_bytes(_CHUNK_BYTES):
                    data += chunk
                    if len(data) > MAX_BYTES:
                        raise ManifestUnreadable
                return data
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ManifestUnreadable from error

    def fetch(self, entry: Entry, folder: Path) -> Path:
        url = entry.url
        if url is None or not is_own(manifest_url=self._url, url=url, path=entry.path):
            raise NotFetched("has an address that is not the export's own")
        try:
            with httpx.stream("GET", url, timeout=_HTTP_SECONDS) as answer:
                answer.raise_for_status()
                return _copy(answer.iter_bytes(_CHUNK_BYTES), entry, folder)
        except httpx.HTTPStatusError as error:
            raise NotFetched("is missing") from error
        except httpx.HTTPError as error:
            raise NotFetched(f"cannot be read ({type(error).__name__})") from error


def is_own(*, manifest_url: str, url: str, path: str) -> bool:
    """Whether a file's address is where the service serves it: a manifest could name any address there is."""
    try:
        own, asked = urlsplit(manifest_url), urlsplit(url)
    except ValueError:
        return False
    expected = f"{own.path.removesuffix('/manifest')}/files/{path}"
    allowed = {expected, quote(expected), quote(expected, safe="/=")}
    return (asked.scheme, asked.netloc) == (own.scheme, own.netloc) and asked.path in allowed


def path_within(root: Path, path: str) -> Path:
    """A file below a folder of this machine; links are followed within the folder alone.

    Raises:
        NotFetched: if it is not there, or a link leads elsewhere.
    """
    try:
        found = (root / path).resolve()
        inside, is_file = found.is_relative_to(root.resolve()), found.is_file()
    except (OSError, RuntimeError) as error:
        raise NotFetched("cannot be opened") from error
    if not inside:
        raise NotFetched("is a link that leads out of the dataset's folder")
    if not is_file:
        raise NotFetched("is missing")
    return found


def _copy(chunks: Iterator[bytes], entry: Entry, folder: Path) -> Path:
    """Keep no more of a file than the manifest says it has, and what shows that it has more."""
    copy = folder / "shard"
    left = entry.size_bytes + _MORE_BYTES
    try:
        with copy.open("wb") as file:
            for chunk in chunks:
                left -= file.write(chunk[:left])
                if left <= 0:
                    break
    except OSError as error:
        raise NotFetched(f"cannot be copied ({type(error).__name__})") from error
    return copy
