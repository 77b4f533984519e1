"""Purged sessions in a memory graph: rows that vanish or become anonymous, texts that name nodes.

A version of the kind `purge` makes every process load the graph from the database, since caches only add
rows. Contract §4.
"""

from collections.abc import Collection
from datetime import UTC, datetime, time

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.ids import new_id
from recorder.memory.graph.nodes import GraphScope
from recorder.memory.storage.graph_store import delete_labels
from recorder.memory.storage.versions import add_version, in_scope, read_head
from recorder.models.memory import SessionPathRow


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
    delete_labels(db, scope, session_ids)
    counted = [row.model_dump() for row in rows if row.removed_version is None]
    db.exec(delete(path).where(*in_scope(path, scope), wanted))
    for row in counted:
        started_at: datetime = row["started_at"]
        day = datetime.combine(started_at.date(), time(), tzinfo=UTC)
        db.add(SessionPathRow.model_validate({**row, "session_id": new_id("ano"), "started_at": day}))
    return add_version(db, scope, head, "purge")
