"""The history of a graph, read from its columns and the sessions' actors. Contract §4."""

import numpy as np
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.memory.drift.history import NO_ACTOR, History, unique_visits
from recorder.memory.grouping.inverted_index import Ints
from recorder.memory.grouping.nodes import GraphScope
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.storage.versions import in_scope
from recorder.models.session import SessionRow


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
