"""Sources of a dataset: a folder, a store that fsspec opens, an export's destination, or the service.

Every reader uses these: `open_export`, `recorder verify`, and the checks after an export. A manifest may be
hostile, so a source reads nothing outside the dataset, whatever the manifest lists.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec

from recorder.client.errors import ClientError
from recorder.datasets.errors import (
    AddressExpired,
    DatasetChanged,
    FileGone,
    ManifestRefused,
    ManifestUnreadable,
)
from recorder.datasets.formats import CARD, MANIFEST
from recorder.datasets.manifest import MAX_BYTES, Shard
from recorder.datasets.service_source import ServiceSource

#: Errors of `read_file` and `copy_source_file` that concern one file; a destination raises `Unavailable` too.
FILE_ERRORS = (FileGone, ManifestRefused, AddressExpired, DatasetChanged, ClientError, OSError)
_CHUNK_BYTES = 1024 * 1024
#: Bytes that a copy may have beyond the size in the manifest, so that a longer file shows.
_MORE_BYTES = 1


class DatasetSource(Protocol):
    """Reader of the manifest and the files of one dataset; it can be sent to another process."""

    @property
    def folder(self) -> Path | None:
        """Folder of the dataset on this machine; None elsewhere."""

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest.

        Raises:
            ManifestUnreadable: if there is none, or it is longer than any manifest of the service.
        """

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file; the caller bounds and checks them.

        Raises:
            FileGone: if there is no such file.
        """

    def read_card(self) -> bytes | None:
        """Return README.md; None where it cannot be read."""

    def list_data_paths(self) -> Iterable[str]:
        """Return the paths of the files below `data`; none where the source lists no files."""


class SourceDirectory(Protocol):
    """Methods of an export's destination that reading it needs."""

    def size(self, path: str) -> int:
        """Return the size of a file; KeyError if there is none."""

    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`; KeyError if there is no such file."""


def open_dataset_source(
    address: str, *, key: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> DatasetSource:
    """Return the source that a path, an address of a store or an address of the service names.

    Args:
        address: path, address of a store, or address of the service.
        key: API key, for an address of the service.
        storage_options: options of fsspec for a private store.

    Raises:
        ManifestUnreadable: if no library opens the address.
    """
    if address.startswith(("http://", "https://")):
        return ServiceSource(address, key)
    path = Path(address).expanduser()
    # A chain of addresses has "::" too, but a folder may have it in its name.
    if "://" not in address and ("::" not in address or path.exists()):
        return FolderSource(path)
    try:
        files, path = fsspec.core.url_to_fs(address, **(storage_options or {}))
    except ImportError as error:
        raise ManifestUnreadable(f"a library is missing ({error})") from error
    except (ValueError, OSError) as error:
        raise ManifestUnreadable from error
    protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return FolderSource(Path(path)) if "file" in protocols else StoreSource(files, path)


def copy_source_file(source: DatasetSource, shard: Shard, folder: Path) -> Path:
    """Return the file itself where it is on this machine, else a copy in `folder`.

    A copy has at most one byte more than the manifest lists.

    Raises:
        FileGone, ManifestRefused, AddressExpired, DatasetChanged, ClientError, OSError: see `FILE_ERRORS`.
        Unavailable: if a destination does not answer.
    """
    if source.folder is not None:
        return local_source_path(source.folder, shard.path)
    copy = folder / "shard"
    left = shard.size_bytes + _MORE_BYTES
    with copy.open("wb") as file:
        for chunk in source.read_file(shard):
            left -= file.write(chunk[:left])
            if left <= 0:
                break
    return copy


def local_source_path(root: Path, path: str) -> Path:
    """Return the path of a file below a folder of this machine; links are followed within the folder only.

    Raises:
        FileGone: if there is no such file.
        ManifestRefused: if a link leads elsewhere.
    """
    try:
        resolved = (root / path).resolve()
        is_inside, is_file = resolved.is_relative_to(root.resolve()), resolved.is_file()
    except (OSError, RuntimeError) as error:
        raise FileGone(path, "folder") from error
    if not is_inside:
        reason = "is a link that leads out of the dataset's folder"
        raise ManifestRefused(f"{path} {reason}. Copy the files into the folder.", reason=reason)
    if not is_file:
        raise FileGone(path, "folder")
    return resolved


class FolderSource:
    """A dataset in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.folder: Path | None = path.parent if path.name == MANIFEST else path

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest."""
        data = self._read_small_file(MANIFEST)
        if data is None:
            raise ManifestUnreadable(where=f"in the folder {self.folder}")
        return data

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file."""
        assert self.folder is not None
        with local_source_path(self.folder, shard.path).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def read_card(self) -> bytes | None:
        """Return README.md; None if there is none."""
        return self._read_small_file(CARD)

    def list_data_paths(self) -> Iterator[str]:
        """Yield the paths of the files below `data`."""
        assert self.folder is not None
        for path in self.folder.glob("data/*/*"):
            if path.is_file():
                yield path.relative_to(self.folder).as_posix()

    def _read_small_file(self, name: str) -> bytes | None:
        """Return the bytes of a file of the folder; None where it is missing or too large."""
        assert self.folder is not None
        path = self.folder / name
        try:
            # Only a plain file: reading a pipe would wait.
            return path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_BYTES else None
        except (OSError, ValueError):
            return None


class StoreSource:
    """A dataset in a store that fsspec opens."""

    folder = None

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._root = path.removesuffix(f"/{MANIFEST}").rstrip("/")

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest."""
        data = self._read_small_file(MANIFEST)
        if data is None:
            raise ManifestUnreadable
        return data

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file; the store's own library retries."""
        try:
            with self._files.open(f"{self._root}/{shard.path}", "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise FileGone(shard.path, "store") from error

    def read_card(self) -> bytes | None:
        """Return README.md; None where it cannot be read."""
        return self._read_small_file(CARD)

    def list_data_paths(self) -> list[str]:
        """Return the paths of the files below `data`; none if the store does not list them."""
        try:
            self._files.invalidate_cache()
            names = self._files.find(f"{self._root}/data")
        except Exception:  # each library has errors of its own for credentials that may only read
            return []
        return [name.removeprefix(self._root).lstrip("/") for name in names]

    def _read_small_file(self, name: str) -> bytes | None:
        """Return the bytes of a file of the store; None where it is missing or too large."""
        try:
            with self._files.open(f"{self._root}/{name}", "rb") as file:
                data: bytes = file.read(MAX_BYTES + 1)
        except OSError:
            return None
        return data if len(data) <= MAX_BYTES else None


class DestinationSource:
    """A dataset in the destination of an export, read with the rights of the destination."""

    folder = None

    def __init__(self, directory: SourceDirectory) -> None:
        self._directory = directory

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest."""
        try:
            size = self._directory.size(MANIFEST)
            if size > MAX_BYTES:
                raise ManifestUnreadable
            return b"".join(self._directory.read_range(MANIFEST, 0, size))
        except KeyError as error:
            raise ManifestUnreadable from error

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file, at most one more than the manifest lists."""
        try:
            size = min(self._directory.size(shard.path), shard.size_bytes + _MORE_BYTES)
            yield from self._directory.read_range(shard.path, 0, size)
        except KeyError as error:
            raise FileGone(shard.path, "store") from error

    def read_card(self) -> bytes | None:
        """Return None: only `open_export` reads cards."""
        return None

    def list_data_paths(self) -> tuple[str, ...]:
        """Return none: a destination is read by path."""
        return ()
