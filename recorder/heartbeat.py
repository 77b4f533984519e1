"""Heartbeats of processes without an address: files whose time the supervisor reads."""

import os
from contextlib import suppress
from pathlib import Path


def write_heartbeat(path: Path) -> None:
    """Set the time of a pulse file to now; the file is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path)


class HeartbeatReader:
    """Reader of a pulse file that knows which beat it saw last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_ns = self._read_pulse_ns()

    def has_beaten(self) -> bool:
        """Return whether a beat came since the last call, or since the reader was made."""
        before, self._seen_ns = self._seen_ns, self._read_pulse_ns()
        return self._seen_ns != before and self._seen_ns is not None

    def _read_pulse_ns(self) -> int | None:
        with suppress(FileNotFoundError):
            return self._path.stat().st_mtime_ns
        return None
