"""What drift remembers of a graph between looks, in SQL. Spec §6.1.

Rows hold numbers of sealing and ids, never places or counters: those follow from the sessions as they are.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.memory.drift.detector import Standing
from recorder.memory.drift.history import NO_ACTOR, History, unique_visits
from recorder.memory.drift.thresholds import Inherited, Term
from recorder.memory.graph.inverted_index import Ints
from recorder.memory.graph.nodes import GraphScope
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.storage.versions import in_scope, place_of
from recorder.models.drift import DriftAlarmRow, DriftStateRow
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionRow
from recorder.storage.upsert import insert_if_missing

NEW_NODE, PATH_DISAPPEARED = "memory.drift.new_node", "memory.drift.path_disappeared"


def read_state(db: DbSession, scope: GraphScope) -> DriftStateRow | None:
    """What was kept of a graph; None before the first look."""
    return db.get(DriftStateRow, (scope.workspace_id, scope.mode, scope.workflow))


def lock_state(db: DbSession, scope: GraphScope) -> DriftStateRow:
    """The same, made where it is missing, and held until the transaction ends."""
    fresh = {"looked_seq": 0, "baseline_sessions": 0, "inherited": [], "updated_at": clock.now()}
    insert_if_missing(db, DriftStateRow, {**place_of(scope), **fresh})
    locked = select(DriftStateRow).where(*in_scope(DriftStateRow, scope)).with_for_update()
    return db.exec(locked.execution_options(populate_existing=True)).one()


def read_alarms(db: DbSession, scope: GraphScope) -> Sequence[DriftAlarmRow]:
    """All alarms of a graph, the oldest first."""
    alarms = select(DriftAlarmRow).where(*in_scope(DriftAlarmRow, scope))
    return db.exec(alarms.order_by(col(DriftAlarmRow.seal_seq), col(DriftAlarmRow.subject_id))).all()


def list_alarms(
    db: DbSession, *, workspace_id: str | None, mode: str | None, workflow: str | None, limit: int
) -> Sequence[DriftAlarmRow]:
    """The alarms of a deployment, the newest first; where nothing is named, of all."""
    named = {"workspace_id": workspace_id, "mode": mode, "workflow": workflow}
    alarms = select(DriftAlarmRow).filter_by(**{name: value for name, value in named.items() if value})
    newest = (col(DriftAlarmRow.created_at).desc(), col(DriftAlarmRow.event_id).desc())
    return db.exec(alarms.order_by(*newest).limit(limit)).all()


def keep_alarm(db: DbSession, scope: GraphScope, event: OutboxRow, seal_seq: int) -> None:
    """Remember an alarm, in the transaction that queues its event."""
    row = DriftAlarmRow(
        **place_of(scope),
        type=event.type,
        subject_id=event.subject_id,
        seal_seq=seal_seq,
        event_id=event.id,
        data=event.data,
        created_at=event.created_at,
    )
    db.add(row)


def standing_of(
    state: DriftStateRow | None, alarms: Sequence[DriftAlarmRow], history: History, columns: GraphColumns
) -> Standing:
    """Where drift stands, in places of the sessions and numbers of the graph as they are now.

    Ids go through the graph's aliases: what a rebuild merged is known by what stands for it.
    """
    paths = {path.path_id: path.live for path in columns.paths}
    nodes = {node.node_id: node.live for node in columns.nodes}
    return Standing(
        looked=history.after(state.looked_seq) if state is not None else 0,
        term=_term(state, history, paths) if state is not None else None,
        path_alarms={
            paths[alarm.subject_id]: history.after(alarm.seal_seq) - 1
            for alarm in alarms
            if alarm.type == PATH_DISAPPEARED and alarm.subject_id in paths
        },
        node_alarms=frozenset(
            nodes[alarm.subject_id]
            for alarm in alarms
            if alarm.type == NEW_NODE and alarm.subject_id in nodes
        ),
    )


def keep_standing(
    state: DriftStateRow, standing: Standing, looked_seq: int, history: History, columns: GraphColumns
) -> None:
    """Write down where drift stands after a look at all sessions up to a number of sealing."""
    state.looked_seq, state.updated_at = looked_seq, clock.now()
    term = standing.term
    if term is None or not _has_sessions(term, history):
        state.baseline_from_seq = state.baseline_to_seq = state.known_to_seq = None
        state.baseline_sessions, state.inherited = 0, []
        return
    seqs = history.seal_seq
    state.baseline_from_seq, state.baseline_to_seq = int(seqs[term.start]), int(seqs[term.end - 1])
    state.baseline_sessions, state.known_to_seq = term.sessions, int(seqs[term.known - 1])
    state.inherited = [
        [
            columns.paths[old.path].path_id,
            _number_from(history, old.start),
            _number_from(history, old.end) - 1,
            _number_from(history, old.watched_from),
        ]
        for old in term.inherited
    ]


def _has_sessions(term: Term, history: History) -> bool:
    """Whether deletions left a baseline, and sessions of it from before its nodes were known."""
    return 0 <= term.start < term.end <= len(history) and term.start < term.known <= len(history)


def _number_from(history: History, place: int) -> int:
    """The least number of sealing whose session stands at this place or later; numbers begin with 1.

    Taken from the session before: the one at the place may not have come yet, and of a baseline whose
    sessions were all deleted none may be left.
    """
    return int(history.seal_seq[place - 1]) + 1 if place else 1


def _term(state: DriftStateRow, history: History, paths: dict[str, int]) -> Term | None:
    if state.baseline_from_seq is None or state.baseline_to_seq is None:
        return None
    inherited: dict[int, Inherited] = {}
    for path_id, from_seq, to_seq, watched_from_seq in state.inherited:
        path = paths.get(path_id)
        if path is not None and path not in inherited:
            places = (history.at(from_seq), history.after(to_seq), history.at(watched_from_seq))
            inherited[path] = Inherited(path, *places)
    start, end = history.at(state.baseline_from_seq), history.after(state.baseline_to_seq)
    known = history.after(state.known_to_seq or state.baseline_to_seq)
    term = Term(start, end, state.baseline_sessions, known, tuple(inherited.values()))
    return term if _has_sessions(term, history) else None


_NEW_FOR = timedelta(days=30)


def recent_nodes(db: DbSession, scope: GraphScope, columns: GraphColumns) -> frozenset[str]:
    """Ids of the nodes that are new; where a rebuild merged one, of the node that stands for it."""
    told = select(DriftAlarmRow.subject_id).where(
        *in_scope(DriftAlarmRow, scope),
        DriftAlarmRow.type == NEW_NODE,
        col(DriftAlarmRow.created_at) >= clock.now() - _NEW_FOR,
    )
    ids = frozenset(db.exec(told))
    if not ids:
        return ids
    return frozenset(columns.nodes[node.live].node_id for node in columns.nodes if node.node_id in ids)


def read_history(db: DbSession, scope: GraphScope, columns: GraphColumns) -> History:
    """The sessions that are in a graph now, in the order of sealing.

    Those that were deleted, or sealed while the graph paused, are not: nothing is counted for or against.
    """
    rows = np.nonzero(columns.current())[0]
    rows = rows[np.lexsort((columns.session_id[rows], columns.seal_seq[rows]))]
    steps = np.diff(columns.variant_start)
    visits = unique_visits(np.repeat(np.arange(len(steps)), steps), columns.variant_nodes)
    return History(
        seal_seq=columns.seal_seq[rows],
        path=columns.path[rows],
        variant=columns.variant[rows],
        started_ms=columns.started_ms[rows],
        actor=_actors(db, scope, [session_id.decode() for session_id in columns.session_id[rows].tolist()]),
        visit_variant=visits[0],
        visit_node=visits[1],
    )


def _actors(db: DbSession, scope: GraphScope, session_ids: list[str]) -> Ints:
    """A number for the actor of each session; it means nothing beyond this reading."""
    statement = select(SessionRow.id, SessionRow.actor_id).where(
        *in_scope(SessionRow, scope), col(SessionRow.actor_id).is_not(None)
    )
    numbers: dict[str | None, int] = {}
    actor_of = {
        session_id: numbers.setdefault(actor_id, len(numbers)) for session_id, actor_id in db.exec(statement)
    }
    return np.array([actor_of.get(session_id, NO_ACTOR) for session_id in session_ids], dtype=np.int64)
