"""Drift checks of live graphs, alarms as `data` of their events, and the backtest. Spec §6.1; contract §6."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.errors import NotFound
from recorder.memory.drift.alarm_rules import NodeNew, PathGone, misses_so_far
from recorder.memory.drift.detector import Alarm, DetectorState, TermCheck, check_terms
from recorder.memory.drift.history import History
from recorder.memory.drift.store import (
    NEW_NODE,
    PATH_DISAPPEARED,
    lock_state,
    read_alarms,
    read_history,
    read_state,
    restore_state,
    store_alarm,
    store_state,
)
from recorder.memory.drift.thresholds import Rules, most_expected
from recorder.memory.graph.inverted_index import Ints
from recorder.memory.graph.nodes import GraphScope
from recorder.memory.queries.columns import GraphColumns, read_columns
from recorder.memory.storage.versions import read_head
from recorder.models.drift import DriftBaseline, DriftNode, DriftPath, DriftWindow
from recorder.models.webhook import NewNodeData, PathDisappearedData
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.outbox import add_event


def describe(
    alarm: Alarm, history: History, columns: GraphColumns, *, workflow: str
) -> tuple[str, str, NewNodeData | PathDisappearedData]:
    """Type of the event, id of what it is about, and its data."""
    if isinstance(alarm, PathGone):
        gone = _path_disappeared(alarm, history, columns, workflow)
        return PATH_DISAPPEARED, gone.path.path_id, gone
    new = _new_node(alarm, history, columns, workflow)
    return NEW_NODE, new.node.node_id, new


def _path_disappeared(
    alarm: PathGone, history: History, columns: GraphColumns, workflow: str
) -> PathDisappearedData:
    watched, missed = alarm.watched, len(alarm.misses)
    path = columns.paths[watched.path]
    nodes = [columns.nodes[number] for number in path.nodes]
    expected = round(watched.frequency * missed, 1)
    sentence = (
        f"0 of the last {missed} sessions took this path; {expected} expected, since {watched.seen} of the "
        f"{watched.sessions} sessions of the baseline did. {watched.needed} misses in a row are an alarm."
    )
    return PathDisappearedData(
        workflow=workflow,
        path=DriftPath(
            path_id=path.path_id,
            node_ids=[node.node_id for node in nodes],
            labels=[node.label for node in nodes],
        ),
        last_seen_at=clock.from_ms(alarm.last_seen_ms),
        baseline_frequency=watched.frequency,
        window=_window(history, alarm.misses, alarm.misses, 0, expected, watched.needed, sentence),
    )


def _new_node(alarm: NodeNew, history: History, columns: GraphColumns, workflow: str) -> NewNodeData:
    node, seen, sessions = columns.nodes[alarm.node], len(alarm.sightings), alarm.baseline
    places = np.arange(alarm.window_start, alarm.position + 1)
    expected = round(most_expected(sessions, len(places)), 1)
    sentence = (
        f"{seen} of the last {len(places)} sessions went through this node, none of the {sessions} of the "
        f"baseline; of a node that is merely rare at most {expected} expected. {alarm.needed} are an alarm."
    )
    began = history.started_ms[alarm.baseline_start : alarm.baseline_start + sessions]
    return NewNodeData(
        workflow=workflow,
        node=DriftNode(node_id=node.node_id, label=node.label, kind=node.kind),
        window=_window(history, places, alarm.sightings, seen, expected, alarm.needed, sentence),
        baseline=DriftBaseline(
            sessions=sessions,
            seen=0,
            since=clock.from_ms(int(began.min())),
            until=clock.from_ms(int(began.max())),
        ),
        graph_version=columns.version,
    )


def _window(
    history: History, places: Ints, counted: Ints, seen: int, expected: float, needed: int, sentence: str
) -> DriftWindow:
    """Return the sessions of a window; actors and days are those of the sessions that count."""
    began = history.started_ms[places]
    actors, days = history.actors_and_days(counted)
    return DriftWindow(
        sessions=len(places),
        seen=seen,
        expected=expected,
        needed=needed,
        actors=actors,
        days=days,
        since=clock.from_ms(int(began.min())),
        until=clock.from_ms(int(began.max())),
        explanation=sentence,
    )


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Watch:
    """A watched path after a check."""

    path_id: str
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
    watched: list[Watch]
    #: Type and data of each event.
    alarms: list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A graph as it was read: up to which session, and what was known then."""

    columns: GraphColumns
    history: History
    state: DetectorState
    up_to_seq: int
    looked_seq: int


def due_graphs(db: DbSession) -> Iterator[GraphScope]:
    """Yield the graphs that have new sessions since their last check."""
    workflows = select(WorkflowRow.workspace_id, WorkflowRow.mode, WorkflowRow.workflow)
    for workspace_id, mode, workflow in sorted(db.exec(workflows).all()):
        scope = GraphScope(Tenant(workspace_id, mode), workflow)
        head, state = read_head(db, scope), read_state(db, scope)
        if head is not None and head.up_to_seal_seq > (0 if state is None else state.looked_seq):
            yield scope


def check_drift(database: Database, scope: GraphScope, *, rules: Rules = RULES) -> DriftCheck | None:
    """Judge the sessions that a graph has received since the last check.

    Returns:
        None where there are none, or where another check was faster.
    """
    with database.transaction(write=False) as db:
        reading = _read_graph(db, scope)
    if reading is None:
        return None
    checks = list(check_terms(reading.history, reading.state, rules))
    with database.transaction(write=True) as db:
        row = lock_state(db, scope)
        if row.looked_seq != reading.looked_seq:
            return None
        alarms = [alarm for check in checks for alarm in _queue_alarms(db, scope, check, reading)]
        state = checks[-1].state if checks else reading.state
        store_state(row, state, reading.up_to_seq, reading.history, reading.columns)
        db.add(row)
    return _summarize_check(scope, reading, checks, alarms)


def _read_graph(db: DbSession, scope: GraphScope) -> _Reading | None:
    head, row = read_head(db, scope), read_state(db, scope)
    looked_seq = 0 if row is None else row.looked_seq
    if head is None or head.up_to_seal_seq <= looked_seq:
        return None
    columns = read_columns(db, scope, head.version)
    history = read_history(db, scope, columns)
    state = restore_state(row, read_alarms(db, scope), history, columns)
    return _Reading(columns, history, state, head.up_to_seal_seq, looked_seq)


def _queue_alarms(
    db: DbSession, scope: GraphScope, check: TermCheck, reading: _Reading
) -> Iterator[tuple[str, dict[str, Any]]]:
    for alarm in check.alarms:
        type, subject_id, data = describe(alarm, reading.history, reading.columns, workflow=scope.workflow)
        event = add_event(
            db,
            tenant=scope.tenant,
            type=type,
            subject_id=subject_id,
            data=data.model_dump(mode="json"),
        )
        store_alarm(db, scope, event, int(reading.history.seal_seq[alarm.position]))
        yield type, event.data


def _summarize_check(
    scope: GraphScope, reading: _Reading, checks: list[TermCheck], alarms: list[tuple[str, dict[str, Any]]]
) -> DriftCheck:
    history = reading.history
    sessions = len(history) - reading.state.judged
    if not checks:
        return DriftCheck(scope, sessions, 0, [], alarms)
    last = checks[-1]
    watched = [
        Watch(
            reading.columns.paths[path.path].path_id,
            path.frequency,
            misses_so_far(history, path, len(history)),
            path.needed,
        )
        for path in last.watched
    ]
    term = last.state.term
    return DriftCheck(scope, sessions, term.end - term.start if term else 0, watched, alarms)


@dataclass(frozen=True, slots=True)
class PastAlarm:
    """An alarm at the session of this position, counted from 1, which began then."""

    position: int
    began_at: datetime
    type: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Backtest:
    """Result of a replay of a history."""

    sessions: int
    #: Sessions behind a baseline, the only ones that can make an alarm.
    judged: int
    terms: int
    alarms: list[PastAlarm]

    @property
    def rates(self) -> dict[str, float]:
        """Alarms of each type per 2,000 judged sessions."""
        counts = Counter(alarm.type for alarm in self.alarms)
        judged = max(1, self.judged)
        return {type: counts[type] * 2_000 / judged for type in (PATH_DISAPPEARED, NEW_NODE)}


def replay_history(
    database: Database,
    scope: GraphScope,
    rules: Rules,
    *,
    progress: Callable[[int, int], object] = lambda done, sessions: None,
) -> Backtest:
    """Judge all sessions of a graph from the first one on; write nothing and send nothing.

    Args:
        database: the database of the deployment.
        scope: the graph.
        rules: the numbers of the rules.
        progress: called after each term with the number of judged sessions and of all.

    Raises:
        NotFound: if there is no such workflow.
    """
    with database.transaction(write=False) as db:
        head = read_head(db, scope)
        if head is None:
            raise NotFound("workflow")
        columns = read_columns(db, scope, head.version)
        history = read_history(db, scope, columns)
    alarms: list[PastAlarm] = []
    terms = judged = 0
    for check in check_terms(history, DetectorState(), rules, from_the_start=True):
        for alarm in check.alarms:
            type, _, data = describe(alarm, history, columns, workflow=scope.workflow)
            began_at = clock.from_ms(int(history.started_ms[alarm.position]))
            alarms.append(PastAlarm(alarm.position + 1, began_at, type, data.model_dump(mode="json")))
        terms += 1
        judged = check.state.judged - min(rules.least_baseline, rules.baseline)
        progress(check.state.judged, len(history))
    return Backtest(len(history), judged, terms, alarms)
