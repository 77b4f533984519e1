"""Files that are hashed while they are written, and the free space that must remain. Spec §2.5."""

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self

from recorder.errors import InvalidDestination, RecorderError, Unavailable

#: Free space for the databases that may be on the same disk.
_RESERVED_BYTES = 64 * 1024 * 1024
_CHECK_EVERY_BYTES = 16 * 1024 * 1024
#: Smaller pieces are gathered to one of this size before they are queued.
_PIECE_BYTES = 1024 * 1024
#: So much, or a single larger piece, waits to be written at most.
_WAITING_BYTES = 4 * 1024 * 1024
#: Text of the error for a folder or bucket that this process may not write to.
WRITE_REFUSAL = "The destination refuses writing; check its path and rights."
_SUBJECT = "The export destination"


class DiskFull(RecorderError):
    """The disk has no free space for a file of the export."""

    code = "disk_full"
    title = "Disk full"

    def __init__(self) -> None:
        super().__init__("The disk that files are written to is full; make room and export again.")

    @staticmethod
    def matches_error(error: BaseException) -> bool:
        """Return whether the operating system refused because the disk is full."""
        return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class HashedFile:
    """A file that is written and hashed in two threads while the caller makes the next bytes.

    Writing takes as long as hashing, and both release Python's lock. A later call raises an error, `flush`
    at the latest, and nothing is written after it; `failure` keeps it, since writers may raise another one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._checked_bytes = -_CHECK_EVERY_BYTES
        self._written_bytes = 0
        self._gathered = bytearray()
        self._waiting: deque[tuple[int, Future[None], Future[None]]] = deque()
        self._waiting_bytes = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self.size_bytes = 0
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until both threads have ended; the file itself stays open."""
        for pool in (self._writer, self._hasher):
            pool.shutdown(cancel_futures=True)

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; they may be written later.

        Raises:
            DiskFull: if the disk has no space for earlier ones.
        """
        self._raise_first_failure()
        view = memoryview(data).cast("B")
        if view.nbytes < _PIECE_BYTES:
            self._gathered += view
        else:
            self._queue_gathered_bytes()
            if isinstance(data, bytes):
                self._queue_piece(data)
            else:
                # The caller may change mutable bytes before they are written.
                for start in range(0, view.nbytes, _PIECE_BYTES):
                    self._queue_piece(bytes(view[start : start + _PIECE_BYTES]))
        if len(self._gathered) >= _PIECE_BYTES:
            self._queue_gathered_bytes()
        self.size_bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Wait until all bytes are hashed and written to the file, without a sync.

        Raises:
            DiskFull: if the disk has no space for it.
        """
        self._raise_first_failure()
        if self._waiting:
            self._queue_gathered_bytes()
            while self._waiting:
                self._await_oldest_piece()
        elif self._gathered:
            # A small file needs no threads.
            self._digest.update(self._gathered)
            self._keep_failure(self._write_piece, self._gathered)
            self._gathered = bytearray()
        self._keep_failure(self._file.flush)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size_bytes

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        return self._file.closed

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes so far."""
        if self._gathered or self._waiting:
            self.flush()
        return self._digest.hexdigest()

    def _queue_gathered_bytes(self) -> None:
        if self._gathered:
            piece, self._gathered = self._gathered, bytearray()
            self._queue_piece(piece)

    def _queue_piece(self, piece: bytes | bytearray) -> None:
        """Queue a piece for the threads that write and hash it; wait while too many bytes are queued."""
        hashed = self._hasher.submit(self._digest.update, piece)
        self._waiting.append((len(piece), self._writer.submit(self._write_after_all, piece), hashed))
        self._waiting_bytes += len(piece)
        while self._waiting_bytes > _WAITING_BYTES and len(self._waiting) > 1:
            self._await_oldest_piece()

    def _write_after_all(self, piece: bytes | bytearray) -> None:
        """Write a piece, unless an earlier one failed: a file must have no hole."""
        self._raise_first_failure()
        self._keep_failure(self._write_piece, piece)

    def _write_piece(self, piece: bytes | bytearray) -> None:
        if self._written_bytes - self._checked_bytes >= _CHECK_EVERY_BYTES:
            self._checked_bytes = self._written_bytes
            _require_free_space(self._file)
        left = memoryview(piece)
        while left:
            left = left[self._file.write(left) :]
        self._written_bytes += len(piece)

    def _await_oldest_piece(self) -> None:
        size, written, hashed = self._waiting.popleft()
        self._waiting_bytes -= size
        self._keep_failure(written.result)
        self._keep_failure(hashed.result)

    def _keep_failure(self, work: Callable[..., None], *given: Any) -> None:
        """Do the work, keep its error if it is the first, and raise the first error."""
        try:
            work(*given)
        except Exception as error:
            # The first error is kept: it causes the later ones.
            if self.failure is None:
                self.failure = DiskFull() if DiskFull.matches_error(error) else error
            self._raise_first_failure()

    def _raise_first_failure(self) -> None:
        if self.failure is not None:
            # `from None`: an error that is raised from itself makes an endless chain of causes.
            raise self.failure from None


def _require_free_space(file: BinaryIO) -> None:
    free = os.fstatvfs(file.fileno())
    if free.f_bavail * free.f_frsize < _RESERVED_BYTES:
        raise DiskFull


def raise_export_write_error(error: Exception, file: HashedFile | None) -> NoReturn:
    """Raise the error of the export for an error in writing.

    Args:
        error: error of the writer.
        file: the file, if it was opened; it keeps its first error, which a writer may have replaced.
    """
    cause = file.failure if file is not None and file.failure is not None else error
    if DiskFull.matches_error(cause):
        raise DiskFull from error
    if isinstance(cause, PermissionError):
        raise InvalidDestination(WRITE_REFUSAL) from error
    if isinstance(cause, OSError):
        raise Unavailable(_SUBJECT) from error
    # Not from itself: that makes an endless chain of causes.
    raise cause from (None if cause is error else error)
