"""A look at live graphs: what came since the last one is judged, and alarms become events. Spec §6.1.

Reading and judging take no lock. What was found is written in one transaction: alarms, their events in the
outbox, and how far was looked. A look that is cut off before it, or that another one overtook, left nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.memory.drift.alarm_rules import misses_so_far
from recorder.memory.drift.detector import Look, Standing, looks
from recorder.memory.drift.events import describe
from recorder.memory.drift.history import History
from recorder.memory.drift.history_reader import read_history
from recorder.memory.drift.store import (
    keep_alarm,
    keep_standing,
    lock_state,
    read_alarms,
    read_state,
    standing_of,
)
from recorder.memory.drift.thresholds import Rules
from recorder.memory.grouping.nodes import GraphScope
from recorder.memory.queries.columns import GraphColumns, read_columns
from recorder.memory.storage.versions import read_head
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.outbox import add_event

RULES = Rules()


@dataclass(frozen=True, slots=True)
class Watch:
    """A watched path after a look."""

    path_id: str
    #: Its share of the baseline, 0 to 1.
    frequency: float
    #: Sessions since it was last seen, and how many of them are an alarm.
    misses: int
    needed: int


@dataclass(frozen=True, slots=True)
class GraphLook:
    """What a look at one graph found."""

    scope: GraphScope
    #: Sessions that were judged, and that the baseline has; 0 while there are too few for one.
    sessions: int
    baseline: int
    watched: list[Watch]
    #: Type and data of each event.
    alarms: list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A graph as it was read: up to which session, and what was known then."""

    columns: GraphColumns
    history: History
    standing: Standing
    up_to_seq: int
    looked_seq: int


def due_graphs(db: DbSession) -> Iterator[GraphScope]:
    """The graphs that sessions came to since their last look."""
    workflows = select(WorkflowRow.workspace_id, WorkflowRow.mode, WorkflowRow.workflow)
    for workspace_id, mode, workflow in sorted(db.exec(workflows).all()):
        scope = GraphScope(Tenant(workspace_id, mode), workflow)
        head, state = read_head(db, scope), read_state(db, scope)
        if head is not None and head.up_to_seal_seq > (0 if state is None else state.looked_seq):
            yield scope


def look_for_drift(database: Database, scope: GraphScope, *, rules: Rules = RULES) -> GraphLook | None:
    """Judge the sessions that came to a graph since the last look.

    Returns:
        None where there are none, or another look was quicker.
    """
    with database.transaction(write=False) as db:
        reading = _read(db, scope)
    if reading is None:
        return None
    found = list(looks(reading.history, reading.standing, rules))
    with database.transaction(write=True) as db:
        state = lock_state(db, scope)
        if state.looked_seq != reading.looked_seq:
            return None
        alarms = [told for look in found for told in _tell(db, scope, look, reading)]
        standing = found[-1].standing if found else reading.standing
        keep_standing(state, standing, reading.up_to_seq, reading.history, reading.columns)
        db.add(state)
    return _report(scope, reading, found, alarms)


def _read(db: DbSession, scope: GraphScope) -> _Reading | None:
    head, state = read_head(db, scope), read_state(db, scope)
    looked_seq = 0 if state is None else state.looked_seq
    if head is None or head.up_to_seal_seq <= looked_seq:
        return None
    columns = read_columns(db, scope, head.version)
    history = read_history(db, scope, columns)
    standing = standing_of(state, read_alarms(db, scope), history, columns)
    return _Reading(columns, history, standing, head.up_to_seal_seq, looked_seq)


def _tell(
    db: DbSession, scope: GraphScope, look: Look, reading: _Reading
) -> Iterator[tuple[str, dict[str, Any]]]:
    for alarm in look.alarms:
        type, subject_id, data = describe(alarm, reading.history, reading.columns, workflow=scope.workflow)
        event = add_event(
            db,
            tenant=scope.tenant,
            type=type,
            subject_id=subject_id,
            data=data.model_dump(mode="json"),
        )
        keep_alarm(db, scope, event, int(reading.history.seal_seq[alarm.place]))
        yield type, event.data


def _report(
    scope: GraphScope, reading: _Reading, found: list[Look], alarms: list[tuple[str, dict[str, Any]]]
) -> GraphLook:
    history = reading.history
    sessions = len(history) - reading.standing.looked
    if not found:
        return GraphLook(scope, sessions, 0, [], alarms)
    last = found[-1]
    watched = [
        Watch(
            reading.columns.paths[one.path].path_id,
            one.frequency,
            misses_so_far(history, one, len(history)),
            one.needed,
        )
        for one in last.watched
    ]
    term = last.standing.term
    return GraphLook(scope, sessions, term.end - term.start if term else 0, watched, alarms)
