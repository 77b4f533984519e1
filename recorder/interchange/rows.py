"""A log as a table: one row for each event, as `recorder.memory.aggregation` takes it."""

from collections.abc import Iterable
from datetime import datetime

import polars as pl

from recorder import clock
from recorder.interchange.logs import LogTrace

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
