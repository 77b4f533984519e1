"""Where a dataset's files go: one directory per export, in a folder or at an fsspec address. Spec §4.3."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from recorder.errors import Conflict, DestinationNotAllowed, InvalidDestination, Unavailable
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.settings import Settings

_STAGING = ".staging"
_PIECE_BYTES = 1024 * 1024
_REFUSAL = "The destination refuses writing; check its path and rights."
# What a file system says when it will never take the file, as opposed to when it is away.
_REFUSED = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError, FileNotFoundError)


class FileConflict(Conflict):
    """Another file lies where a file of this export belongs."""

    code = "destination_conflict"

    def __init__(self, path: str) -> None:
        super().__init__(f"The destination holds another file at {path}; remove it and export again.")


class HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes."""
        self._digest.update(data)
        written = self._file.write(data)
        self.size_bytes += written
        return written

    def flush(self) -> None:
        """Hand the bytes to the operating system."""
        self._file.flush()

    def tell(self) -> int:
        """How many bytes were written."""
        return self.size_bytes

    @property
    def closed(self) -> bool:
        """Whether no more can be written."""
        return self._file.closed

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes so far."""
        return self._digest.hexdigest()


class Destination:
    """The directory of one export; files appear in it whole or not at all."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._local_root = Path(self._root) if _is_local(self._fs) else None

    @contextmanager
    def create(self, path: str, *, replace: bool = False) -> Iterator[HashedFile]:
        """Write a file under a temporary name and publish it when the block ends.

        Publishing creates: a file that is there already with the same bytes is left, with other bytes it
        is a conflict, unless it is to be replaced.

        Raises:
            FileConflict: if another file has this path.
            InvalidDestination: if writing is refused.
            Unavailable: if the store does not answer.
        """
        staged = self._staging() / new_id("req")
        try:
            with staged.open("xb") as file:
                hashed = HashedFile(file)
                yield hashed
                file.flush()
                os.fdatasync(file.fileno())
            self._publish(staged, path, hashed.sha256, replace=replace)
        except PermissionError as error:
            raise InvalidDestination(_REFUSAL) from error
        except OSError as error:
            raise Unavailable("The export destination") from error
        finally:
            staged.unlink(missing_ok=True)

    def probe(self) -> None:
        """Write and remove one file.

        Raises:
            InvalidDestination: if writing is refused.
            Unavailable: if the store does not answer.
        """
        name = f"{self._root}/.probe-{new_id('req')}"
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(name, b"probe")
            self._fs.rm_file(name)
        except _REFUSED as error:
            raise InvalidDestination(_REFUSAL) from error
        except OSError as error:
            raise Unavailable("The export destination") from error

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            KeyError: if there is no such file.
            Unavailable: if the store does not answer.
        """
        try:
            data: bytes = self._fs.cat_file(f"{self._root}/{path}")
        except FileNotFoundError as error:
            raise KeyError(path) from error
        except OSError as error:
            raise Unavailable("The export destination") from error
        return data

    def size(self, path: str) -> int:
        """How many bytes a file has.

        Raises:
            KeyError: if there is no such file.
            Unavailable: if the store does not answer.
        """
        try:
            return int(self._fs.size(f"{self._root}/{path}"))
        except FileNotFoundError as error:
            raise KeyError(path) from error
        except OSError as error:
            raise Unavailable("The export destination") from error

    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a file from `start` up to, not including, `end`, in pieces."""
        with self._fs.open(f"{self._root}/{path}", "rb") as file:
            file.seek(start)
            while start < end and (piece := file.read(min(_PIECE_BYTES, end - start))):
                start += len(piece)
                yield piece

    def remove(self, path: str) -> None:
        """Take a file away; a missing one is no error."""
        try:
            self._fs.rm_file(f"{self._root}/{path}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Unavailable("The export destination") from error

    def finish(self) -> None:
        """Take away what killed runs left under temporary names."""
        if self._local_root is not None:
            shutil.rmtree(self._local_root / _STAGING, ignore_errors=True)

    def address(self, path: str) -> str:
        """What polars, pyarrow and fsspec open the file by."""
        return str(self._fs.unstrip_protocol(f"{self._root}/{path}"))

    def _staging(self) -> Path:
        if self._local_root is None:
            return Path(tempfile.gettempdir())
        folder = self._local_root / _STAGING
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _publish(self, staged: Path, path: str, sha256: str, *, replace: bool) -> None:
        target = f"{self._root}/{path}"
        if self._local_root is None:
            if not replace and self._fs.exists(target):
                self._require_same(path, sha256)
            else:
                self._fs.put_file(str(staged), target)
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        if replace:
            staged.rename(target)
        elif not _publish_new(staged, Path(target)):
            self._require_same(path, sha256)
        _sync_folder(Path(target).parent)

    def _require_same(self, path: str, sha256: str) -> None:
        with self._fs.open(f"{self._root}/{path}", "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise FileConflict(path)


def open_destination(row: ExportRow, settings: Settings) -> Destination:
    """The directory of an export: hosted by the service, or below the operator's export root.

    Raises:
        DestinationNotAllowed: if a local path leads out of the export root, also over a link.
    """
    if row.destination["kind"] == "signed_url":
        return Destination(f"{settings.export_url.rstrip('/')}/{row.workspace_id}/{row.id}")
    return Destination(str(_allowed_folder(row.destination["path"], settings.local_export_root) / row.id))


def _allowed_folder(path: str, root: Path | None) -> Path:
    """The real folder that a path names; relative paths start at the root."""
    if root is None:
        raise DestinationNotAllowed
    if not path.isprintable() or "\\" in path:
        text = "path takes printable characters, without backslashes."
        raise InvalidDestination(text, "/destination/path")
    try:
        folder = (root / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise DestinationNotAllowed from error
    if not folder.is_relative_to(root.resolve()):
        raise DestinationNotAllowed
    return folder


def _is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _publish_new(staged: Path, target: Path) -> bool:
    """Give a file its name where nothing has it; False where something does."""
    try:
        # A link is made only where nothing lies: the conditional create of a file system.
        target.hardlink_to(staged)
    except FileExistsError:
        return False
    except OSError:
        # Some network and FUSE folders know no links.
        if target.exists():
            return False
        staged.rename(target)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
