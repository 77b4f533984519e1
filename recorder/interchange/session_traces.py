"""Recorded sessions as traces of a log, and imported ones as the log they came from. Decision 0022."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from recorder import clock
from recorder.client.client import Client
from recorder.errors import Invalid
from recorder.interchange.event_logs import (
    ACTIVITY_TYPE,
    Attributes,
    LogEvent,
    LogTrace,
    directly_follows,
    event_log_rows,
    write_dfg,
)
from recorder.interchange.xes_reader import RESOURCE
from recorder.interchange.xes_writer import OUTCOME, SESSION, UI_ACTION, UI_APPLICATION, UI_TARGET, write_xes
from recorder.memory.graph.directly_follows import aggregate_log
from recorder.memory.steps.action_tokens import text_template_of
from recorder.memory.steps.session_steps import Step, session_steps
from recorder.memory.views.label_lines import one_line


def session_trace(session: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> LogTrace:
    """Return one session as a trace: its steps as the memory graph counts them, repeats included.

    Args:
        session: the session as the interface shows it.
        events: its events, any order.
    """
    started_at = clock.parse_time(session["started_at"], name="started_at")
    metadata = session["metadata"]
    case = metadata.get("case")
    attributes = metadata.get("attributes")
    known = {SESSION: session["id"], OUTCOME: session["outcome"]}
    by_id = {event["id"]: event for event in events}
    actor = (session["actor"] or {}).get("id")
    return LogTrace(
        name=case if isinstance(case, str) and case else session["id"],
        attributes={
            **(attributes if isinstance(attributes, dict) else {}),
            **{key: value for key, value in known.items() if value is not None},
        },
        events=[
            _make_log_event(step, by_id[step.event_id], started_at, actor)
            for step in session_steps(events, (), collapse=False)
        ],
    )


def _make_log_event(
    step: Step, event: Mapping[str, Any], started_at: datetime, actor: str | None
) -> LogEvent:
    time = started_at + timedelta(milliseconds=step.t_in_ms)
    data = event.get("data") or {}
    name = data.get("name")
    if event["type"] == ACTIVITY_TYPE and isinstance(name, str) and name.strip():
        attributes = data.get("attributes")
        return LogEvent(name, time, attributes if isinstance(attributes, dict) else {})
    # Numbers of pages would make an activity of every invoice.
    label = text_template_of(step.own_label) if step.names or step.words else step.label
    return LogEvent(one_line(label), time, _make_ui_attributes(step, event, actor))


def _make_ui_attributes(step: Step, event: Mapping[str, Any], actor: str | None) -> Attributes:
    """Return the attributes of an event: actor, action, target and application."""
    application = (event.get("app") or {}).get("name")
    attributes = {
        RESOURCE: actor,
        UI_ACTION: step.action,
        UI_TARGET: step.target,
        UI_APPLICATION: application,
    }
    return {key: value for key, value in attributes.items() if value}


#: As many sessions are read at a time as an import sends.
PARALLEL = 4
_WHOLE = ("stopped", "sealed")

LogFormat = Literal["xes", "dfg"]


class NothingToExport(Invalid):
    """A workflow without a session that matches."""

    def __init__(self, workflow: str) -> None:
        super().__init__(f"{workflow} has no session that is over and matches; widen --where, or stop one.")


@dataclass(frozen=True)
class LogReport:
    """Counts of an export."""

    sessions: int
    events: int


def write_session_traces(
    client: Client,
    workflow: str,
    path: Path,
    *,
    format: LogFormat = "xes",
    filters: dict[str, str] | None = None,
    on_total: Callable[[int], None] = lambda total: None,
    on_done: Callable[[LogTrace], None] = lambda trace: None,
) -> LogReport:
    """Write every session of a workflow that is over to a file, oldest first; the file appears when whole.

    Args:
        client: connection to the service.
        workflow: workflow of the sessions.
        path: the file to write.
        format: `xes` (gzip where the name ends in `.gz`), or `dfg`: JSON, or PM4Py's lines in a `.dfg` file.
        filters: of `Client.list_sessions`.
        on_total: called with the number of sessions.
        on_done: called with each trace as it is read.

    Raises:
        NothingToExport: if no session matches.
        ApiError, Unreachable: as the client raises them; an unknown workflow is `not_found`.
    """
    sessions = _list_sessions_to_trace(client, workflow, filters or {})
    on_total(len(sessions))
    events = 0

    def counted(traces: Iterable[LogTrace]) -> Iterator[LogTrace]:
        nonlocal events
        for trace in traces:
            events += len(trace.events)
            on_done(trace)
            yield trace

    traces = counted(_read_session_traces(client, sessions))
    if format == "xes":
        write_xes(path, traces, name=workflow)
    else:
        # Repeats count, as they do where the exported XES is read.
        write_dfg(path, directly_follows(aggregate_log(event_log_rows(traces), collapse=False)))
    return LogReport(len(sessions), events)


def _list_sessions_to_trace(client: Client, workflow: str, filters: dict[str, str]) -> list[dict[str, Any]]:
    sessions = [
        session
        for session in client.list_sessions(workflow=workflow, **filters)
        if session["status"] in _WHOLE
    ]
    if not sessions:
        client.get_workflow(workflow)
        raise NothingToExport(workflow)
    return sorted(sessions, key=lambda session: (session["started_at"], session["id"]))


def _read_session_traces(client: Client, sessions: Iterable[dict[str, Any]]) -> Iterator[LogTrace]:
    """Yield the traces in the order of the sessions; a few of them are read ahead."""
    ahead: deque[Future[LogTrace]] = deque()
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="export") as pool:
        try:
            for session in sessions:
                ahead.append(pool.submit(_read_session_trace, client, session))
                if len(ahead) >= 2 * PARALLEL:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _read_session_trace(client: Client, session: dict[str, Any]) -> LogTrace:
    return session_trace(session, list(client.list_events(session["id"])))
