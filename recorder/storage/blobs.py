"""Blob store: frame objects and export plans by key. Local files are durable before `put` returns."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from recorder.errors import Unavailable
from recorder.ids import new_id
from recorder.storage.durable_files import make_durable_folder, sync_path_to_disk

#: Folders of a remote store that are removed at the same time.
_FOLDERS_AT_ONCE = 16
#: A local object is synced each time that so much was written: commits of other requests wait for the same
#: disk, and would wait for 60 MB otherwise.
_SYNCED_BYTES = 4_000_000


class StoredObject(NamedTuple):
    """Object as its store lists it."""

    key: str
    size: int
    #: Changes when the object is replaced: a time or a tag of the store.
    modified: str


class Blobs:
    """Store of immutable objects under one root: a folder, or any address that fsspec supports."""

    def __init__(self, url: str, *, archive_url: str | None = None) -> None:
        """Name the store; nothing is opened before its first use.

        Args:
            url: folder or address.
            archive_url: folder or address of a second store, from which objects are read that this one lacks.
        """
        self.url = url
        self._archive_url = archive_url
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._is_local = "file" in _list_blob_protocols(self._fs)

    def put(self, key: str, data: bytes) -> None:
        """Store an object; after the call it survives a crash.

        Raises:
            Unavailable: if the store refuses or does not answer.
        """
        self.put_parts(key, [data])

    def put_parts(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store an object in parts, as `put` does; a local store writes them without a copy.

        Raises:
            Unavailable: if the store refuses or does not answer.
        """
        with _convert_blob_store_errors():
            if self._is_local:
                _write_object_durably(Path(self._make_path(key)), *parts)
            else:
                self._fs.pipe_file(self._make_path(key), b"".join(parts))

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of an object, or `length` of them from `offset`.

        Raises:
            KeyError: if there is no such object.
            Unavailable: if the store does not answer.
        """
        end = None if length is None else offset + length
        try:
            with _convert_blob_store_errors(FileNotFoundError):
                data: bytes = self._fs.cat_file(self._make_path(key), start=offset, end=end)
        except FileNotFoundError as error:
            if self._archive_url is None:
                raise KeyError(key) from error
            return Blobs(self._archive_url).get(key, offset, length)
        return data

    def copy_from(self, other: "Blobs", key: str) -> bool:
        """Copy an object from another store whose client this one shares, such as a bucket of one account.

        The store copies the object itself: its bytes do not pass through this process.

        Returns:
            Whether the copy has the size and the tag of its content that the other one has; not all stores
            give both the same tag.

        Raises:
            KeyError: if there is no such object.
            Unavailable: if the store refuses or does not answer.
        """
        source, target = other._make_path(key), self._make_path(key)
        try:
            with _convert_blob_store_errors(FileNotFoundError):
                self._fs.copy(source, target)
                self._fs.invalidate_cache()
                first, second = self._fs.info(source), self._fs.info(target)
        except FileNotFoundError as error:
            raise KeyError(key) from error
        return first["size"] == second["size"] and _read_etag(first) == _read_etag(second) != ""

    def shares_client(self, other: "Blobs") -> bool:
        """Return whether this store and another one are remote, and reached by one client."""
        return self._fs is other._fs and not self._is_local

    def is_folder_inside(self, other: "Blobs") -> bool:
        """Return whether this store and another one are local, and this one's folder is in the other's."""
        if not (self._is_local and other._is_local):
            return False
        return Path(self._root).resolve().is_relative_to(Path(other._root).resolve())

    def set_storage_class(self, key: str, storage_class: str) -> None:
        """Move an object of an S3 bucket to another storage class; its key and its bytes stay.

        Raises:
            KeyError: if there is no such object.
            Unavailable: if the store refuses or does not answer.
        """
        path = self._make_path(key)
        try:
            with _convert_blob_store_errors(FileNotFoundError):
                self._fs.copy(path, path, StorageClass=storage_class, MetadataDirective="COPY")
        except FileNotFoundError as error:
            raise KeyError(key) from error

    def delete(self, key: str) -> None:
        """Remove one object; a missing one is no error.

        Raises:
            Unavailable: if the store refuses or does not answer.
        """
        with suppress(FileNotFoundError), _convert_blob_store_errors(FileNotFoundError):
            self._fs.rm_file(self._make_path(key))

    def delete_below(self, *prefixes: str) -> int:
        """Remove every object below some folders, temporary files among them; return their bytes.

        Args:
            prefixes: folders of the objects, each with a slash at its end.

        Raises:
            Unavailable: if the store refuses or does not answer.
        """
        folders = [self._make_path(prefix).rstrip("/") for prefix in prefixes]
        with _convert_blob_store_errors():
            if not self._is_local:
                # Each folder takes a request or more, whose answers are waited for together.
                with ThreadPoolExecutor(_FOLDERS_AT_ONCE) as pool:
                    return sum(pool.map(self._delete_folder, folders))
            size = sum(self._delete_folder(folder) for folder in folders if os.path.isdir(folder))  # noqa: PTH112
        # Also those of missing folders: a process that was killed may have left the sync out.
        for parent in sorted({folder.rpartition("/")[0] for folder in folders}):
            if Path(parent).is_dir():
                sync_path_to_disk(Path(parent))
        return size

    def _delete_folder(self, folder: str) -> int:
        try:
            # A client that lists again must not see what it listed before.
            self._fs.invalidate_cache(folder)
            sizes = [int(info["size"] or 0) for info in self._fs.find(folder, detail=True).values()]
            if sizes or (self._is_local and self._fs.isdir(folder)):
                self._fs.rm(folder, recursive=True)
        except FileNotFoundError:
            return 0  # another process removed them in between
        return sum(sizes)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix, in no order."""
        root = self._make_path("").rstrip("/") + "/"
        for path in self._fs.find(self._make_path(prefix)):
            yield path.removeprefix(root)

    def list_objects(self, prefix: str) -> list[StoredObject]:
        """Return the objects below a folder, sorted by key, without temporary files of writers.

        Raises:
            Unavailable: if the store does not answer.
        """
        root = self._make_path("").rstrip("/") + "/"
        try:
            with _convert_blob_store_errors(FileNotFoundError):
                self._fs.invalidate_cache()
                infos = self._fs.find(self._make_path(prefix).rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        objects = [
            StoredObject(path.removeprefix(root), int(info["size"] or 0), _read_blob_version(info))
            for path, info in infos.items()
            if not path.rpartition("/")[2].startswith(".")
        ]
        return sorted(objects)

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders that are directly below a folder.

        Raises:
            Unavailable: if the store does not answer.
        """
        try:
            with _convert_blob_store_errors(FileNotFoundError):
                self._fs.invalidate_cache()
                infos = self._fs.ls(self._make_path(prefix).rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        names = [info["name"].rstrip("/") for info in infos if info["type"] == "directory"]
        return [name.rpartition("/")[2] for name in names]

    def list_unchanged(self, prefix: str, *, since: datetime) -> list[tuple[str, int]]:
        """Return key and size of objects below a folder that the store last changed before an instant.

        Temporary files of writers are among them. An object without a time is left out.

        Raises:
            Unavailable: if the store does not answer.
        """
        root = self._make_path("").rstrip("/") + "/"
        try:
            with _convert_blob_store_errors(FileNotFoundError):
                infos = self._fs.find(self._make_path(prefix).rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        return [
            (path.removeprefix(root), int(info["size"] or 0))
            for path, info in infos.items()
            if (changed_at := _read_change_time(info)) is not None and changed_at < since
        ]

    def ping(self) -> None:
        """Write and remove one object."""
        key = f"health/{new_id('req')}"
        self.put(key, b"ok")
        self.delete(key)

    def _make_path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


@contextmanager
def _convert_blob_store_errors(*passed: type[Exception]) -> Iterator[None]:
    """Convert errors of a store that refuses or does not answer to `Unavailable`.

    Clients of object stores raise errors of their own, which are no `OSError`, such as botocore's
    `EndpointConnectionError` and azure-core's `ServiceRequestError`.

    Args:
        passed: errors that the caller handles, which are raised as they are.
    """
    try:
        yield
    except passed:
        raise
    except Exception as error:
        raise Unavailable("The blob store") from error


def _read_etag(info: dict[str, Any]) -> str:
    """Return the tag that a store computes from an object's content; empty if it lists none."""
    return str(next((info[name] for name in ("ETag", "md5Hash") if info.get(name)), ""))


def _read_blob_version(info: dict[str, Any]) -> str:
    """Return what changes when an object is replaced: its tag, else the time of its last change."""
    names = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime")
    return str(next((info[name] for name in names if info.get(name)), ""))


def _read_change_time(info: dict[str, Any]) -> datetime | None:
    """Return when an object was last changed, as its store lists it; None if it lists no time."""
    names = ("LastModified", "last_modified", "mtime", "updated")
    value = next((info[name] for name in names if info.get(name)), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, int | float):
        value = datetime.fromtimestamp(value, UTC)
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _list_blob_protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _cut_blob_into_pieces(parts: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    """Yield the bytes of parts in pieces that may be synced one by one."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _SYNCED_BYTES):
            yield view[start : start + _SYNCED_BYTES]


def _write_whole_piece(file: FileIO, piece: memoryview) -> None:
    """Write all bytes of a piece: the write that fills a disk takes only some, the next one raises."""
    while piece:
        piece = piece[file.write(piece) :]


def _write_object_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a temporary file, sync it, rename it and sync the folders: the object is complete or absent."""
    make_durable_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{new_id('req')}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            unsynced = 0
            for piece in _cut_blob_into_pieces(parts):
                _write_whole_piece(file, piece)
                unsynced += len(piece)
                if unsynced >= _SYNCED_BYTES:
                    os.fdatasync(file.fileno())
                    unsynced = 0
            os.fdatasync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path_to_disk(path.parent)
