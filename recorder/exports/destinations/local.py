"""A folder of this machine as a destination. Contract §5."""

import errno
import hashlib
import os
import shutil
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from recorder import clock
from recorder.errors import InvalidDestination, RecorderError, Unavailable
from recorder.exports.destinations.base import Destination, FileConflict, PinnedFile
from recorder.exports.destinations.hashed_files import WRITE_REFUSAL, HashedFile, raise_export_write_error
from recorder.ids import new_id
from recorder.storage.durable_files import make_durable_folder, sync_path_to_disk

_STAGING = ".staging"
# Other users may get the right to read, never to write.
_FOLDER_MODE = 0o755
_FILE_MODE = 0o644
_PIECE_BYTES = 1024 * 1024
#: Attempts to create a folder while probes of other exports remove empty ones around it.
_MOST_ATTEMPTS = 100
#: Age in seconds from which an empty folder without a name counts as left by a killed process.
_LEFT_S = 3_600
_PATH_REFUSAL = "The file system does not take this path; send a shorter one, of usual names."
_SUBJECT = "The export destination"
# Errors of a file system that will never take the file, as opposed to one that does not answer.
_REFUSED = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError, FileNotFoundError)
# Numbers of errors for paths that a file system never takes.
_INVALID_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


class LocalFolderDestination(Destination):
    """The directory of one export in a folder; a file gets its name when it is whole and synced."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @contextmanager
    def create(self, path: str, *, replace: bool = False) -> Iterator[HashedFile]:
        """Yield a file that has a temporary name until it is published at the end of the block."""
        hashed: HashedFile | None = None
        staged = self.root / _STAGING / new_id("req")
        try:
            _make_local_folder(staged.parent)
            with staged.open("xb") as file, HashedFile(file) as hashed:
                with suppress(OSError):  # some network folders take no modes
                    os.fchmod(file.fileno(), staged.parent.stat().st_mode & _FILE_MODE)
                yield hashed
                hashed.flush()
                os.fdatasync(file.fileno())
            self._publish_file(staged, path, hashed.sha256, replace=replace)
        except RecorderError:
            raise
        except Exception as error:
            raise_export_write_error(error, hashed)
        finally:
            with suppress(OSError):  # what happened before says more
                staged.unlink(missing_ok=True)

    def probe(self) -> None:
        """Write and remove one file, and the folders that are created for it."""
        probe = self.root / f".probe-{new_id('req')}"
        created: list[Path] = []
        try:
            created = _make_local_folder(self.root)
            probe.write_bytes(b"probe")
            probe.unlink()
        except _REFUSED as error:
            raise InvalidDestination(WRITE_REFUSAL) from error
        except OSError as error:
            if error.errno in _INVALID_PATH:
                raise InvalidDestination(_PATH_REFUSAL, "/destination/path") from error
            raise Unavailable(_SUBJECT) from error
        finally:
            _remove_if_empty(created)

    def require_owner(self) -> None:
        """Do nothing: a folder of this machine is the operator's and takes files of all workspaces."""

    def size(self, path: str) -> int:
        """Return the size of a file."""
        with _translate_local_read_errors(path):
            return (self.root / path).stat().st_size

    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`, in pieces."""
        with self._open_file(path) as file, _translate_local_read_errors(path):
            yield from _read_local_pieces(file, start, end)

    def pin(self, path: str) -> PinnedFile:
        """Return the file as it is now: it may be replaced while it is read."""
        file = self._open_file(path)
        pinned = PinnedFile(os.fstat(file.fileno()).st_size, partial(_read_local_pieces, file))
        # Not every answer reads it.
        weakref.finalize(pinned, file.close)
        return pinned

    def fetch(self, path: str, folder: Path, *, size_bytes: int, sha256: str) -> Path:
        """Return the path of the file itself; nothing is copied."""
        with self._open_file(path) as file, _translate_local_read_errors(path):
            has_size = os.fstat(file.fileno()).st_size == size_bytes
            if not has_size or hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise KeyError(path)
        return self.root / path

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        try:
            (self.root / path).unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            raise Unavailable(_SUBJECT) from error

    def list_destination_paths(self) -> Iterator[str]:
        """Yield the paths of all files, in no order."""
        for path in self.root.rglob("*"):
            relative = path.relative_to(self.root)
            if relative.parts[0] != _STAGING and path.is_file():
                yield relative.as_posix()

    def remove_unfinished_files(self) -> None:
        """Remove files of killed runs that still have temporary names, and the export's empty folders.

        The folders around the export's own stay: the operator may have created them, with rights of theirs.
        """
        shutil.rmtree(self.root / _STAGING, ignore_errors=True)
        _remove_if_empty(Path(folder) for folder, _, files in os.walk(self.root, topdown=False) if not files)

    def address(self, path: str) -> str:
        """Return the file's path as an address."""
        return f"file://{self.root.absolute() / path}"

    def _open_file(self, path: str) -> BufferedReader:
        with _translate_local_read_errors(path):
            return (self.root / path).open("rb")

    def _publish_file(self, staged: Path, path: str, sha256: str, *, replace: bool) -> None:
        target = self.root / path
        _make_local_folder(target.parent)
        if replace:
            staged.rename(target)
        elif not _publish_new(staged, target):
            with target.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise FileConflict(path)
        sync_path_to_disk(target.parent)


def _read_local_pieces(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (piece := file.read(min(_PIECE_BYTES, end - start))):
        start += len(piece)
        yield piece


def _make_local_folder(folder: Path) -> list[Path]:
    """Create a folder and its parents, each with the read rights of the folder that contains it.

    The process creates private files; the folder that a local export is sent to decides who may read it.

    Returns:
        The folders that were created, the innermost first.
    """
    created: list[Path] = []
    for attempt in range(1, _MOST_ATTEMPTS + 1):
        missing = list(takewhile(lambda path: not path.exists(), [folder, *folder.parents]))
        try:
            for path in reversed(missing):
                _create_shared_folder(path)
                created.insert(0, path)
            make_durable_folder(folder)
            break
        except FileNotFoundError:  # a probe of another export removed an empty folder
            if attempt == _MOST_ATTEMPTS:
                raise
    return created


def _create_shared_folder(path: Path) -> None:
    """Create a folder that has its rights from the start: other exports may create folders in it at once."""
    mode = path.parent.stat().st_mode & _FOLDER_MODE
    _remove_left_folders(path.parent)
    staged = path.with_name(f".{new_id('req')}")
    staged.mkdir()
    with suppress(OSError):  # some network folders take no modes
        staged.chmod(mode)
    try:
        staged.rename(path)
    except OSError:
        staged.rmdir()
        # Another export created it, or this kind of network folder renames no folders.
        with suppress(FileExistsError):
            path.mkdir()
            with suppress(OSError):
                path.chmod(mode)
    with suppress(PermissionError):  # of a folder in which this user may create files and not list them
        sync_path_to_disk(path.parent)


def _remove_left_folders(parent: Path) -> None:
    """Remove folders without a name that killed processes left empty an hour ago or more."""
    oldest = clock.now().timestamp() - _LEFT_S
    with suppress(OSError):  # a folder that this user may not list
        _remove_if_empty(left for left in parent.glob(".req_*") if left.stat().st_mtime < oldest)


def _remove_if_empty(folders: Iterable[Path]) -> None:
    """Remove folders that are empty; inner folders come before those that contain them."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def _translate_local_read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise KeyError(path) from error
    except OSError as error:
        raise Unavailable(_SUBJECT) from error


def _publish_new(staged: Path, target: Path) -> bool:
    """Give a file its name; return False if the name is taken."""
    try:
        # A link is created only if the name is free: the conditional create of a file system.
        target.hardlink_to(staged)
    except FileExistsError:
        return False
    except OSError:
        # Some network and FUSE folders have no links.
        if target.exists():
            return False
        staged.rename(target)
    return True
