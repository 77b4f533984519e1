"""Choice of a graph's indexed sessions: its newest columns, and the rows that pass a query's filters."""

from datetime import datetime

import numpy as np
from sqlmodel import Session as DbSession

from recorder import clock
from recorder.errors import UnknownWorkflow
from recorder.memory.graph.arrays import Bools
from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.queries.columns import ACTOR_KINDS, GraphColumns
from recorder.memory.queries.columns_cache import read_graph_columns
from recorder.memory.storage.versions import read_newest_version
from recorder.models.wire import ActorKind, Outcome
from recorder.tenant import GraphScope


def read_newest_columns(db: DbSession, scope: GraphScope) -> GraphColumns:
    """Return a graph at its newest version.

    Raises:
        UnknownWorkflow: for an unknown workflow.
    """
    head = read_newest_version(db, scope)
    if head is None:
        raise UnknownWorkflow
    return read_graph_columns(db, scope, head.version)


def select_session_rows(
    columns: GraphColumns,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    outcome: Outcome | None = None,
    actor_kind: ActorKind | None = None,
    version: int | None = None,
) -> Bools:
    """Return the rows of the sessions that are in the graph and match all filters given.

    Args:
        columns: the graph's columns.
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        outcome: only sessions that ended so.
        actor_kind: only sessions of such actors.
        version: those that were in the graph at this earlier version.
    """
    chosen, ended_as = columns.current(), columns.outcome
    if version is not None:
        chosen = (columns.added <= version) & (columns.removed > version)
        ended_as = np.where(columns.outcome_since > version, columns.earlier_outcome, columns.outcome)
    if since is not None:
        chosen &= columns.started_ms >= clock.to_ms(since)
    if until is not None:
        chosen &= columns.started_ms < clock.to_ms(until)
    if outcome is not None:
        chosen &= ended_as == OUTCOMES.index(outcome)
    if actor_kind is not None:
        chosen &= columns.actor == ACTOR_KINDS.index(actor_kind)
    return chosen
