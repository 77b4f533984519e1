"""Files that are hashed while they are written, and the room that must be left on the disk. Spec §2.5."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from recorder.errors import RecorderError

#: Room that is left to the databases that may lie on the same disk.
_RESERVED_BYTES = 64 * 1024 * 1024
_CHECK_EVERY_BYTES = 16 * 1024 * 1024


class DiskFull(RecorderError):
    """The disk has no room for a file of the export."""

    code = "disk_full"
    title = "Disk full"

    def __init__(self) -> None:
        super().__init__("The disk that files are written to is full; make room and export again.")

    @staticmethod
    def is_meant_by(error: BaseException) -> bool:
        """Whether the operating system refused for want of room."""
        return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class HashedFile:
    """A file that is hashed while it is written.

    Writers may bury what a write raises under errors of their own: `failure` keeps it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._checked_bytes = -_CHECK_EVERY_BYTES
        self.size_bytes = 0
        self.failure: Exception | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes.

        Raises:
            DiskFull: if the disk has no room for them.
        """
        with self._noted():
            if self.size_bytes - self._checked_bytes >= _CHECK_EVERY_BYTES:
                self._checked_bytes = self.size_bytes
                _require_room(self._file)
            self._digest.update(data)
            written = self._file.write(data)
        self.size_bytes += written
        return written

    def flush(self) -> None:
        """Hand the bytes to the operating system."""
        with self._noted():
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

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = DiskFull() if DiskFull.is_meant_by(error) else error
            raise self.failure from error
        except DiskFull as error:
            self.failure = error
            raise


def _require_room(file: BinaryIO) -> None:
    free = os.fstatvfs(file.fileno())
    if free.f_bavail * free.f_frsize < _RESERVED_BYTES:
        raise DiskFull
