"""Recorded sessions as traces of a log, and imported ones as the log they came from. Decision 0022."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from recorder import clock
from recorder.interchange.logs import ACTIVITY_TYPE, Attributes, LogEvent, LogTrace
from recorder.interchange.xes.reader import RESOURCE
from recorder.interchange.xes.writer import OUTCOME, SESSION, UI_ACTION, UI_APPLICATION, UI_TARGET
from recorder.memory.steps.session_steps import Step, session_steps
from recorder.memory.views.labels import one_line


def session_trace(session: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> LogTrace:
    """One session as a trace: its steps as the memory graph counts them, repeats included.

    Args:
        session: the session as the interface shows it.
        events: its events, any order.
    """
    started_at = clock.parse_time(session["started_at"], name="started_at")
    metadata = session["metadata"]
    case = metadata.get("case")
    own = metadata.get("attributes")
    known = {SESSION: session["id"], OUTCOME: session["outcome"]}
    by_id = {event["id"]: event for event in events}
    actor = (session["actor"] or {}).get("id")
    return LogTrace(
        name=case if isinstance(case, str) and case else session["id"],
        attributes={
            **(own if isinstance(own, dict) else {}),
            **{key: value for key, value in known.items() if value is not None},
        },
        events=[
            _log_event(step, by_id[step.event_id], started_at, actor)
            for step in session_steps(events, (), collapse=False)
        ],
    )


def _log_event(step: Step, event: Mapping[str, Any], started_at: datetime, actor: str | None) -> LogEvent:
    time = started_at + timedelta(milliseconds=step.t_in_ms)
    data = event.get("data") or {}
    name = data.get("name")
    if event["type"] == ACTIVITY_TYPE and isinstance(name, str) and name.strip():
        attributes = data.get("attributes")
        return LogEvent(name, time, attributes if isinstance(attributes, dict) else {})
    return LogEvent(one_line(step.label), time, _ui_attributes(step, event, actor))


def _ui_attributes(step: Step, event: Mapping[str, Any], actor: str | None) -> Attributes:
    """Who did what to what, and in which program."""
    application = (event.get("app") or {}).get("name")
    told = {
        RESOURCE: actor,
        UI_ACTION: step.action,
        UI_TARGET: step.target,
        UI_APPLICATION: application,
    }
    return {key: value for key, value in told.items() if value}
