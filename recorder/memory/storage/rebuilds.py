"""Rebuild of a graph, stored: read its rows, call `graph.rebuild`, write the rows that differ.

Spec §4.2; contract §4.

It is computed outside the transaction that writes it. Where sessions were added in between it is computed
again, at last under the lock; sealing then finds a new version and loads the graph again.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel, col, delete, exists, or_, select, update

from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.graph import StateTrace
from recorder.memory.graph.rebuild import RebuildInput, RebuildKind, Rebuilt, rebuild
from recorder.memory.storage.graph_store import (
    graph_table_columns,
    insert_graph_rows,
    make_graph_trace_values,
    micro_state_of,
    micro_state_values,
    node_of_row,
    node_values,
    path_of_row,
    path_values,
    read_graph_rows,
    unpack_numbers,
    variant_values,
)
from recorder.memory.storage.versions import (
    GraphHead,
    add_graph_version,
    count_trace_changes,
    in_scope,
    read_newest_version,
    scope_columns,
)
from recorder.models.memory import (
    GraphMicroStateRow,
    GraphNodeRow,
    GraphPathRow,
    GraphTraceRow,
    GraphVariantRow,
    GraphVersionRow,
)
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant

_TRIES = 4
#: A rebuild that takes longer is never computed under the lock: everybody who writes waits for it.
_MAX_LOCKED_S = 5.0


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Result of a rebuild; `version` is the graph's, new only where something changed."""

    kind: RebuildKind
    version: int
    sessions: int
    nodes_before: int
    nodes: int
    nodes_kept: int
    paths_before: int
    paths: int
    paths_kept: int
    #: Rows that changed.
    changed: int


def rebuild_graph(
    database: Database,
    scope: GraphScope,
    kind: RebuildKind,
    *,
    bounds: GraphBounds = GRAPH_BOUNDS,
    most_locked_s: float = _MAX_LOCKED_S,
) -> RebuildReport | None:
    """Rearrange the nodes and paths of a graph.

    Args:
        database: the deployment's database.
        scope: the graph.
        kind: `anchored` keeps nodes and paths where it can, `fresh` makes them again.
        bounds: how many things are compared with each other.
        most_locked_s: a rebuild that takes longer is never computed under the lock.

    Returns:
        None for an unknown workflow, and for a large graph into which sessions come all the time: that is
        left for a quieter hour.

    Raises:
        Unavailable: if the database does not answer; the graph is as it was.
    """
    took_s = 0.0
    for _ in range(_TRIES):
        began = time.monotonic()
        with database.transaction(write=False) as db:
            head = read_newest_version(db, scope)
            if head is None:
                return None
            recorded = read_rebuild_input(db, scope, bounds)
        rebuilt = rebuild(recorded, kind)
        took_s = time.monotonic() - began
        with database.transaction(write=True) as db:
            now = read_newest_version(db, scope, lock=True)
            if now is not None and count_trace_changes(db, scope, head.version) is not None:
                return _store_rebuilt_graph(db, scope, recorded, rebuilt, now, kind)
    if took_s > most_locked_s:
        return None
    with database.transaction(write=True) as db:
        now = read_newest_version(db, scope, lock=True)
        if now is None:
            return None
        recorded = read_rebuild_input(db, scope, bounds)
        return _store_rebuilt_graph(db, scope, recorded, rebuild(recorded, kind), now, kind)


def list_graph_scopes(db: DbSession) -> list[GraphScope]:
    """Return the graphs of all workflows that have or had sessions, in one order everywhere."""
    row, version = WorkflowRow, GraphVersionRow
    is_graph = exists().where(
        col(version.workspace_id) == col(row.workspace_id),
        col(version.mode) == col(row.mode),
        col(version.workflow) == col(row.workflow),
    )
    named = select(row.workspace_id, row.mode, row.workflow).where(or_(col(row.session_count) > 0, is_graph))
    return [
        GraphScope(Tenant(workspace_id, mode), workflow)
        for workspace_id, mode, workflow in sorted(db.exec(named))
    ]


def read_rebuild_input(db: DbSession, scope: GraphScope, bounds: GraphBounds = GRAPH_BOUNDS) -> RebuildInput:
    """Return the data that a graph is built from."""
    traces = _read_rebuilt_table(db, scope, GraphTraceRow)
    return RebuildInput(
        scope,
        nodes=sorted(
            map(node_of_row, _read_rebuilt_table(db, scope, GraphNodeRow)), key=lambda node: node.number
        ),
        paths=sorted(
            map(path_of_row, _read_rebuilt_table(db, scope, GraphPathRow)), key=lambda path: path.number
        ),
        micro_states=[micro_state_of(row) for row in _read_rebuilt_table(db, scope, GraphMicroStateRow)],
        traces=[StateTrace(row.trace_key, unpack_numbers(row.steps), row.variant_key) for row in traces],
        sessions={row.trace_key: row.n for row in traces},
        variants={
            row.variant_key: (tuple(row.nodes), row.path)
            for row in _read_rebuilt_table(db, scope, GraphVariantRow)
        },
        bounds=bounds,
    )


def _store_rebuilt_graph(
    db: DbSession,
    scope: GraphScope,
    recorded: RebuildInput,
    rebuilt: Rebuilt,
    head: GraphHead,
    kind: RebuildKind,
) -> RebuildReport:
    graph = rebuilt.graph
    nodes = [node_values(node) for node in graph.nodes]
    paths = [path_values(path) for path in graph.paths]
    states = [micro_state_values(state) for state in rebuilt.micro_states]
    traces = [make_graph_trace_values(trace) for trace in rebuilt.traces]
    variants = [variant_values(variant) for variant in graph.path_index.variants.values()]
    stored_variants = [
        {"variant_key": key, "nodes": nodes, "path": path} for key, (nodes, path) in recorded.variants.items()
    ]
    plan = [
        _RebuiltTableRows(GraphNodeRow, "number", nodes, [node_values(node) for node in recorded.nodes]),
        _RebuiltTableRows(GraphPathRow, "number", paths, [path_values(path) for path in recorded.paths]),
        _RebuiltTableRows(
            GraphMicroStateRow,
            "micro_key",
            states,
            [micro_state_values(state) for state in recorded.micro_states],
        ),
        _RebuiltTableRows(
            GraphTraceRow, "trace_key", traces, [make_graph_trace_values(trace) for trace in recorded.traces]
        ),
        _RebuiltTableRows(GraphVariantRow, "variant_key", variants, stored_variants),
    ]
    changed = sum(rows.changed for rows in plan)
    version = head.version
    if changed:
        version = add_graph_version(db, scope, head, "rebuild", params={"rebuild": kind})
        for rows in plan:
            rows.save(db, scope, version)
    return RebuildReport(
        kind=kind,
        version=version,
        sessions=graph.path_index.sessions,
        nodes_before=_count_unmerged_parts(recorded.nodes),
        nodes=_count_unmerged_parts(graph.nodes),
        nodes_kept=_count_unmerged_parts(graph.nodes[: len(recorded.nodes)]),
        paths_before=_count_unmerged_parts(recorded.paths),
        paths=_count_unmerged_parts(graph.paths),
        paths_kept=_count_unmerged_parts(graph.paths[: len(recorded.paths)]),
        changed=changed,
    )


class _RebuiltTableRows:
    """The rows of one table as they should be, against those that are there."""

    def __init__(
        self, table: type[SQLModel], key: str, wanted: list[dict[str, Any]], stored: list[dict[str, Any]]
    ) -> None:
        self._table, self._key = table, key
        was = {values[key]: values for values in stored}
        self._added = [values for values in wanted if values[key] not in was]
        self._moved = [
            values
            for values in wanted
            if values[key] in was and _has_rebuilt_row_changed(values, was[values[key]])
        ]
        self._gone = sorted(was.keys() - {values[key] for values in wanted})

    @property
    def changed(self) -> int:
        """Return the number of rows to write or to remove."""
        return len(self._added) + len(self._moved) + len(self._gone)

    def save(self, db: DbSession, scope: GraphScope, version: int) -> None:
        """Write the rows that are new or changed, and delete those that are gone."""
        made = {**scope_columns(scope), "created_version": version}
        insert_graph_rows(db, self._table, [{**made, **values} for values in self._added])
        self._execute_for_rows(db, scope, update(self._table), self._moved)
        self._execute_for_rows(db, scope, delete(self._table), [{self._key: key} for key in self._gone])

    def _execute_for_rows(
        self, db: DbSession, scope: GraphScope, statement: Any, rows: list[dict[str, Any]]
    ) -> None:
        if not rows:
            return
        key = col(getattr(self._table, self._key)) == bindparam("which")
        statement = statement.where(*in_scope(self._table, scope), key)
        names = [name for name in rows[0] if name != self._key]
        if names:
            statement = statement.values({name: bindparam(f"new_{name}") for name in names})
        db.connection().execute(
            statement,
            [{"which": row[self._key], **{f"new_{name}": row[name] for name in names}} for row in rows],
        )


def _has_rebuilt_row_changed(values: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    return any(values[name] != stored[name] for name in values)


def _read_rebuilt_table(db: DbSession, scope: GraphScope, table: type[SQLModel]) -> Sequence[Any]:
    return read_graph_rows(db, scope, *graph_table_columns(table))


def _count_unmerged_parts(parts: Iterable[Any]) -> int:
    return sum(part.merged_into is None for part in parts)
