"""The memory graph in SQL: load it, add a batch, take a session back. Spec §4.2; contract §4.

The one sealing run adds structure (through `recorder.memory.indexing`); the API process only moves counters,
for late tags and deletions. Both take the next version under the lock of the workflow's row.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sqlalchemy import bindparam
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel, col, insert, select, update

from recorder.memory.edges import EdgeCounts
from recorder.memory.graph import Graph, GraphChange, Trace
from recorder.memory.nodes import GraphScope, Node
from recorder.memory.paths import Path
from recorder.memory.versions import GraphHead, add_version, in_scope, place_of, read_head
from recorder.models.memory import (
    GraphMicroStateRow,
    GraphNodeRow,
    GraphPathRow,
    GraphVariantRow,
    SessionPathRow,
)
from recorder.models.session import SessionRow

_IDS_AT_ONCE = 500


def scope_of(row: SessionRow) -> GraphScope:
    """The graph a session belongs to."""
    return GraphScope(row.workspace_id, row.mode, row.workflow)


def load_graph(db: DbSession, scope: GraphScope) -> Graph:
    """The newest version of a graph, ready to take in sessions; rows of single sessions are not read."""
    graph = Graph(scope)
    nodes = _all(db, GraphNodeRow, scope)
    states = _all(db, GraphMicroStateRow, scope)
    graph.node_index.restore(
        [_node(row) for row in sorted(nodes, key=_number)], [(row.micro_key, row.node) for row in states]
    )
    variants = _all(db, GraphVariantRow, scope)
    paths = sorted(_all(db, GraphPathRow, scope), key=_number)
    graph.path_index.restore(
        [(row.variant_key, tuple(row.nodes), row.path, row.n) for row in variants],
        [Path(row.number, row.path_id, row.leader, tuple(row.nodes)) for row in paths],
        graph.nodes,
    )
    return graph


def save_change(
    db: DbSession,
    scope: GraphScope,
    change: GraphChange,
    rows: Sequence[SessionRow],
    *,
    head: GraphHead,
    writer: str,
) -> int:
    """Write a batch as the graph's next version; a few statements, since ingest waits for the lock.

    Args:
        rows: the sealed sessions of the change's traces.
        head: as read with `lock` in this transaction.
        writer: name of this one change.

    Returns:
        The new version.
    """
    seal_seq = max((row.seal_seq or 0 for row in rows), default=0)
    version = add_version(db, scope, head, "sessions", writer=writer, seal_seq=seal_seq)
    _insert_structure(db, {**place_of(scope), "created_version": version}, change)
    by_id = {row.id: row for row in rows}
    paths = [_session_path(by_id[trace.session_id], trace, version) for trace in change.traces]
    _insert(db, SessionPathRow, paths)
    _count_variants(db, scope, Counter(trace.variant_key for trace in change.traces))
    edges = EdgeCounts(scope)
    for trace, path in zip(change.traces, paths, strict=True):
        edges.add(path, trace.nodes, 1)
    edges.save(db)
    return version


def replace_outcome(db: DbSession, row: SessionRow, outcome: str) -> int | None:
    """Give an indexed session another outcome: its old contribution is taken out, the new one put in.

    Returns:
        The new version; None where nothing changes or the session is in no graph.
    """
    scope = scope_of(row)
    head = read_head(db, scope, lock=True)
    current = _current_path(db, row.id)
    if head is None or current is None or current.outcome == outcome:
        return None
    version = add_version(db, scope, head, "outcome")
    old = current.model_dump()
    new = {**old, "version": version, "outcome": outcome}
    _end_path(db, current, version)
    _insert(db, SessionPathRow, [new])
    nodes = _variant_nodes(db, scope, current.variant_key)
    edges = EdgeCounts(scope)
    edges.add(old, nodes, -1)
    edges.add(new, nodes, 1)
    edges.save(db)
    return version


def remove_session(db: DbSession, row: SessionRow) -> int | None:
    """Take a session out of every count of its graph.

    Returns:
        The new version; None where the session is in no graph.
    """
    scope = scope_of(row)
    head = read_head(db, scope, lock=True)
    current = _current_path(db, row.id)
    if head is None or current is None:
        return None
    version = add_version(db, scope, head, "removal")
    _end_path(db, current, version)
    _count_variants(db, scope, {current.variant_key: -1})
    edges = EdgeCounts(scope)
    edges.add(current.model_dump(), _variant_nodes(db, scope, current.variant_key), -1)
    edges.save(db)
    return version


def known_sessions(db: DbSession, session_ids: Iterable[str]) -> set[str]:
    """Which of these sessions were taken into a graph before."""
    known: set[str] = set()
    ids = list(session_ids)
    for start in range(0, len(ids), _IDS_AT_ONCE):
        some = ids[start : start + _IDS_AT_ONCE]
        known.update(
            db.exec(select(SessionPathRow.session_id).where(col(SessionPathRow.session_id).in_(some)))
        )
    return known


def _insert_structure(db: DbSession, made: dict[str, Any], change: GraphChange) -> None:
    _insert(db, GraphNodeRow, [{**made, **_node_values(node)} for node in change.nodes])
    states = [{**made, "micro_key": key, "node": node} for key, node in change.micro_states]
    _insert(db, GraphMicroStateRow, states)
    variants = [
        {**made, "variant_key": variant.variant_key, "nodes": variant.nodes, "path": variant.path, "n": 0}
        for variant in change.variants
    ]
    _insert(db, GraphVariantRow, variants)
    paths = [
        {**made, "number": path.number, "path_id": path.path_id, "leader": path.leader, "nodes": path.nodes}
        for path in change.paths
    ]
    _insert(db, GraphPathRow, paths)


def _session_path(row: SessionRow, trace: Trace, version: int) -> dict[str, Any]:
    entered = (0, *trace.entered_ms)
    gaps = [later - earlier for earlier, later in pairwise(entered)]
    return {
        "session_id": row.id,
        "version": version,
        "removed_version": None,
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "workflow": row.workflow,
        "path_id": trace.path_id,
        "variant_key": trace.variant_key,
        "outcome": row.outcome or "abandoned",
        "duration_ms": row.duration_ms,
        "started_at": row.started_at or row.created_at,
        "sealed_at": row.sealed_at,
        "actor_kind": row.actor_kind,
        # An event may lie behind the end of a session whose client's clock ran fast.
        "edge_ms": [*gaps, max(0, row.duration_ms - entered[-1])],
    }


def _count_variants(db: DbSession, scope: GraphScope, counts: Mapping[int, int]) -> None:
    statement = (
        update(GraphVariantRow)
        .where(*in_scope(GraphVariantRow, scope), col(GraphVariantRow.variant_key) == bindparam("key"))
        .values(n=col(GraphVariantRow.n) + bindparam("change"))
    )
    moved = [{"key": key, "change": change} for key, change in sorted(counts.items())]
    db.connection().execute(statement, moved)


def _current_path(db: DbSession, session_id: str) -> SessionPathRow | None:
    statement = select(SessionPathRow).where(
        SessionPathRow.session_id == session_id, col(SessionPathRow.removed_version).is_(None)
    )
    return db.exec(statement).one_or_none()


def _end_path(db: DbSession, current: SessionPathRow, version: int) -> None:
    current.removed_version = version
    db.add(current)
    db.flush()


def _variant_nodes(db: DbSession, scope: GraphScope, key: int) -> list[int]:
    where = (*in_scope(GraphVariantRow, scope), GraphVariantRow.variant_key == key)
    return list(db.exec(select(GraphVariantRow.nodes).where(*where)).one())


def _node(row: Any) -> Node:
    return Node(
        number=row.number,
        node_id=row.node_id,
        label=row.label,
        kind=row.kind,
        micro_key=row.micro_key,
        act=row.act,
        screen=row.screen,
        features=tuple(np.frombuffer(row.features, dtype="<i8").tolist()),
    )


def _node_values(node: Node) -> dict[str, Any]:
    return {
        "number": node.number,
        "node_id": node.node_id,
        "label": node.label,
        "kind": node.kind,
        "micro_key": node.micro_key,
        "act": node.act,
        "screen": node.screen,
        "features": np.array(node.features, dtype="<i8").tobytes(),
    }


def _number(row: Any) -> int:
    number: int = row.number
    return number


def _insert(db: DbSession, table: type[SQLModel], rows: list[dict[str, Any]]) -> None:
    if rows:
        db.connection().execute(insert(table), rows)


def _all(db: DbSession, table: Any, scope: GraphScope) -> Sequence[Any]:
    """All rows of one graph as plain tuples: building objects would be most of the time."""
    return db.connection().execute(select(*table.__table__.columns).where(*in_scope(table, scope))).all()
