"""Log files of a service, bounded in size: 10 MB each, the latest and four before it."""

import logging
import logging.handlers
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import httpx

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


_ASK_EVERY_S = 5.0
_FIRST_REPORT_S = 60.0
_DIGITS = re.compile(r"[0-9]+")


class WarningWatch:
    """Reader of `/readyz` that knows which warnings it has printed."""

    def __init__(self, url: str, say: Callable[[str], object], *, has_dagster: bool) -> None:
        """Take where to ask.

        Args:
            url: address of `/readyz`.
            say: prints a sentence.
            has_dagster: whether Dagster was started with the service; without it, its silence is no news.
                With it, its first report takes some seconds.
        """
        self._url = url
        self._say = say
        self._dagster_due = time.monotonic() + _FIRST_REPORT_S if has_dagster else float("inf")
        self._shown: dict[tuple[str, str], str] = {}

    def run(self, stopping: Event) -> None:
        """Ask every few seconds until told to stop."""
        while not stopping.wait(_ASK_EVERY_S):
            try:
                answer = httpx.get(self._url, timeout=_ASK_EVERY_S, trust_env=False)
                self.take(answer.json())
            except (httpx.HTTPError, ValueError):
                continue  # the API's own silence is noticed elsewhere

    def take(self, readiness: dict[str, Any]) -> None:
        """Print what is new in an answer, and what is over.

        Figures grow from answer to answer; a warning that differs in them alone was printed before.
        """
        warnings = [(one["code"], one["message"]) for one in readiness.get("warnings", [])]
        if time.monotonic() < self._dagster_due:
            warnings = [one for one in warnings if one[0] != "dagster_silent"]
        for part, state in readiness.get("parts", {}).items():
            if state != "ok":
                warnings.append(("unavailable", f"The {part} does not answer; requests get 503."))
        found = {(code, _DIGITS.sub("#", message)): message for code, message in warnings}
        for key, message in found.items():
            if key not in self._shown:
                self._say(f"Warning  {key[0]}: {message}")
        for key, message in self._shown.items():
            if key not in found:
                self._say(f"Over     {key[0]}: {message}")
        self._shown = found
