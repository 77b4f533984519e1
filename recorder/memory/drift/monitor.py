"""Drift monitor of memory graphs: which are due for a check, the check itself, and its summary. Spec §6.1."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, literal_column
from sqlalchemy.orm import aliased
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.memory.drift.detector import DetectorState, TermCheck, detect_alarms
from recorder.memory.drift.falls import misses_so_far
from recorder.memory.drift.history import History
from recorder.memory.drift.payloads import make_alarm_payload
from recorder.memory.drift.store import (
    lock_drift_state,
    make_subject_id,
    read_alarms,
    read_drift_state,
    read_history,
    restore_detector_state,
    store_drift_alarm,
    store_drift_state,
)
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.drift.watched_subjects import SubjectWatch, list_watched_subjects
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.columns_cache import read_graph_columns
from recorder.memory.storage.versions import have_sessions_left_since_graph_version, read_newest_version
from recorder.models.drift import DriftStateRow
from recorder.models.memory import GraphVersionRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from recorder.webhooks.outbox import add_outbox_event

RULES = DriftRules()
_SHOWN_ALARMS = 20
#: Readings of a graph before a check leaves alarms to the next one: sessions left it during each.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class MonitoredSubject:
    """A watched path, node or edge after a check."""

    kind: str
    #: Id of the path or node; of an edge both, joined by `>`.
    subject_id: str
    #: Its share of the baseline, 0 to 1.
    frequency: float
    #: Sessions since it was last seen, and how many of them are an alarm.
    misses: int
    needed: int


@dataclass(frozen=True, slots=True)
class DriftCheck:
    """Result of a check of one graph."""

    scope: GraphScope
    #: Sessions that were judged, and that the baseline has; 0 while there are too few for one.
    sessions: int
    baseline: int
    watched: list[MonitoredSubject]
    #: Type and data of each event.
    alarms: list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _GraphReading:
    """A graph as it was read: up to which session, and what was known then."""

    columns: GraphColumns
    history: History
    state: DetectorState
    up_to_seq: int
    looked_seq: int


def list_graphs_to_check(db: DbSession) -> Iterator[GraphScope]:
    """Yield the graphs that have new sessions since their last check, in one order everywhere.

    One statement starts from the graphs: most workflows may have no session.
    """
    first, newest, state = GraphVersionRow, aliased(GraphVersionRow), DriftStateRow
    up_to_seq = (
        select(newest.up_to_seal_seq)
        .where(*_is_same_graph(newest, first))
        .order_by(col(newest.version).desc())
        .limit(1)
        .scalar_subquery()
    )
    graphs = (
        select(first.workspace_id, first.mode, first.workflow)
        .outerjoin(state, and_(*_is_same_graph(state, first)))
        .where(col(first.version) == literal_column("1"), up_to_seq > func.coalesce(state.looked_seq, 0))
    )
    for workspace_id, mode, workflow in sorted(db.exec(graphs).all()):
        yield GraphScope(Tenant(workspace_id, mode), workflow)


def _is_same_graph(table: Any, other: Any) -> Iterator[Any]:
    yield col(table.workspace_id) == col(other.workspace_id)
    yield col(table.mode) == col(other.mode)
    yield col(table.workflow) == col(other.workflow)


def check_drift(database: Database, scope: GraphScope, *, rules: DriftRules = RULES) -> DriftCheck | None:
    """Judge the sessions that a graph has received since the last check.

    Returns:
        None where there are none, where another check was faster, or where there are alarms and sessions
        left the graph during each of several attempts: the next check judges them again.
    """
    for _ in range(_ATTEMPTS):
        with database.transaction(write=False) as db:
            reading = _read_graph(db, scope)
        if reading is None:
            return None
        checks = list(detect_alarms(reading.history, reading.state, rules))
        with database.transaction(write=True) as db:
            # An erasure takes the same lock: it came before, or it will find these alarms and their labels.
            head = read_newest_version(db, scope, lock=True)
            row = None if head is None else lock_drift_state(db, scope)
            if row is None or row.looked_seq != reading.looked_seq:
                return None
            if any(check.alarms for check in checks) and have_sessions_left_since_graph_version(
                db, scope, reading.columns.version
            ):
                continue
            alarms = [alarm for check in checks for alarm in _queue_alarms(db, scope, check, reading)]
            state = checks[-1].state if checks else reading.state
            store_drift_state(row, state, reading.up_to_seq, reading.history, reading.columns)
            db.add(row)
        return _summarize_drift_check(scope, reading, checks, alarms)
    return None


def _read_graph(db: DbSession, scope: GraphScope) -> _GraphReading | None:
    """Return the newest graph with the state of its drift detector; None if nothing was sealed since."""
    head, row = read_newest_version(db, scope), read_drift_state(db, scope)
    looked_seq = 0 if row is None else row.looked_seq
    if head is None or head.up_to_seal_seq <= looked_seq:
        return None
    columns = read_graph_columns(db, scope, head.version)
    history = read_history(db, scope, columns)
    state = restore_detector_state(row, read_alarms(db, scope), history, columns)
    return _GraphReading(columns, history, state, head.up_to_seal_seq, looked_seq)


def _queue_alarms(
    db: DbSession, scope: GraphScope, check: TermCheck, reading: _GraphReading
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Store the alarms of a check and their outbox events; yield the type and payload of each event."""
    for alarm in check.alarms:
        type, subject_id, data = make_alarm_payload(
            alarm, reading.history, reading.columns, workflow=scope.workflow
        )
        event = add_outbox_event(
            db,
            tenant=scope.tenant,
            type=type,
            subject_id=subject_id,
            data=data.model_dump(mode="json"),
        )
        store_drift_alarm(db, scope, event, int(reading.history.seal_seq[alarm.position]))
        yield type, event.data


def _summarize_drift_check(
    scope: GraphScope,
    reading: _GraphReading,
    checks: list[TermCheck],
    alarms: list[tuple[str, dict[str, Any]]],
) -> DriftCheck:
    sessions = len(reading.history) - reading.state.judged
    if not checks:
        return DriftCheck(scope, sessions, 0, [], alarms)
    term = checks[-1].state.term
    watched = _list_monitored_subjects(reading, checks[-1].watched)
    return DriftCheck(scope, sessions, term.end - term.start if term else 0, watched, alarms)


def _list_monitored_subjects(reading: _GraphReading, watches: list[SubjectWatch]) -> list[MonitoredSubject]:
    history = reading.history
    subjects = [history.subjects.describe(watch.subject) for watch in watches]
    return [
        MonitoredSubject(
            kind=subject.kind,
            subject_id=make_subject_id(subject, reading.columns),
            frequency=watch.frequency,
            misses=misses_so_far(history, watch, len(history)),
            needed=watch.needed,
        )
        for subject, watch in zip(subjects, watches, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class LastCheck:
    """Figures of a graph without new sessions since its last check, and its latest alarms."""

    checked_at: datetime
    check: DriftCheck


def read_last_drift_check(
    database: Database, scope: GraphScope, *, rules: DriftRules = RULES
) -> LastCheck | None:
    """Return the figures of a graph as the last check left them; None before the first one."""
    with database.transaction(write=False) as db:
        head, row = read_newest_version(db, scope), read_drift_state(db, scope)
        if head is None or row is None:
            return None
        columns = read_graph_columns(db, scope, head.version)
        history = read_history(db, scope, columns)
        stored = read_alarms(db, scope)
        state = restore_detector_state(row, stored, history, columns)
    reading = _GraphReading(columns, history, state, head.up_to_seal_seq, row.looked_seq)
    term = state.term
    watches = list_watched_subjects(history, term, rules) if term and term.end <= len(history) else []
    alarms = [(alarm.type, alarm.data) for alarm in stored[-_SHOWN_ALARMS:]]
    baseline = term.end - term.start if term else 0
    return LastCheck(
        row.updated_at, DriftCheck(scope, 0, baseline, _list_monitored_subjects(reading, watches), alarms)
    )
