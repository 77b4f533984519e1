"""Event logs in memory, one trace at a time, and their directly-follows graphs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

import polars as pl

from recorder import clock
from recorder.errors import Invalid
from recorder.interchange.whole_files import replace_file_at_end
from recorder.memory.graph.directly_follows import LogAggregate

#: An attribute: text, a number, a truth, an instant; a list of attributes' values; or, where an attribute has
#: attributes itself, `{"value": …, "attributes": {…}}`.
Attributes = dict[str, Any]
#: Type of the events that a log is imported as: `data` holds `name`, and `attributes` as the log had them.
ACTIVITY_TYPE = "activity"


class UnreadableLog(Invalid):
    """A file that is no event log, or one that is not taken; its words name the file and the line."""

    def __init__(self, file: str, line: int | None, what: str) -> None:
        location = file if line is None else f"{file}, line {line}"
        super().__init__(f"{location}: {what}.")
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


def event_log_name(path: Path) -> str:
    """Return the name of a log: its file's name without endings."""
    return path.name.partition(".")[0]


#: Instant of events without a timestamp; their order in the log is kept.
_UNKNOWN_TIME = clock.from_ms(0)


def event_log_rows(traces: Iterable[LogTrace]) -> pl.DataFrame:
    """Return the events, trace by trace, as case (string), activity (string) and time (UTC, µs).

    Traces of one name stay apart: the second `A` is `A (2)`, or the next number that no trace has.
    """
    cases: list[str] = []
    activities: list[str] = []
    times: list[datetime] = []
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    for trace in traces:
        case, number = trace.name, numbers.get(trace.name, 1)
        while case in taken:
            number += 1
            case = f"{trace.name} ({number})"
        taken.add(case)
        numbers[trace.name] = number
        cases += [case] * len(trace.events)
        activities += [event.activity for event in trace.events]
        times += [event.time or _UNKNOWN_TIME for event in trace.events]
    return pl.DataFrame(
        {"case": cases, "activity": activities, "time": times},
        schema={"case": pl.String, "activity": pl.String, "time": pl.Datetime("us", "UTC")},
    )


#: Ending of the files that `pm4py.read_dfg` opens; all others are JSON.
LINES_SUFFIX = ".dfg"


class DirectlyFollows(TypedDict):
    """Directly-follows graph: counts of follows, of first and of last activities."""

    #: `[source, target, n]` each: pairs are no keys of JSON objects.
    dfg: list[tuple[str, str, int]]
    start_activities: dict[str, int]
    end_activities: dict[str, int]


def directly_follows(aggregate: LogAggregate) -> DirectlyFollows:
    """Return the edges of a log's directly-follows graph, most frequent first."""
    edges = aggregate.edges
    begins, ends = pl.col("source").is_null(), pl.col("target").is_null()
    return {
        "dfg": edges.filter(~begins & ~ends).select("source", "target", "n").rows(),
        "start_activities": dict(edges.filter(begins).select("target", "n").rows()),
        "end_activities": dict(edges.filter(ends).select("source", "n").rows()),
    }


def write_dfg(path: Path, graph: DirectlyFollows) -> None:
    """Write a graph, in the format that the file's name asks for; the file appears when it is whole."""
    lines = (
        _format_lines(graph) if path.suffix == LINES_SUFFIX else iter([json.dumps(graph, ensure_ascii=False)])
    )
    with replace_file_at_end(path) as part:
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _format_lines(graph: DirectlyFollows) -> Iterator[str]:
    """Yield activities by number, then first activities, last activities, and the pairs that follow.

    An activity is one line. Names that differ in white space alone are one activity: PM4Py keeps counts by
    name, the last of equal ones.
    """
    follows: Counter[tuple[str, str]] = Counter()
    for source, target, n in graph["dfg"]:
        follows[_format_line_name(source), _format_line_name(target)] += n
    ends: list[Counter[str]] = [Counter(), Counter()]
    for counts, given in zip(ends, (graph["start_activities"], graph["end_activities"]), strict=True):
        for label, n in given.items():
            counts[_format_line_name(label)] += n
    labels = sorted({label for pair in follows for label in pair}.union(*ends))
    number = {label: n for n, label in enumerate(labels)}
    yield str(len(labels))
    yield from labels
    for counts in ends:
        yield str(len(counts))
        yield from (f"{number[label]}x{n}" for label, n in counts.most_common())
    yield from (f"{number[source]}>{number[target]}x{n}" for (source, target), n in follows.most_common())


def _format_line_name(label: str) -> str:
    """Return an activity's label as one line, as process mining tools show it."""
    return " ".join(label.split())
