"""Purged sessions in a memory graph: rows that vanish or become anonymous, texts that name nodes.

A version of the kind `purge` makes every process load the graph from the database, since caches only add
rows. Contract §4.
"""

from collections.abc import Collection
from datetime import UTC, datetime, time
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import and_, col, delete, select

from recorder.ids import new_id
from recorder.memory.drift.alarm_labels import remove_from_alarms
from recorder.memory.storage.graph_store import delete_labels
from recorder.memory.storage.versions import add_version, in_scope, read_head
from recorder.models.memory import GraphTraceRow, GraphVariantRow, SessionPathRow
from recorder.tenant import GraphScope


def purge_sessions(db: DbSession, scope: GraphScope, session_ids: Collection[str]) -> int | None:
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
    head = read_head(db, scope, lock=True)
    path = SessionPathRow
    wanted = col(path.session_id).in_(session_ids)
    rows = db.exec(select(path).where(*in_scope(path, scope), wanted)).all()
    if head is None or not rows:
        return None
    remove_from_alarms(db, scope, session_ids)
    delete_labels(db, scope, session_ids)
    counted = [row.model_dump() for row in rows if row.removed_version is None]
    db.exec(delete(path).where(*in_scope(path, scope), wanted))
    for row in counted:
        started_at: datetime = row["started_at"]
        day = datetime.combine(started_at.date(), time(), tzinfo=UTC)
        db.add(SessionPathRow.model_validate({**row, "session_id": new_id("ano"), "started_at": day}))
    return add_version(db, scope, head, "purge")


def list_nodes(db: DbSession, session_id: str) -> set[int]:
    """Return the numbers of the nodes that a session visited; none where it is in no graph."""
    path, trace, variant = SessionPathRow, GraphTraceRow, GraphVariantRow
    statement = (
        select(variant.nodes)
        .join(trace, _in_one_graph(trace, variant) & (col(trace.variant_key) == variant.variant_key))
        .join(path, _in_one_graph(path, trace) & (col(path.trace_key) == trace.trace_key))
        .where(path.session_id == session_id)
    )
    return {number for nodes in db.exec(statement) for number in nodes}


def _in_one_graph(left: Any, right: Any) -> Any:
    return and_(
        *(getattr(left, name) == getattr(right, name) for name in ("workspace_id", "mode", "workflow"))
    )
