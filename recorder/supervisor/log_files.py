"""Log files of a service, bounded in size: 10 MB each, the latest and four before it."""

import logging
import logging.handlers
import os
import shutil
from pathlib import Path

from recorder.logs import make_formatter

LOG_BYTES = 10_000_000
OLD_LOGS = 4
_LOGGER = "recorder.supervisor"


def rotate_log(log: Path, *, most_bytes: int = LOG_BYTES) -> bool:
    """Move a log that is too large to `<log>.1`, the ones before it one number up; the oldest goes.

    The process that writes the log keeps its open file: the contents are copied, then the file is cut to
    nothing. Lines written between both are lost, a millisecond's worth at most.

    Returns:
        Whether the log was moved.
    """
    if not log.exists() or log.stat().st_size < most_bytes:
        return False
    for number in range(OLD_LOGS - 1, 0, -1):
        older = _numbered(log, number)
        if older.exists():
            older.replace(_numbered(log, number + 1))
    shutil.copyfile(log, _numbered(log, 1))
    os.truncate(log, 0)
    return True


def open_service_log(folder: Path) -> logging.Handler:
    """Let the supervisor log into `recorder-up.log` of this folder; `close_service_log` ends it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        folder / "recorder-up.log", maxBytes=LOG_BYTES, backupCount=OLD_LOGS
    )
    handler.setFormatter(make_formatter())
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    return handler


def close_service_log(handler: logging.Handler) -> None:
    """End what `open_service_log` began."""
    logging.getLogger(_LOGGER).removeHandler(handler)
    handler.close()


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
