"""Other stores that fsspec knows, for hosted files; only the operator can choose them. Contract §5."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from recorder.errors import InvalidDestination, Unavailable
from recorder.exports.destinations.base import PART_BYTES, AlreadyThere, Damaged, ExportLocation, StoreUpload
from recorder.storage.durable_files import make_durable_folder, sync_path_to_disk

_SUBJECT = "The export store"


class FsspecStore:
    """Objects at an fsspec address; keys are whole addresses."""

    def __init__(self, target: ExportLocation) -> None:
        self._fs, _ = fsspec.core.url_to_fs(target.root)
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def put(self, staged: StoreUpload, key: str, *, replace: bool) -> None:
        """Upload a file and hash what the store then holds; in a folder it is synced as well."""
        with _translate_fsspec_errors(key):
            if not replace and self._fs.exists(key):
                raise AlreadyThere
            folder = key.rpartition("/")[0]
            if self._is_local:
                make_durable_folder(Path(self._fs._strip_protocol(folder)))
            else:
                self._fs.makedirs(folder, exist_ok=True)
            staged.file.seek(0)
            with self._fs.open(key, "wb") as file:
                while piece := staged.file.read(PART_BYTES):
                    file.write(piece)
            if self._is_local:
                for path in (key, folder):
                    sync_path_to_disk(self._fs._strip_protocol(path))
            with self._fs.open(key, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != staged.sha256:
                    raise Damaged

    def require_owner(self) -> None:
        """Do nothing: the operator chose this store."""

    def size(self, key: str) -> int:
        """Return the size of an object."""
        with _translate_fsspec_errors(key):
            return int(self._fs.size(key))

    def get(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`."""
        with _translate_fsspec_errors(key), self._fs.open(key, "rb") as file:
            file.seek(start)
            while start < end and (piece := file.read(min(PART_BYTES, end - start))):
                start += len(piece)
                yield piece

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        try:
            with _translate_fsspec_errors(key):
                self._fs.rm_file(key)
        except KeyError:
            pass

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
        with _translate_fsspec_errors(prefix):
            yield from (str(self._fs.unstrip_protocol(path)) for path in self._fs.find(prefix))

    def copy(self, key: str, source_key: str, *, sha256: str) -> bool:
        """Return False: not every file system has digests of its files."""
        return False

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing: fsspec lists no unfinished uploads."""

    def address(self, key: str) -> str:
        """Return the key itself."""
        return key


@contextmanager
def _translate_fsspec_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise KeyError(key) from error
    except PermissionError as error:
        raise InvalidDestination("The destination refuses writing; check its rights.") from error
    except OSError as error:
        raise Unavailable(_SUBJECT) from error
