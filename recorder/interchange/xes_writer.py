"""XES writer: traces of a log as a file, trace by trace. IEEE 1849; decision 0022."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from recorder.hashing import canonical_json
from recorder.interchange.event_logs import LogEvent, LogTrace
from recorder.interchange.whole_files import replace_file_at_end
from recorder.interchange.xes_reader import ACTIVITY, LIFECYCLE, MOST_DEPTH, TIME, format_xes_value

#: Keys of the columns that logs of user interfaces have beside those of the standard.
UI_ACTION, UI_TARGET, UI_APPLICATION = "ui:action", "ui:target", "ui:application"
#: Keys of what the recorder knows of a session.
SESSION, OUTCOME = "recorder:session", "recorder:outcome"
_STANDARD = "http://www.xes-standard.org/"
_EXTENSIONS = (
    ("Concept", "concept", f"{_STANDARD}concept.xesext"),
    ("Time", "time", f"{_STANDARD}time.xesext"),
    ("Lifecycle", "lifecycle", f"{_STANDARD}lifecycle.xesext"),
    ("Organizational", "org", f"{_STANDARD}org.xesext"),
    ("User interface", "ui", "urn:workflow-recorder:ui"),
    ("Recorder", "recorder", "urn:workflow-recorder:recorder"),
)
#: From this depth on what is nested is written as JSON: anybody can put anything into a session's metadata,
#: and no reader may refuse the log for it, ours first. Values of a list stand two elements deeper than it.
_NESTED_DEPTH = MOST_DEPTH - 4
# XML 1.0 allows these characters nowhere, not even as references.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_ESCAPED = re.compile('[&<>"\t\n\r]')


def write_xes(path: Path, traces: Iterable[LogTrace], *, name: str) -> int:
    """Write traces to a file, as gzip where its name ends in `.gz`; returns how many.

    The file appears when it is whole: what goes wrong before leaves none, or the one that was there.

    Args:
        path: the file to write.
        traces: the traces, in order.
        name: what the log is called.
    """
    written = 0
    with replace_file_at_end(path) as part, _open_xes_part(part, is_gzip=path.name.endswith(".gz")) as file:
        for line in _format_xes_head(name):
            file.write(line.encode())
        for trace in traces:
            file.write("".join(_format_xes_trace(trace)).encode())
            written += 1
        file.write(b"</log>\n")
    return written


@contextmanager
def _open_xes_part(part: Path, *, is_gzip: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with part.open("wb") as raw:
        if is_gzip:
            # Neither name nor time inside: equal logs are equal files.
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                yield packed
        else:
            yield raw


def _format_xes_head(name: str) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f'<log xes.version="1849.2016" xes.features="nested-attributes" xmlns="{_STANDARD}">\n'
    for title, prefix, uri in _EXTENSIONS:
        yield f'  <extension name="{title}" prefix="{prefix}" uri="{uri}"/>\n'
    yield '  <global scope="trace">\n    <string key="concept:name" value="unknown"/>\n  </global>\n'
    yield '  <global scope="event">\n    <string key="concept:name" value="unknown"/>\n'
    yield '    <date key="time:timestamp" value="1970-01-01T00:00:00.000Z"/>\n'
    yield '    <string key="lifecycle:transition" value="complete"/>\n  </global>\n'
    yield '  <classifier name="Activity" keys="concept:name"/>\n'
    yield from _format_xes_attribute(ACTIVITY, name, 1)


def _format_xes_trace(trace: LogTrace) -> Iterator[str]:
    yield "  <trace>\n"
    yield from _format_xes_attributes({ACTIVITY: trace.name, **_omit_xes_name_and_time(trace.attributes)}, 2)
    for event in trace.events:
        yield "    <event>\n"
        yield from _format_xes_attributes(_make_xes_event_attributes(event), 3)
        yield "    </event>\n"
    yield "  </trace>\n"


def _make_xes_event_attributes(event: LogEvent) -> dict[str, Any]:
    timed = {} if event.time is None else {TIME: event.time}
    return {
        ACTIVITY: event.activity,
        **timed,
        LIFECYCLE: "complete",
        **_omit_xes_name_and_time(event.attributes),
    }


def _omit_xes_name_and_time(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes but for those that a trace or an event has members for."""
    return {key: value for key, value in attributes.items() if key not in (ACTIVITY, TIME)}


def _format_xes_attributes(attributes: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in attributes.items():
        yield from _format_xes_attribute(key, value, depth)


def _format_xes_attribute(key: str, value: Any, depth: int) -> Iterator[str]:
    """Yield an attribute on lines of its own, with those it has itself."""
    indent = "  " * depth
    named = _quote_xes_text(key)
    if depth >= _NESTED_DEPTH and isinstance(value, list | Mapping):
        value = _format_xes_json(value)
    if isinstance(value, list):
        yield f"{indent}<list key={named}>\n{indent}  <values>\n"
        for item in value:
            yield from _format_xes_attribute(key, item, depth + 2)
        yield f"{indent}  </values>\n{indent}</list>\n"
        return
    inner: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        if not _has_xes_attributes(value):
            yield f"{indent}<container key={named}>\n"
            yield from _format_xes_attributes(value, depth + 1)
            yield f"{indent}</container>\n"
            return
        value, inner = value["value"], value["attributes"]
    kind, text = ("string", str(value)) if key == ACTIVITY else format_xes_value(value)
    start = f"{indent}<{kind} key={named} value={_quote_xes_text(text)}"
    if not inner:
        yield f"{start}/>\n"
        return
    yield f"{start}>\n"
    yield from _format_xes_attributes(inner, depth + 1)
    yield f"{indent}</{kind}>\n"


def _has_xes_attributes(value: Mapping[str, Any]) -> bool:
    """Return whether `value` is a value with attributes, not a mapping with just two keys of these names."""
    return (
        set(value) == {"value", "attributes"}
        and isinstance(value["attributes"], Mapping)
        and not isinstance(value["value"], list | Mapping)
    )


def _format_xes_json(value: Any) -> str:
    try:
        return canonical_json(value).decode()
    except TypeError:
        # Integers beyond 64 bits and halves of pairs, both of which JSON may hold and canonical JSON may not.
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


#: Longer texts are not remembered, so that the cache stays small.
_REMEMBERED_CHARACTERS = 200


def _quote_xes_text(text: str) -> str:
    """Return text as the value of an XML attribute; what XML cannot hold becomes U+FFFD."""
    return (
        _quote_xes_text_cached(text)
        if len(text) <= _REMEMBERED_CHARACTERS
        else _quote_xes_text_cached.__wrapped__(text)
    )


@lru_cache(maxsize=65_536)
def _quote_xes_text_cached(text: str) -> str:
    allowed = _FORBIDDEN.sub("\ufffd", text)
    return '"' + _ESCAPED.sub(lambda match: _ESCAPES[match[0]], allowed) + '"'
