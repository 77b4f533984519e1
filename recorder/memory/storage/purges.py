"""Purged sessions in a memory graph: rows that vanish or become anonymous, labels that are replaced.

A version of the kind `purge` makes every process load the graph from the database, since caches only add
rows. Contract §4.
"""

from collections.abc import Collection
from datetime import UTC, datetime, time
from typing import Any

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import and_, col, delete, select, update

from recorder.ids import new_id
from recorder.memory.graph.nodes import live_number
from recorder.memory.storage.graph_store import columns_of, node_of, read_rows
from recorder.memory.storage.versions import add_version, in_scope, read_head
from recorder.models.memory import (
    GraphMicroStateRow,
    GraphNodeRow,
    GraphTraceRow,
    GraphVariantRow,
    SessionPathRow,
)
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import read_again
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


def _in_one_graph(table: Any, other: Any) -> Any:
    return and_(
        *(getattr(table, name) == getattr(other, name) for name in ("workspace_id", "mode", "workflow"))
    )


def replace_labels(database: Database, lake: Lake, scope: GraphScope) -> int:
    """Replace the labels of nodes that no step in the lake has any more; return their number.

    A label quotes a recorded page. A node takes the least label of the steps that are left, as a new node
    does; without any it keeps the kind of its action alone.

    Args:
        database: the deployment's database.
        lake: the lake, from which the purged sessions were deleted before.
        scope: the graph.

    Raises:
        Unavailable: if the database or the lake does not answer.
    """
    with database.transaction(write=False) as db:
        # A node that comes later has steps that this read of the lake may lack.
        known = {row.number for row in read_rows(db, scope, GraphNodeRow.number)}
    if not known:
        return 0

    def read_pairs() -> pl.DataFrame:
        steps = lake.scan("steps", scope.tenant).filter(pl.col("workflow") == scope.workflow)
        return steps.select("micro_key", "label").unique().collect()

    pairs = read_again(read_pairs)
    labels: dict[int, set[str]] = {}
    for micro_key, label in pairs.iter_rows():
        labels.setdefault(micro_key, set()).add(label)
    with database.transaction(write=True) as db:
        head = read_head(db, scope, lock=True)
        if head is None:
            return 0
        unbacked = _find_unbacked(db, scope, labels)
        changed = {number: label for number, label in unbacked.items() if number in known}
        for number, label in changed.items():
            row = (*in_scope(GraphNodeRow, scope), GraphNodeRow.number == number)
            db.exec(update(GraphNodeRow).where(*row).values(label=label))
        if changed:
            add_version(db, scope, head, "purge")
    return len(changed)


def _find_unbacked(db: DbSession, scope: GraphScope, labels: dict[int, set[str]]) -> dict[int, str]:
    """Return the new label of each node whose label none of its steps has, by the node's number."""
    stored = read_rows(db, scope, *columns_of(GraphNodeRow))
    nodes = sorted(map(node_of, stored), key=lambda node: node.number)
    backed: dict[int, set[str]] = {}
    for state in read_rows(db, scope, GraphMicroStateRow.micro_key, GraphMicroStateRow.node):
        number = live_number(nodes, state.node)
        backed.setdefault(number, set()).update(labels.get(state.micro_key, ()))
    changed = {}
    for node in nodes:
        left = backed.get(live_number(nodes, node.number), set())
        if node.label not in left:
            label = min(left, default=node.kind)
            if label != node.label:
                changed[node.number] = label
    return changed
