"""Drift detection in SQL: alarms, the detector's state stored and restored, its history read. Spec §6.1.

Rows hold numbers of sealing and ids, never positions or counters: those follow from the sessions as they are.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.memory.drift.baseline_terms import Inherited, Term
from recorder.memory.drift.changes import NoticedChange
from recorder.memory.drift.detector import DetectorState
from recorder.memory.drift.drift_subjects import DriftSubject, list_drift_subjects
from recorder.memory.drift.history import NO_ACTOR, History
from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.storage.versions import in_scope, scope_columns
from recorder.models.drift import DriftAlarmRow, DriftStateRow
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionRow
from recorder.storage.upsert import insert_if_missing
from recorder.tenant import GraphScope

NEW_NODE, PATH_DISAPPEARED = "memory.drift.new_node", "memory.drift.path_disappeared"


def read_drift_state(db: DbSession, scope: GraphScope) -> DriftStateRow | None:
    """Return the stored state of a graph; None before the first check."""
    return db.get(DriftStateRow, (scope.workspace_id, scope.mode, scope.workflow))


def lock_drift_state(db: DbSession, scope: GraphScope) -> DriftStateRow:
    """Return the state, inserted where it is missing, and locked until the transaction ends."""
    fresh = {
        "looked_seq": 0,
        "baseline_sessions": 0,
        "inherited": [],
        "changes": [],
        "updated_at": clock.now(),
    }
    insert_if_missing(db, DriftStateRow, {**scope_columns(scope), **fresh})
    locked = select(DriftStateRow).where(*in_scope(DriftStateRow, scope)).with_for_update()
    return db.exec(locked.execution_options(populate_existing=True)).one()


def read_alarms(db: DbSession, scope: GraphScope) -> Sequence[DriftAlarmRow]:
    """Return all alarms of a graph, the oldest first."""
    alarms = select(DriftAlarmRow).where(*in_scope(DriftAlarmRow, scope))
    return db.exec(alarms.order_by(col(DriftAlarmRow.seal_seq), col(DriftAlarmRow.subject_id))).all()


def list_alarms(
    db: DbSession, *, workspace_id: str | None, mode: str | None, workflow: str | None, limit: int
) -> Sequence[DriftAlarmRow]:
    """Return the alarms of a deployment, the newest first; a filter that is None selects all."""
    named = {"workspace_id": workspace_id, "mode": mode, "workflow": workflow}
    alarms = select(DriftAlarmRow).filter_by(**{name: value for name, value in named.items() if value})
    newest = (col(DriftAlarmRow.created_at).desc(), col(DriftAlarmRow.event_id).desc())
    return db.exec(alarms.order_by(*newest).limit(limit)).all()


def store_drift_alarm(db: DbSession, scope: GraphScope, event: OutboxRow, seal_seq: int) -> None:
    """Remember an alarm, in the transaction that queues its event."""
    row = DriftAlarmRow(
        **scope_columns(scope),
        type=event.type,
        subject_id=event.subject_id,
        seal_seq=seal_seq,
        event_id=event.id,
        data=event.data,
        created_at=event.created_at,
    )
    db.add(row)


def make_subject_id(subject: DriftSubject, columns: GraphColumns) -> str:
    """Return the id of a path or node; of an edge the ids of both ends, joined by `>`."""
    if subject.kind == "path":
        return columns.paths[subject.key[0]].path_id
    return ">".join(columns.nodes[number].node_id for number in subject.key)


class _StoredSubjectNumbers:
    """Numbers of subjects by their ids; a merged path or node counts as the one it was merged into."""

    def __init__(self, history: History, columns: GraphColumns) -> None:
        self._history = history
        self._paths = {path.path_id: path.representative for path in columns.paths}
        self._nodes = {node.node_id: node.representative for node in columns.nodes}

    def find(self, subject_id: str) -> int | None:
        """Return the number of a subject; None if no session has it."""
        if subject_id in self._paths:
            return self._history.subjects.find(DriftSubject("path", (self._paths[subject_id],)))
        ends = [self._nodes.get(node_id) for node_id in subject_id.split(">")]
        known = tuple(number for number in ends if number is not None)
        if len(known) < len(ends):
            return None
        return self._history.subjects.find(DriftSubject("edge" if len(known) == 2 else "node", known))


def restore_detector_state(
    row: DriftStateRow | None, alarms: Sequence[DriftAlarmRow], history: History, columns: GraphColumns
) -> DetectorState:
    """Return the state of drift detection, in positions of the sessions and numbers of the present graph."""
    numbers = _StoredSubjectNumbers(history, columns)
    reported = (numbers.find(alarm.subject_id) for alarm in alarms if _is_stored_alarm_of_new_node(alarm))
    return DetectorState(
        judged=history.after(row.looked_seq) if row is not None else 0,
        term=_restore_drift_term(row, history, numbers) if row is not None else None,
        changes=_restore_drift_changes(row, alarms, history, numbers) if row is not None else {},
        reported=frozenset(number for number in reported if number is not None),
    )


def _is_stored_alarm_of_new_node(alarm: DriftAlarmRow) -> bool:
    return alarm.type == NEW_NODE and alarm.data.get("window", {}).get("kind", "new") == "new"


def _restore_drift_changes(
    row: DriftStateRow, alarms: Sequence[DriftAlarmRow], history: History, numbers: _StoredSubjectNumbers
) -> dict[int, NoticedChange]:
    entries = row.changes
    if entries is None:
        # An earlier release kept no changes: its alarms about paths stand for them.
        entries = [
            [
                alarm.subject_id,
                False,
                alarm.seal_seq,
                alarm.seal_seq,
                alarm.data["baseline_frequency"],
                0.0,
                True,
            ]
            for alarm in alarms
            if alarm.type == PATH_DISAPPEARED and alarm.seal_seq >= (row.baseline_from_seq or 0)
        ]
    changes = {}
    for subject_id, rose, since_seq, seal_seq, before, most_after, is_reported in entries:
        number = numbers.find(subject_id)
        since, position = history.at(since_seq), history.after(seal_seq) - 1
        if number is not None and _has_sessions_of_change(history, number, rose, since, position):
            changes[number] = NoticedChange(
                number, rose, since, position, before, most_after, is_reported, (since_seq, seal_seq)
            )
    return changes


def _has_sessions_of_change(history: History, subject: int, rose: bool, since: int, position: int) -> bool:
    """Return whether deletions left sessions of a change: of growth, one that has the subject.

    Without any the change explains no other one, and the subject may be reported again.
    """
    if rose:
        return bool(history.has(subject, since, position + 1).any())
    return since <= position


def store_drift_state(
    row: DriftStateRow, state: DetectorState, looked_seq: int, history: History, columns: GraphColumns
) -> None:
    """Write the state after a check of all sessions up to a number of sealing."""
    row.looked_seq, row.updated_at = looked_seq, clock.now()
    seqs = history.seal_seq

    def id_of(number: int) -> str:
        return make_subject_id(history.subjects.describe(number), columns)

    row.changes = [
        [
            id_of(change.subject),
            change.rose,
            *(change.stored_seqs or (int(seqs[change.since]), int(seqs[change.position]))),
            change.before,
            change.most_after,
            change.is_reported,
        ]
        for change in state.changes.values()
    ]
    term = state.term
    if term is None or not _has_stored_term_sessions(term, history):
        row.baseline_from_seq = row.baseline_to_seq = row.known_to_seq = None
        row.baseline_sessions, row.inherited = 0, []
        return
    row.baseline_from_seq, row.baseline_to_seq = int(seqs[term.start]), int(seqs[term.end - 1])
    row.baseline_sessions, row.known_to_seq = term.sessions, int(seqs[term.known - 1])
    row.inherited = [
        [
            id_of(old.subject),
            _find_seal_number_to_store(history, old.start),
            _find_seal_number_to_store(history, old.end) - 1,
            _find_seal_number_to_store(history, old.watched_from),
        ]
        for old in term.inherited
    ]


def _has_stored_term_sessions(term: Term, history: History) -> bool:
    """Return whether deletions left a baseline, and sessions of it from before its nodes were known."""
    return 0 <= term.start < term.end <= len(history) and term.start < term.known <= len(history)


def _find_seal_number_to_store(history: History, position: int) -> int:
    """Return the least sealing number of a session at this position or later; numbers begin with 1.

    Taken from the session before: the one at the position may not have come yet, and of a baseline whose
    sessions were all deleted none may be left.
    """
    return int(history.seal_seq[position - 1]) + 1 if position else 1


def _restore_drift_term(row: DriftStateRow, history: History, numbers: _StoredSubjectNumbers) -> Term | None:
    if row.baseline_from_seq is None or row.baseline_to_seq is None:
        return None
    inherited: dict[int, Inherited] = {}
    for subject_id, from_seq, to_seq, watched_from_seq in row.inherited:
        number = numbers.find(subject_id)
        if number is not None and number not in inherited:
            positions = (history.at(from_seq), history.after(to_seq), history.at(watched_from_seq))
            inherited[number] = Inherited(number, *positions)
    start, end = history.at(row.baseline_from_seq), history.after(row.baseline_to_seq)
    known = history.after(row.known_to_seq or row.baseline_to_seq)
    term = Term(start, end, row.baseline_sessions, known, tuple(inherited.values()))
    return term if _has_stored_term_sessions(term, history) else None


_NEW_FOR = timedelta(days=30)


def list_newly_alarmed_nodes(db: DbSession, scope: GraphScope, columns: GraphColumns) -> frozenset[str]:
    """Return ids of the nodes that are new; of a merged node the id of the one it was merged into."""
    statement = select(DriftAlarmRow.subject_id).where(
        *in_scope(DriftAlarmRow, scope),
        DriftAlarmRow.type == NEW_NODE,
        col(DriftAlarmRow.created_at) >= clock.now() - _NEW_FOR,
    )
    ids = frozenset(db.exec(statement))
    if not ids:
        return ids
    return frozenset(
        columns.nodes[node.representative].node_id for node in columns.nodes if node.node_id in ids
    )


def read_history(
    db: DbSession, scope: GraphScope, columns: GraphColumns, *, by_start: bool = False
) -> History:
    """Return the sessions that are in a graph now, in the order of sealing, or of their starts.

    Those that were deleted, or sealed while the graph paused, are not: nothing is counted for or against.
    """
    rows = np.nonzero(columns.current())[0]
    order = (columns.session_id[rows], columns.seal_seq[rows])
    rows = rows[np.lexsort((*order, columns.started_ms[rows]) if by_start else order)]
    return History(
        seal_seq=columns.seal_seq[rows],
        variant=columns.variant[rows],
        started_ms=columns.started_ms[rows],
        actor=_number_actors(
            db, scope, [session_id.decode() for session_id in columns.session_id[rows].tolist()]
        ),
        subjects=list_drift_subjects(columns.variant_path, columns.variant_start, columns.variant_nodes),
    )


def _number_actors(db: DbSession, scope: GraphScope, session_ids: list[str]) -> Ints:
    """Return a number for the actor of each session; it is valid in this reading only."""
    statement = select(SessionRow.id, SessionRow.actor_id).where(
        *in_scope(SessionRow, scope), col(SessionRow.actor_id).is_not(None)
    )
    numbers: dict[str | None, int] = {}
    actor_of = {
        session_id: numbers.setdefault(actor_id, len(numbers)) for session_id, actor_id in db.exec(statement)
    }
    return np.array([actor_of.get(session_id, NO_ACTOR) for session_id in session_ids], dtype=np.int64)
