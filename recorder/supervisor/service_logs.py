"""Log files of a running service: `recorder-up.log`, and the rotated logs of its child processes."""

import errno
import logging
import logging.handlers
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from recorder.logs import make_log_formatter

LOG_BYTES = 10_000_000
OLD_LOGS = 4
_LINES_KEPT_BYTES = 64_000
_LOGGER = "recorder.supervisor"

log = logging.getLogger(_LOGGER)


class LogRotation:
    """Rotation of the logs of child processes; one that fails is logged once, and stops nothing."""

    def __init__(self) -> None:
        #: Logs whose last rotation failed.
        self._failed: set[Path] = set()

    def rotate(self, paths: Iterable[Path]) -> None:
        """Replace each of these logs that is over 10 MB by an empty one, and keep the old one."""
        for path in paths:
            try:
                rotate_service_log(path)
            except OSError as error:
                if path not in self._failed:
                    self._failed.add(path)
                    log.warning("%s cannot be rotated: %s", path, error.strerror)
            else:
                self._failed.discard(path)


def rotate_service_log(path: Path, *, most_bytes: int = LOG_BYTES) -> bool:
    """Move a log over 10 MB to `<log>.1`, and older logs one number up; keep four of them.

    The process that writes the log keeps its open file: the contents are copied, then the file is truncated.
    Lines written in between, at most during a millisecond, are lost. On a full disk the last 64 kB of the log
    stay, the lines before them are deleted, and older logs stay as they are.

    Returns:
        Whether the log was moved.

    Raises:
        OSError: if the log cannot be copied for another reason than a full disk; nothing is changed then.
    """
    if not path.exists() or path.stat().st_size < most_bytes:
        return False
    copy = path.with_name(f"{path.name}.new")
    try:
        shutil.copyfile(path, copy)
    except OSError as error:
        with suppress(OSError):
            copy.unlink()
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("%s was cut to its last lines: there is no room to keep the others", path)
        _cut_service_log(path)
        return False
    for number in range(OLD_LOGS - 1, 0, -1):
        older = _make_rotated_log_path(path, number)
        if older.exists():
            older.replace(_make_rotated_log_path(path, number + 1))
    copy.replace(_make_rotated_log_path(path, 1))
    os.truncate(path, 0)
    return True


def _cut_service_log(path: Path) -> None:
    """Delete all of a log but its last 64 kB."""
    with path.open("rb") as file:
        file.seek(-min(_LINES_KEPT_BYTES, path.stat().st_size), os.SEEK_END)
        last = file.read()
    os.truncate(path, 0)
    # Appended, as the process that writes the log appends its lines; another process may have taken the room.
    with suppress(OSError), path.open("ab") as file:
        file.write(last)


class _ServiceLogHandler(logging.handlers.RotatingFileHandler):
    """Log file that drops lines which cannot be written, and prints nothing about them."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: the terminal shows the line."""


def open_service_log(folder: Path) -> logging.Handler:
    """Log the supervisor into `recorder-up.log` of this folder until `close_service_log`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = _ServiceLogHandler(folder / "recorder-up.log", maxBytes=LOG_BYTES, backupCount=OLD_LOGS)
    handler.setFormatter(make_log_formatter())
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    return handler


def close_service_log(handler: logging.Handler) -> None:
    """End logging into the file of `open_service_log`."""
    logging.getLogger(_LOGGER).removeHandler(handler)
    handler.close()


def _make_rotated_log_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
