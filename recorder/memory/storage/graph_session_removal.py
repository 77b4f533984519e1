"""Removal of purged sessions from a memory graph: rows vanish or become anonymous, texts name no node.

A version of the kind `purge` makes every process load the graph from the database, since caches only add
rows. Contract §4.
"""

from collections.abc import Collection
from datetime import UTC, datetime, time
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import and_, col, delete, insert, select

from recorder.ids import new_id
from recorder.memory.drift.alarm_labels import replace_unshared_alarm_labels
from recorder.memory.storage.graph_store import delete_graph_labels
from recorder.memory.storage.versions import add_graph_version, in_scope, read_newest_version
from recorder.models.memory import GraphTraceRow, GraphVariantRow, SessionPathRow
from recorder.tenant import GraphScope, Tenant


def purge_sessions_from_graph(db: DbSession, scope: GraphScope, session_ids: Collection[str]) -> int | None:
    """Delete the rows of sessions from their graph; those that still count leave an anonymous row.

    An anonymous row keeps trace, outcome, kind of actor and durations. It has a fresh id, and the day of its
    start in the place of the instant.

    Args:
        db: a write transaction.
        scope: the graph.
        session_ids: the sessions.

    Returns:
        The new version; None if the graph has no rows of them.
    """
    head = read_newest_version(db, scope, lock=True)
    path = SessionPathRow
    wanted = col(path.session_id).in_(session_ids)
    rows = db.exec(select(path).where(*in_scope(path, scope), wanted)).all()
    if head is None or not rows:
        return None
    replace_unshared_alarm_labels(db, scope, session_ids)
    delete_graph_labels(db, scope, session_ids)
    counted = [row.model_dump() for row in rows if row.removed_version is None]
    db.exec(delete(path).where(*in_scope(path, scope), wanted))
    anonymous = [{**row, "session_id": new_id("ano"), "started_at": _cut_to_day(row)} for row in counted]
    if anonymous:
        db.connection().execute(insert(path), anonymous)
    return add_graph_version(db, scope, head, "purge")


def _cut_to_day(row: dict[str, Any]) -> datetime:
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
