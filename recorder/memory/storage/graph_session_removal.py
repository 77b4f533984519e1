"""Removal of purged sessions from a memory graph: rows vanish or become anonymous, texts name no node.

A version of the kind `purge` makes every process load the graph from the database, since caches only add
rows. Contract §4.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import and_, col, delete, insert, select, update

from recorder.ids import new_id
from recorder.memory.drift.alarm_labels import replace_unshared_alarm_labels
from recorder.memory.steps.action_tokens import NAMED_ACTIONS
from recorder.memory.storage.graph_store import delete_graph_labels
from recorder.memory.storage.versions import add_graph_version, in_scope, read_newest_version
from recorder.models.memory import (
    GraphNodeRow,
    GraphTraceRow,
    GraphVariantRow,
    GraphVersionRow,
    SessionPathRow,
)
from recorder.storage.list_pages import stream_rows
from recorder.tenant import GraphScope, Tenant

_NODES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class UnvisitedNames:
    """Names of nodes that no session visits once some sessions leave their graph, as of a version."""

    version: int
    #: Id of each named node, and number of the node that stands for it, by its number.
    nodes: Mapping[int, tuple[str, int]]


def find_unvisited_names(db: DbSession, scope: GraphScope, session_ids: Collection[str]) -> UnvisitedNames:
    """Return the names that only sessions which leave a graph gave; it reads each variant of the graph once.

    Call it before the write transaction of `purge_sessions_from_graph`.
    """
    # Before the rows, so that what is newer is read again.
    head = read_newest_version(db, scope)
    version = 0 if head is None else head.version
    return UnvisitedNames(version, _find_names_of_unvisited_nodes(db, scope, session_ids))


def are_names_current(db: DbSession, scope: GraphScope, names: UnvisitedNames) -> bool:
    """Return whether a graph changed, since names were read, by new and deleted sessions alone."""
    row = GraphVersionRow
    changed = (col(row.version) > names.version, col(row.kind).in_(("rebuild", "purge")))
    return db.exec(select(row.version).where(*in_scope(row, scope), *changed).limit(1)).first() is None


def purge_sessions_from_graph(
    db: DbSession, scope: GraphScope, session_ids: Collection[str], names: UnvisitedNames | None = None
) -> int | None:
    """Delete the rows of sessions from their graph; those that still count leave an anonymous row.

    An anonymous row keeps trace, outcome, kind of actor and durations. It has a fresh id, and the day of its
    start in the place of the instant.

    Args:
        db: a write transaction.
        scope: the graph.
        session_ids: the sessions.
        names: result of `find_unvisited_names`; read in this transaction where it is None or not current.

    Returns:
        The new version; None if the graph has no rows of them.
    """
    head = read_newest_version(db, scope, lock=True)
    path = SessionPathRow
    wanted = col(path.session_id).in_(session_ids)
    rows = db.exec(select(path).where(*in_scope(path, scope), wanted)).all()
    if head is None or not rows:
        return None
    if names is None or not are_names_current(db, scope, names):
        names = find_unvisited_names(db, scope, session_ids)
    unnamed = _remove_unvisited_names(db, scope, session_ids, names)
    replace_unshared_alarm_labels(db, scope, session_ids, unnamed=unnamed)
    delete_graph_labels(db, scope, session_ids)
    counted = [row.model_dump() for row in rows if row.removed_version is None]
    # By the primary key alone: with the graph's columns SQLite would read all rows of the graph.
    db.exec(delete(path).where(col(path.session_id).in_([row.session_id for row in rows])))
    anonymous = [
        {**row, "session_id": new_id("ano"), "started_at": _cut_start_time_to_day(row)} for row in counted
    ]
    if anonymous:
        db.connection().execute(insert(path), anonymous)
    return add_graph_version(db, scope, head, "purge")


def _remove_unvisited_names(
    db: DbSession, scope: GraphScope, session_ids: Collection[str], names: UnvisitedNames
) -> set[str]:
    """Remove the names that no session gives; return the ids of the nodes.

    Sessions that were added since the names were read may give some. One that was removed since may
    be the last that gave a name: its own purge removes that.
    """
    node, path = GraphNodeRow, SessionPathRow
    unvisited = {representative for _, representative in names.nodes.values()}
    newer = (*_list_conditions_of_staying(scope, session_ids), col(path.version) > names.version)
    _take_visited_nodes(db, scope, unvisited, newer)
    unnamed = {
        number: node_id
        for number, (node_id, representative) in names.nodes.items()
        if representative in unvisited
    }
    for number in unnamed:
        db.exec(update(node).where(*in_scope(node, scope), col(node.number) == number).values(label=""))
    return set(unnamed.values())


def _find_names_of_unvisited_nodes(
    db: DbSession, scope: GraphScope, session_ids: Collection[str]
) -> dict[int, tuple[str, int]]:
    """Return the names of activities and tools that only sessions which leave the graph used.

    Such a name needs no other session that shares it, and may be that of a person. Sessions that use it later
    restore it.

    Returns:
        Ids of the nodes and, of merged ones, the numbers of the nodes that replace them, by their numbers.
    """
    node = GraphNodeRow
    # Also those that have lost their name: others that kept one may be merged into them.
    is_of_named_kind = (*in_scope(node, scope), col(node.kind).in_(NAMED_ACTIONS))
    visited = sorted(number for graph, number in list_nodes(db, session_ids) if graph == scope)
    unvisited: set[int] = set()
    for start in range(0, len(visited), _NODES_AT_ONCE):
        some = col(node.number).in_(visited[start : start + _NODES_AT_ONCE])
        unvisited.update(db.exec(select(node.number).where(*is_of_named_kind, some)))
    _take_visited_nodes(db, scope, unvisited, _list_conditions_of_staying(scope, session_ids))
    if not unvisited:
        return {}
    columns = select(node.number, node.node_id, node.merged_into, node.label)
    rows = db.exec(columns.where(*is_of_named_kind)).all()
    merged_into = {number: into for number, _, into, _ in rows if into is not None}
    return {
        number: (node_id, _resolve_merged_number(merged_into, number))
        for number, node_id, _, label in rows
        if label and _resolve_merged_number(merged_into, number) in unvisited
    }


def _list_conditions_of_staying(scope: GraphScope, session_ids: Collection[str]) -> list[Any]:
    """Return the conditions that select the rows of sessions that stay in a graph, without anonymous ones."""
    path = SessionPathRow
    return [
        *in_scope(path, scope),
        col(path.removed_version).is_(None),
        col(path.session_id).startswith("ses_", autoescape=True),
        col(path.session_id).not_in(session_ids),
    ]


def _take_visited_nodes(
    db: DbSession, scope: GraphScope, unvisited: set[int], conditions: Collection[Any]
) -> None:
    """Take the nodes that some sessions visited out of a set.

    Most are soon found; then no other row is read. Each variant is read once.
    """
    if not unvisited:
        return
    path, trace, variant = SessionPathRow, GraphTraceRow, GraphVariantRow
    trace_keys = select(path.trace_key).where(*conditions).distinct()
    of_traces = (*in_scope(trace, scope), col(trace.trace_key).in_(trace_keys))
    variant_keys = select(trace.variant_key).where(*of_traces)
    taken = (*in_scope(variant, scope), col(variant.variant_key).in_(variant_keys))
    for numbers in stream_rows(db, select(variant.nodes).where(*taken)):
        unvisited.difference_update(numbers)
        if not unvisited:
            return


def _resolve_merged_number(merged_into: Mapping[int, int], number: int) -> int:
    while number in merged_into:
        number = merged_into[number]
    return number


def _cut_start_time_to_day(row: dict[str, Any]) -> datetime:
    started_at: datetime = row["started_at"]
    return datetime.combine(started_at.date(), time(), tzinfo=UTC)


def list_nodes(db: DbSession, session_ids: Collection[str]) -> set[tuple[GraphScope, int]]:
    """Return the nodes that sessions visited, by graph and number; none of sessions that are in no graph."""
    path, trace, variant = SessionPathRow, GraphTraceRow, GraphVariantRow
    graph = (path.workspace_id, path.mode, path.workflow)
    keys = select(*graph, trace.variant_key).distinct()
    keys = keys.join(
        trace, _match_graph_of_purged_rows(path, trace) & (col(path.trace_key) == trace.trace_key)
    )
    wanted = keys.where(col(path.session_id).in_(session_ids)).subquery()
    statement = select(variant.workspace_id, variant.mode, variant.workflow, variant.nodes).join(
        wanted, _match_graph_of_purged_rows(wanted.c, variant) & (wanted.c.variant_key == variant.variant_key)
    )
    return {
        (GraphScope(Tenant(workspace_id, mode), workflow), number)
        for workspace_id, mode, workflow, nodes in db.exec(statement)
        for number in nodes
    }


def _match_graph_of_purged_rows(left: Any, right: Any) -> Any:
    return and_(
        *(getattr(left, name) == getattr(right, name) for name in ("workspace_id", "mode", "workflow"))
    )
