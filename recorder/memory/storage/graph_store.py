"""The memory graph in SQL: load it, add a batch, remove a session. Spec §4.2; contract §4.

Sealing adds structure (through `indexing`) and a rebuild rearranges it; the API process
only moves counters, for late tags and deletions. All take the next version under the lock of the workflow's
row.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sqlalchemy import and_, bindparam, func
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel, col, delete, insert, select, update

from recorder.memory.drift.alarm_labels import replace_unshared_alarm_labels
from recorder.memory.graph.capacity import DEFAULT_CAPACITY, GraphCapacity
from recorder.memory.graph.graph import Graph, GraphChange, GraphSessionTrace, MicroState, StateTrace
from recorder.memory.graph.node_labels import LabelText, NodeLabels, TextKind
from recorder.memory.graph.nodes import Node, select_compared_features
from recorder.memory.graph.paths import Path, Variant
from recorder.memory.storage.versions import (
    GraphHead,
    add_graph_version,
    in_scope,
    read_newest_version,
    scope_columns,
)
from recorder.models.memory import (
    GraphLabelRow,
    GraphMicroStateRow,
    GraphNodeRow,
    GraphPathRow,
    GraphTraceRow,
    GraphVariantRow,
    SessionPathRow,
    VersionKind,
)
from recorder.models.session import SessionRow
from recorder.tenant import GraphScope

_IDS_AT_ONCE = 500
#: Bytes of a number in a packed column.
_NUMBER_BYTES = 8


def graph_scope_of(row: SessionRow) -> GraphScope:
    """Return the graph that a session belongs to."""
    return GraphScope(row.tenant, row.workflow)


def load_graph(db: DbSession, scope: GraphScope, capacity: GraphCapacity = DEFAULT_CAPACITY) -> Graph:
    """Return the newest version of a graph, ready for new sessions; rows of single sessions are not read."""
    graph = Graph(scope, capacity)
    states = read_graph_rows(db, scope, GraphMicroStateRow.micro_key, GraphMicroStateRow.node)
    nodes = sorted(read_graph_rows(db, scope, *graph_table_columns(GraphNodeRow)), key=_get_number)
    graph.node_index.restore(map(node_of_row, nodes), ((row.micro_key, row.node) for row in states))
    graph.node_labels = read_graph_labels(db, scope)
    trace = GraphTraceRow
    sessions: Counter[int] = Counter()
    packed_bytes = func.length(trace.steps).label("packed_bytes")
    for row in read_graph_rows(db, scope, trace.trace_key, trace.variant_key, trace.n, packed_bytes):
        graph.variant_of[row.trace_key] = row.variant_key
        graph.trace_steps += row.packed_bytes // _NUMBER_BYTES
        sessions[row.variant_key] += row.n
    variants = read_graph_rows(db, scope, *graph_table_columns(GraphVariantRow))
    paths = sorted(read_graph_rows(db, scope, *graph_table_columns(GraphPathRow)), key=_get_number)
    graph.path_index.restore(
        [(row.variant_key, tuple(row.nodes), row.path, sessions[row.variant_key]) for row in variants],
        map(path_of_row, paths),
        graph.nodes,
    )
    return graph


def read_graph_labels(db: DbSession, scope: GraphScope) -> NodeLabels:
    """Return the texts that name the nodes of a graph."""
    label, state = GraphLabelRow, GraphMicroStateRow
    columns = (state.node, label.micro_key, label.kind, label.text, label.session_id, label.actor)
    statement = (
        select(*columns)  # type: ignore[call-overload]
        .join(state, and_(*in_scope(state, scope), col(state.micro_key) == col(label.micro_key)))
        .where(*in_scope(label, scope))
    )
    labels = NodeLabels()
    labels.restore(
        (node, LabelText(micro_key, TextKind(kind), text, session_id, actor))
        for node, micro_key, kind, text, session_id, actor in db.connection().execute(statement)
    )
    return labels


def delete_graph_labels(db: DbSession, scope: GraphScope, session_ids: Collection[str]) -> None:
    """Delete the texts that sessions gave to nodes."""
    wanted = col(GraphLabelRow.session_id).in_(session_ids)
    db.exec(delete(GraphLabelRow).where(*in_scope(GraphLabelRow, scope), wanted))


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
        db: the transaction.
        scope: the graph.
        change: the additions to the graph.
        rows: the sealed sessions of the change.
        head: as read with `lock` in this transaction.
        writer: name of this one change.

    Returns:
        The new version.
    """
    seal_seq = max((row.seal_seq or 0 for row in rows), default=0)
    kind: VersionKind = "names" if change.names else "sessions"
    version = add_graph_version(db, scope, head, kind, writer=writer, seal_seq=seal_seq)
    made = {**scope_columns(scope), "created_version": version}
    insert_graph_rows(db, GraphNodeRow, [{**made, **node_values(node)} for node in change.nodes])
    for number, label in sorted(change.names.items()):
        named = (*in_scope(GraphNodeRow, scope), GraphNodeRow.number == number)
        db.exec(update(GraphNodeRow).where(*named).values(label=label))
    insert_graph_rows(
        db, GraphMicroStateRow, [{**made, **micro_state_values(state)} for state in change.micro_states]
    )
    insert_graph_rows(db, GraphPathRow, [{**made, **path_values(path)} for path in change.paths])
    insert_graph_rows(
        db, GraphVariantRow, [{**made, **variant_values(variant)} for variant in change.variants]
    )
    insert_graph_rows(
        db, GraphTraceRow, [{**made, "n": 0, **make_graph_trace_values(trace)} for trace in change.traces]
    )
    by_id = {row.id: row for row in rows}
    paths = [
        _make_graph_session_path_row(by_id[trace.session_id], trace, version) for trace in change.sessions
    ]
    insert_graph_rows(db, SessionPathRow, paths)
    insert_graph_rows(
        db, GraphLabelRow, [{**scope_columns(scope), **text._asdict()} for text in change.labels]
    )
    _change_trace_counts(db, scope, Counter(trace.trace_key for trace in change.sessions))
    return version


def replace_session_outcome(db: DbSession, row: SessionRow, outcome: str) -> int | None:
    """Give an indexed session another outcome; its row keeps the one before, for readers of that version.

    Returns:
        The new version; None where nothing changes or the session is in no graph.
    """
    scope = graph_scope_of(row)
    head = read_newest_version(db, scope, lock=True)
    current = _read_current_graph_path(db, row.id)
    if head is None or current is None or current.outcome == outcome:
        return None
    params = {"added_version": current.version, "earlier_version": current.outcome_version or 0}
    version = add_graph_version(db, scope, head, "outcome", params=params)
    changed = {"outcome": outcome, "outcome_version": version, "earlier_outcome": current.outcome}
    _update_current_graph_path(db, row.id, changed)
    return version


def remove_session_from_graph(db: DbSession, row: SessionRow) -> int | None:
    """Take a session out of every count of its graph.

    Returns:
        The new version; None where the session is in no graph.
    """
    scope = graph_scope_of(row)
    head = read_newest_version(db, scope, lock=True)
    current = _read_current_graph_path(db, row.id)
    if head is None or current is None:
        return None
    version = add_graph_version(db, scope, head, "removal")
    _update_current_graph_path(db, row.id, {"removed_version": version})
    replace_unshared_alarm_labels(db, scope, [row.id])
    delete_graph_labels(db, scope, [row.id])
    _change_trace_counts(db, scope, {current.trace_key: -1})
    return version


def find_known_sessions(db: DbSession, session_ids: Iterable[str]) -> set[str]:
    """Return the sessions among these that were added to a graph before."""
    known: set[str] = set()
    for some in split_graph_session_ids(list(session_ids)):
        known.update(
            db.exec(select(SessionPathRow.session_id).where(col(SessionPathRow.session_id).in_(some)))
        )
    return known


def split_graph_session_ids(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield ids in parts of as many as one statement may carry."""
    for start in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[start : start + _IDS_AT_ONCE]


def read_graph_rows(
    db: DbSession, scope: GraphScope, *columns: Any, where: Iterable[Any] = ()
) -> Sequence[Any]:
    """Read columns of one graph's rows as plain tuples: building objects would take most of the time."""
    table = columns[0].class_
    return db.connection().execute(select(*columns).where(*in_scope(table, scope), *where)).all()


def insert_graph_rows(db: DbSession, table: type[SQLModel], rows: list[dict[str, Any]]) -> None:
    """Insert rows, if there are any."""
    if rows:
        db.connection().execute(insert(table), rows)


def _make_graph_session_path_row(row: SessionRow, taken: GraphSessionTrace, version: int) -> dict[str, Any]:
    entered = (0, *taken.entered_ms)
    gaps = [later - earlier for earlier, later in pairwise(entered)]
    return {
        "session_id": row.id,
        "version": version,
        "removed_version": None,
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "workflow": row.workflow,
        "trace_key": taken.trace_key,
        "outcome": row.outcome or "abandoned",
        "duration_ms": row.duration_ms,
        "started_at": row.started_at or row.created_at,
        "sealed_at": row.sealed_at,
        "actor_kind": row.actor_kind,
        "seal_seq": row.seal_seq or 0,
        # An event may lie behind the end of a session whose client's clock ran fast.
        "step_ms": [*gaps, max(0, row.duration_ms - entered[-1])],
    }


def _change_trace_counts(db: DbSession, scope: GraphScope, counts: Mapping[int, int]) -> None:
    statement = (
        update(GraphTraceRow)
        .where(*in_scope(GraphTraceRow, scope), col(GraphTraceRow.trace_key) == bindparam("key"))
        .values(n=col(GraphTraceRow.n) + bindparam("change"))
    )
    moved = [{"key": key, "change": change} for key, change in sorted(counts.items())]
    if moved:
        db.connection().execute(statement, moved)


def _read_current_graph_path(db: DbSession, session_id: str) -> Any:
    """Return trace, outcome and their versions of a session in its graph; None if it is not there."""
    row = SessionPathRow
    columns = select(row.version, row.trace_key, row.outcome, row.outcome_version)
    return db.exec(columns.where(*_match_current_graph_path(session_id))).one_or_none()


def _update_current_graph_path(db: DbSession, session_id: str, values: Mapping[str, Any]) -> None:
    """Change the row of a session in its graph, without its times, of which there may be thousands."""
    statement = update(SessionPathRow).where(*_match_current_graph_path(session_id))
    db.connection().execute(statement.values(**values))


def _match_current_graph_path(session_id: str) -> Iterator[Any]:
    yield col(SessionPathRow.session_id) == session_id
    yield col(SessionPathRow.removed_version).is_(None)


def graph_table_columns(table: type[SQLModel]) -> list[Any]:
    """Return all columns but those that identify the graph."""
    keys = ("workspace_id", "mode", "workflow")
    return [getattr(table, name) for name in table.model_fields if name not in keys]


def _get_number(row: Any) -> int:
    number: int = row.number
    return number


def pack_numbers(numbers: Iterable[int]) -> bytes:
    """Pack numbers as little-endian int64."""
    return np.fromiter(numbers, dtype="<i8").tobytes()


def unpack_numbers(data: bytes) -> tuple[int, ...]:
    """Return the numbers of a packed column (little-endian int64)."""
    return tuple(np.frombuffer(data, dtype="<i8").tolist())


def node_of_row(row: Any) -> Node:
    """Return the node of a row of `graph_nodes`."""
    return Node(
        number=row.number,
        node_id=row.node_id,
        label=row.label,
        kind=row.kind,
        micro_key=row.micro_key,
        act=row.act,
        screen=row.screen,
        # An earlier release kept more of a large screen.
        features=select_compared_features(unpack_numbers(row.features)),
        merged_into=row.merged_into,
    )


def node_values(node: Node) -> dict[str, Any]:
    """Return the columns of a node."""
    return {
        "number": node.number,
        "node_id": node.node_id,
        "label": node.label,
        "kind": node.kind,
        "micro_key": node.micro_key,
        "act": node.act,
        "screen": node.screen,
        "features": pack_numbers(node.features),
        "merged_into": node.merged_into,
    }


def micro_state_of(row: Any) -> MicroState:
    """Return the micro-state of a row of `graph_micro_states`."""
    features = None if row.features is None else unpack_numbers(row.features)
    return MicroState(row.micro_key, row.node, features)


def micro_state_values(state: MicroState) -> dict[str, Any]:
    """Return the columns of a micro-state."""
    features = None if state.features is None else pack_numbers(state.features)
    return {"micro_key": state.micro_key, "node": state.node, "features": features}


def make_graph_trace_values(trace: StateTrace) -> dict[str, Any]:
    """Return the columns of a trace, but for its count."""
    return {
        "trace_key": trace.trace_key,
        "steps": pack_numbers(trace.steps),
        "variant_key": trace.variant_key,
    }


def variant_values(variant: Variant) -> dict[str, Any]:
    """Return the columns of a variant."""
    return {"variant_key": variant.variant_key, "nodes": variant.nodes, "path": variant.path}


def path_of_row(row: Any) -> Path:
    """Return the path of a row of `graph_paths`."""
    return Path(row.number, row.path_id, row.leader, tuple(row.nodes), row.merged_into)


def path_values(path: Path) -> dict[str, Any]:
    """Return the columns of a path."""
    return {
        "number": path.number,
        "path_id": path.path_id,
        "leader": path.leader,
        "nodes": path.nodes,
        "merged_into": path.merged_into,
    }
