"""Logs: one JSON object per line on stderr, without keys, bodies or control characters. Contract §9.

Modules log through the standard library. This module formats the lines, and removes secrets from all values.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor

from recorder import clock
from recorder.errors import RecorderError
from recorder.request_context import current_request_id
from recorder.setting_parsers import LOG_LEVELS, UnknownLogLevel

#: Exit code of a process whose settings or data do not admit a start; a crash has another one.
START_REFUSED: Final = 78

log = logging.getLogger("recorder.start")

_SECRETS = re.compile(r"\b(nsk_(?:live|test|local)_|whsec_)[\w+/=-]+|\b((?:sig|token|secret)=)[^\s&\"']+")
# The whole word, so that a text is read once. A password may hold any character, also `/` and `@`.
_ADDRESSES = re.compile(r"(?<=://)\S+")
# Copies of the message that uvicorn and other handlers leave on a record.
_TWICE = ("color_message", "message", "asctime")
_FRAMES = 20
_TEXTS = 100
_CAUSES = 8


class RepeatedWarnings(logging.Filter):
    """Filter that passes a warning of the same text once a minute, with the number of those left out.

    The server logs a warning for each request that it cannot parse, so a client could fill the disk.
    """

    def __init__(self, *, pause_s: float = 60.0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._pause_s = pause_s
        self._now = now
        #: Text without its arguments → when it was last written, and how many were left out since.
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        if record.levelno != logging.WARNING:
            return True
        text = str(record.msg)
        written_at, left_out = self._seen.get(text, (-self._pause_s, 0))
        if self._now() - written_at < self._pause_s:
            self._seen[text] = (written_at, left_out + 1)
            return False
        if len(self._seen) >= _TEXTS:
            self._seen.clear()
        self._seen[text] = (self._now(), 0)
        if left_out:
            record.repeated = left_out
        return True


class _Stderr(logging.StreamHandler[Any]):
    """Handler that writes to the current `sys.stderr`, as the standard library's last resort does."""

    def __init__(self, formatter: logging.Formatter) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(formatter)

    @property
    def stream(self) -> Any:
        return sys.stderr


def configure_logs(level: str) -> None:
    """Configure the logs of this process: the service from a level on, libraries from warnings on.

    Raises:
        UnknownLogLevel: if there is no such level.
    """
    if level not in LOG_LEVELS:
        raise UnknownLogLevel
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Stderr)]:
        root.removeHandler(handler)
    root.addHandler(_Stderr(make_log_formatter()))
    logging.getLogger("recorder").setLevel(level.upper())
    logging.captureWarnings(True)
    _take_over_server_logs()


@contextmanager
def logged_start() -> Iterator[None]:
    """Log a failed start as one line of JSON, and end the process.

    Raises:
        SystemExit: with `START_REFUSED` if settings or data do not admit the start, with 1 after a defect.
    """
    try:
        yield
    except RecorderError as error:
        _configure_bare_logging()
        log.error(str(error))
        raise SystemExit(START_REFUSED) from error
    except Exception as error:
        _configure_bare_logging()
        log.exception("the process cannot start")
        raise SystemExit(1) from error


def _configure_bare_logging() -> None:
    """Give log lines their form where the start failed before the settings were read."""
    if not any(isinstance(handler, _Stderr) for handler in logging.getLogger().handlers):
        configure_logs("info")


def make_log_formatter() -> logging.Formatter:
    """Return the formatter of log lines."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _add_request_id,
        _add_exception,
        _put_time_first,
        _redact_entry,
    ]
    return ProcessorFormatter(
        processors=[*shared, ProcessorFormatter.remove_processors_meta, _render_log_line],
        use_get_message=True,
    )


def _take_over_server_logs() -> None:
    """Format the server's log lines too; drop its access lines, which hold queries."""
    server, access = logging.getLogger("uvicorn"), logging.getLogger("uvicorn.access")
    server.handlers.clear()
    server.propagate = True
    access.handlers.clear()
    access.propagate = False
    errors = logging.getLogger("uvicorn.error")
    if not any(isinstance(each, RepeatedWarnings) for each in errors.filters):
        errors.addFilter(RepeatedWarnings())


def _add_request_id(_: Any, __: str, entry: EventDict) -> EventDict:
    request_id = current_request_id()
    if request_id is not None:
        entry.setdefault("request_id", request_id)
    return entry


def _put_time_first(_: Any, __: str, entry: EventDict) -> EventDict:
    """Put the time of a log entry before its other members."""
    record: logging.LogRecord = entry["_record"]
    at = clock.to_iso(clock.from_ms(int(record.created * 1000)))
    for name in _TWICE:
        entry.pop(name, None)
    return {"at": at, "level": entry.pop("level"), "event": entry.pop("event"), **entry}


def _add_exception(_: Any, __: str, entry: EventDict) -> EventDict:
    """Describe the exception of a log entry in place of its traceback."""
    exc_info = entry.pop("exc_info", None)
    if exc_info and exc_info[1] is not None:
        entry["exception"] = describe_exception(exc_info[1])
    return entry


def describe_exception(error: BaseException) -> list[dict[str, Any]]:
    """Return an error and its causes, the last first: type, frames, and the text of the service's own errors.

    Texts of drivers and validators are left out: they quote parameters of rows and members of bodies.
    """
    causes: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(causes) < _CAUSES:
        causes.append(_describe_error(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return causes


def _describe_error(error: BaseException) -> dict[str, Any]:
    """Return the type, text and stack of an error for a log entry, without values that it may quote."""
    members: dict[str, Any] = {"type": f"{type(error).__module__}.{type(error).__qualname__}"}
    if isinstance(error, RecorderError):
        members["message"] = str(error)
    elif isinstance(error, OSError) and error.strerror:
        members["message"] = error.strerror
    elif isinstance(error, BaseExceptionGroup):
        members["group"] = [describe_exception(member) for member in error.exceptions[:_CAUSES]]
    frames = traceback.walk_tb(error.__traceback__)
    locations = [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in frames]
    members["frames"] = locations[-_FRAMES:]
    return members


def _redact_entry(_: Any, __: str, entry: EventDict) -> EventDict:
    """Replace secrets in all values of a log entry."""
    return {name: _redact_value(value) if name[0] != "_" else value for name, value in entry.items()}


def _redact_value(value: Any) -> Any:
    """Return a value of a log entry with secrets and credentials in addresses replaced."""
    if isinstance(value, dict):
        return {_redact_value(str(name)): _redact_value(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(member) for member in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _ADDRESSES.sub(_redact_credentials, _SECRETS.sub(r"\1\2[redacted]", str(value)))


def _redact_credentials(address: re.Match[str]) -> str:
    """Return an address, given without its scheme, without user and password: all before its last `@`."""
    credentials, _, rest = address[0].rpartition("@")
    return f"[redacted]@{rest}" if credentials else address[0]


def _render_log_line(_: Any, __: str, entry: EventDict) -> str:
    # ASCII alone: JSON escapes every control character but one, and no terminal acts on the rest.
    return json.dumps(entry, ensure_ascii=True).replace("\x7f", "\\u007f")
