"""Reader of XES event logs: traces, events, and the values of their attributes. IEEE 1849 §4.3.

Text that does not fit its type is kept as text: logs in the wild mark what is missing with words.
"""

import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from recorder import clock
from recorder.errors import InvalidTime
from recorder.interchange.event_logs import Attributes, LogEvent, LogTrace, UnreadableLog

_LARGEST_INT = 2**63 - 1


def parse_xes_value(kind: str, text: str) -> Any:
    """Return the value of an attribute's text.

    Args:
        kind: name of its element: string, date, int, float, boolean, id.
        text: text of the attribute.
    """
    parse = _PARSERS.get(kind)
    if parse is None:
        return text
    try:
        return parse(text)
    except (KeyError, ValueError, OverflowError):
        return text


def parse_xes_date(text: str) -> datetime:
    """Return an instant; one without a zone is taken for UTC.

    Raises:
        ValueError: if the text is none, or is outside the years 1 to 9999.
    """
    moment = datetime.fromisoformat(text.strip())
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def format_xes_value(value: Any) -> tuple[str, str]:
    """Return element name and text of a value; text that reads as an instant is one."""
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, float):
        return "float", repr(value)
    if isinstance(value, datetime):
        return "date", clock.to_iso(value)
    text = "" if value is None else str(value)
    return ("date" if _is_xes_instant(text) else "string"), text


def _is_xes_instant(text: str) -> bool:
    if not (20 <= len(text) <= 35 and text[:4].isdecimal()):
        return False
    try:
        clock.parse_time(text, name="value")
    except InvalidTime:
        return False
    return True


def _check_xes_number(text: str) -> None:
    """Refuse what Python alone reads as a number: `1_000`, and digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)


def _parse_xes_int(text: str) -> int:
    _check_xes_number(text)
    # Long texts are not even tried: the time of reading them grows with their square.
    number = int(text) if len(text) <= 20 else _LARGEST_INT + 1
    if abs(number) > _LARGEST_INT:
        raise OverflowError(text)
    return number


def _parse_xes_float(text: str) -> float:
    _check_xes_number(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _parse_xes_boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "date": parse_xes_date,
    "int": _parse_xes_int,
    "float": _parse_xes_float,
    "boolean": _parse_xes_boolean,
}


#: The largest public logs have below one GiB.
MOST_BYTES = 4 * 1024**3
#: How many times its own size a gzip file may hold, once that is worth asking: logs have 10 to 60 times.
MOST_RATIO = 200
_ASKED_FROM = 64 * 1024**2
_PIECE = 65_536
_GZIP_MAGIC = b"\x1f\x8b"


def read_xes_pieces(path: Path, *, most_bytes: int = MOST_BYTES) -> Iterator[bytes]:
    """Yield the content of a file, unpacked where it is gzip (whatever its name says).

    Args:
        path: the file.
        most_bytes: content from which on it is refused.

    Raises:
        UnreadableLog: if it cannot be opened, is damaged, or holds too much.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            size = file.seek(0, 2)
            file.seek(0)
            most = max(_ASKED_FROM, size * MOST_RATIO) if packed else most_bytes
            with gzip.GzipFile(fileobj=file) if packed else file as content:
                yield from _read_bounded_xes_file(path, content, min(most, most_bytes))
    except EOFError as error:
        raise UnreadableLog(path.name, None, "the gzip data is cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableLog(path.name, None, "the gzip data is damaged") from error
    except OSError as error:
        raise UnreadableLog(path.name, None, f"cannot be read ({type(error).__name__})") from error


def _read_bounded_xes_file(path: Path, file: "BinaryIO | gzip.GzipFile", most: int) -> Iterator[bytes]:
    read = 0
    while piece := file.read(_PIECE):
        read += len(piece)
        if read > most:
            raise UnreadableLog(
                path.name, None, f"holds more than {most:,} bytes, which no log of its size does"
            )
        yield piece


SUFFIXES = (".xes", ".xes.gz")
ACTIVITY, TIME, LIFECYCLE, RESOURCE = "concept:name", "time:timestamp", "lifecycle:transition", "org:resource"

MOST_DEPTH = 24
MOST_TEXT_BYTES = 1024 * 1024
MOST_TRACE_BYTES = 64 * 1024 * 1024
_ATTRIBUTES = frozenset(["string", "date", "int", "float", "boolean", "id", "list", "container"])
_CHILDREN = "values"
#: What a log may say of all its traces and events; a file could name other scopes without end.
_SCOPES = frozenset(["trace", "event"])


def read_xes_traces(
    path: Path,
    *,
    activity: Sequence[str] = (ACTIVITY,),
    most_bytes: int = MOST_BYTES,
    most_trace_bytes: int = MOST_TRACE_BYTES,
) -> Iterator[LogTrace]:
    """Yield the traces of a log in the file's order; their events in order of time, then of the file.

    An event without an activity has that of the log's `global` attributes; no other attribute is taken from
    these. An event without an instant has that of the one before it.

    Args:
        path: the file.
        activity: keys of the attributes that name an event's activity, joined by `+` where they are several.
        most_bytes: content of a file from which on it is refused.
        most_trace_bytes: size of a trace from which on it is refused.

    Raises:
        UnreadableLog: if this is no XES log, or exceeds a limit. Traces before that position were given out.
    """
    reader = _TraceParser(path.name, tuple(activity), most_trace_bytes)
    for piece in read_xes_pieces(path, most_bytes=most_bytes):
        yield from reader.feed(piece)
    yield from reader.feed(b"", is_last=True)


@dataclass(slots=True)
class _Element:
    """An element that is open: its position, and what was read of it."""

    tag: str
    key: str = ""
    value: Any = None
    attributes: Attributes = field(default_factory=dict)
    line: int = 0


class _TraceParser:
    """Incremental parser of XES: bytes in, traces out."""

    def __init__(
        self, name: str, activity: tuple[str, ...], most_trace_bytes: int = MOST_TRACE_BYTES
    ) -> None:
        self._name = name
        self._most_trace_bytes = most_trace_bytes
        self._activity = activity
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start_element
        self._parser.EndElementHandler = self._end_element
        self._fed = 0
        #: Where the open child of the log begins, within a piece.
        self._begun = 0
        self._open: list[_Element] = []
        self._events: list[LogEvent] = []
        self._globals: dict[str, Attributes] = {}
        self._done: list[LogTrace] = []
        self._traces = 0

    def feed(self, piece: bytes, *, is_last: bool = False) -> Iterator[LogTrace]:
        """Return the traces that end in these bytes."""
        try:
            self._parser.Parse(piece, is_last)
        except expat.ExpatError as error:
            raise self._make_error(
                f"not well-formed XML ({expat.ErrorString(error.code)})", error.lineno
            ) from error
        except (LookupError, ValueError) as error:
            if self._open:
                raise
            raise self._make_error("its encoding is not known here; write it as UTF-8") from error
        self._fed += len(piece)
        # What expat holds back is one token that has not ended.
        if self._fed - max(self._parser.CurrentByteIndex, 0) > MOST_TEXT_BYTES and not is_last:
            raise self._make_error(f"a text of more than {MOST_TEXT_BYTES:,} bytes")
        if len(self._open) > 1 and self._fed - self._begun > self._most_trace_bytes:
            raise self._make_error(f"a trace of more than {self._most_trace_bytes:,} bytes")
        if is_last and not self._traces:
            raise self._make_error("the log holds no trace")
        done, self._done = self._done, []
        yield from done

    def _start_element(self, name: str, given: dict[str, str]) -> None:
        tag = name.rpartition(" ")[2]
        depth = len(self._open)
        if depth >= MOST_DEPTH:
            raise self._make_error(f"elements nested deeper than {MOST_DEPTH}")
        if depth == 1:
            self._begun = self._fed
        if depth and tag in _ATTRIBUTES:  # nine elements of ten
            value = parse_xes_value(tag, given.get("value", ""))
            self._open.append(_Element(tag, given.get("key", ""), value))
            return
        if not depth and tag != "log":
            raise self._make_error(f"not an XES log: its root is <{tag[:40]}>, not <log>")
        if tag == "event" and self._open[-1].tag != "trace":
            raise self._make_error("an event outside a trace: which case it belongs to is not said")
        if tag == "trace" and depth != 1:
            raise self._make_error("a trace inside another element than <log>")
        self._open.append(_Element(tag, given.get("scope", ""), line=self._parser.CurrentLineNumber))

    def _end_element(self, _name: str) -> None:
        element = self._open.pop()
        if element.tag in _ATTRIBUTES:
            self._keep_attribute(element)
        elif element.tag == "event":
            self._events.append(self._make_event(element))
        elif element.tag == "trace":
            self._done.append(self._make_trace(element))
        elif element.tag == "global":
            if element.key in _SCOPES:
                self._globals[element.key] = element.attributes
        elif element.tag == _CHILDREN and self._open:
            # A list's values come below an element of their own.
            self._open[-1].attributes[_CHILDREN] = element.attributes.get(_CHILDREN, [])

    def _keep_attribute(self, element: _Element) -> None:
        """Put an attribute to the element around it."""
        around = self._open[-1]
        if around.tag == "log":
            return  # what the log says of itself concerns no trace
        value = element.value
        if element.tag == "list":
            value = element.attributes.get(_CHILDREN, list(element.attributes.values()))
        elif element.tag == "container":
            value = element.attributes
        elif element.attributes:
            value = {"value": value, "attributes": element.attributes}
        if around.tag == _CHILDREN:
            around.attributes.setdefault(_CHILDREN, []).append(value)
        else:
            around.attributes[element.key] = value

    def _make_event(self, element: _Element) -> LogEvent:
        attributes = element.attributes
        parts = [self._read_text(attributes, key) for key in self._activity]
        if not all(part.strip() for part in parts):
            missing = self._activity[[bool(part.strip()) for part in parts].index(False)]
            raise self._make_error(
                f"an event without {missing}; name another attribute with --activity", element.line
            )
        time = _flatten_xes_value(attributes.pop(TIME, None))
        if self._activity == (ACTIVITY,):
            attributes.pop(ACTIVITY, None)
        instant = time if isinstance(time, datetime) else self._parse_instant(str(time or ""), element.line)
        return LogEvent("+".join(parts), instant, attributes, element.line)

    def _read_text(self, attributes: Attributes, key: str) -> str:
        """Return an attribute as text: the event's own, else what the log says of all events."""
        value = _flatten_xes_value(attributes.get(key, self._globals.get("event", {}).get(key)))
        return "" if value is None or isinstance(value, list) else str(value)

    def _parse_instant(self, text: str, line: int) -> datetime | None:
        if not text.strip():
            return None
        try:
            return parse_xes_date(text)
        except ValueError as error:
            raise self._make_error(
                f"{TIME} is no instant such as 2026-03-02T09:00:00.000+01:00", line
            ) from error

    def _make_trace(self, element: _Element) -> LogTrace:
        events, self._events = self._events, []
        self._traces += 1
        name = _flatten_xes_value(element.attributes.pop(ACTIVITY, None))
        _sort_xes_events(events)
        return LogTrace(str(name or f"trace {self._traces}"), element.attributes, events, element.line)

    def _refuse_doctype(self, *_: Any) -> None:
        raise self._make_error("a document type (<!DOCTYPE>) is not taken: logs need none, and attacks do")

    def _make_error(self, what: str, line: int | None = None) -> UnreadableLog:
        return UnreadableLog(self._name, line or self._parser.CurrentLineNumber, what)


def _flatten_xes_value(value: Any) -> Any:
    """Return the value of an attribute that has attributes itself."""
    return value.get("value") if isinstance(value, dict) else value


def _sort_xes_events(events: list[LogEvent]) -> None:
    known = next((event.time for event in events if event.time is not None), None)
    for event in events:
        known = event.time = event.time or known
    if known is not None:
        events.sort(key=lambda event: event.time)  # type: ignore[arg-type, return-value]
