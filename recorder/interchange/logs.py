"""An event log in memory, one trace at a time: what every format of logs is read into and written from."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from recorder import clock
from recorder.errors import Invalid

#: An attribute: text, a number, a truth, an instant; a list of attributes' values; or, where an attribute has
#: attributes itself, `{"value": …, "attributes": {…}}`.
Attributes = dict[str, Any]
#: Type of the events that a log is imported as: `data` holds `name`, and `attributes` as the log had them.
ACTIVITY_TYPE = "activity"


class UnreadableLog(Invalid):
    """A file that is no event log, or one that is not taken; its words name the file and the line."""

    def __init__(self, file: str, line: int | None, what: str) -> None:
        place = file if line is None else f"{file}, line {line}"
        super().__init__(f"{place}: {what}.")
        self.line = line


@dataclass(slots=True)
class LogEvent:
    """Something that was done, as its trace has it."""

    activity: str
    #: None where the log does not say.
    time: datetime | None
    #: Everything else that stands at it.
    attributes: Attributes = field(default_factory=dict)
    #: Where it begins in its file.
    line: int | None = None


@dataclass(slots=True)
class LogTrace:
    """One run of a process: its events in order."""

    #: What the log calls it; unique in most logs.
    name: str
    attributes: Attributes = field(default_factory=dict)
    events: list[LogEvent] = field(default_factory=list)
    line: int | None = None


def log_name(path: Path) -> str:
    """What people call a log: its file's name without endings."""
    return path.name.partition(".")[0]


#: Instant of events of which nothing says when they were: their order still stands.
_UNKNOWN_TIME = clock.from_ms(0)


def log_rows(traces: Iterable[LogTrace]) -> pl.DataFrame:
    """case (string), activity (string), time (UTC, µs): the events, trace by trace, in order.

    Traces of one name stay apart: the second `A` is `A (2)`.
    """
    cases: list[str] = []
    activities: list[str] = []
    times: list[datetime] = []
    seen: dict[str, int] = {}
    for trace in traces:
        seen[trace.name] = seen.get(trace.name, 0) + 1
        case = trace.name if seen[trace.name] == 1 else f"{trace.name} ({seen[trace.name]})"
        cases += [case] * len(trace.events)
        activities += [event.activity for event in trace.events]
        times += [event.time or _UNKNOWN_TIME for event in trace.events]
    return pl.DataFrame(
        {"case": cases, "activity": activities, "time": times},
        schema={"case": pl.String, "activity": pl.String, "time": pl.Datetime("us", "UTC")},
    )
