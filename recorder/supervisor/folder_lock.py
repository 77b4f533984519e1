"""Lock of a data folder: one service runs on it at a time. Contract §9."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from recorder.errors import Conflict

# The guard of a killed service ends its children within eight seconds, and holds the lock until then.
_PATIENCE_S = 10.0
_POLL_S = 0.1


class FolderInUse(Conflict):
    """Another service runs on the data folder."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        by = f", process {pid}," if pid is not None else ""
        super().__init__(
            f"Another service{by} runs on the data folder {folder}. Stop it first, or choose another folder "
            "with --data."
        )


class FolderLock:
    """Exclusive right to run a service on a data folder; it ends with the processes that hold it."""

    def __init__(self, descriptor: int) -> None:
        #: Open file that carries the lock; a process that inherits it holds the lock too.
        self.descriptor = descriptor

    @classmethod
    def take(cls, data_dir: Path) -> "FolderLock":
        """Lock a data folder.

        What a killed service left behind may take some seconds to end, and is waited for.

        Raises:
            FolderInUse: if a service runs on it.
        """
        path = data_dir / "run" / "service.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = _read_holder(descriptor)
                if (holder is not None and _is_running(holder)) or time.monotonic() > until:
                    os.close(descriptor)
                    raise FolderInUse(data_dir, holder) from None
                time.sleep(_POLL_S)
            else:
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return cls(descriptor)

    def release(self) -> None:
        """Give the folder back; further calls do nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _read_holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0)
    return int(text) if text.isdigit() else None


def _is_running(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
