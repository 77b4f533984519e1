"""The indexed sessions of a graph as columns in memory, kept from query to query. Spec §4.2 (memory paths).

A query reads one number from SQL (the graph's version) and the rows that came since; the rest is numpy.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.memory.nodes import GraphScope
from recorder.memory.postings import Ints
from recorder.memory.versions import in_scope
from recorder.models.memory import GraphNodeRow, GraphPathRow, SessionPathRow

OUTCOMES = ("success", "error", "abandoned")
_NEVER = np.iinfo(np.int64).max
#: Rows of all graphs together that stay in memory: about 60 bytes each.
_MAX_ROWS = 2_000_000


def _no_rows() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class GraphColumns:
    """One graph at one version: a row for every session that is or was on a path."""

    version: int = 0
    #: By path number: id and node numbers. By node number: id and label.
    paths: list[tuple[str, list[int]]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    session: Ints = field(default_factory=_no_rows)
    added: Ints = field(default_factory=_no_rows)
    removed: Ints = field(default_factory=_no_rows)
    path: Ints = field(default_factory=_no_rows)
    outcome: Ints = field(default_factory=_no_rows)
    duration_ms: Ints = field(default_factory=_no_rows)
    started_ms: Ints = field(default_factory=_no_rows)
    #: The rows by (path, duration): medians of any selection are then a matter of counting.
    order: Ints = field(default_factory=_no_rows)

    def updated(self, db: DbSession, scope: GraphScope, version: int) -> "GraphColumns":
        """The columns at a later version; what is here stays as it is, for readers that still use it."""
        if version == self.version:
            return self
        paths = self.paths + _new_paths(db, scope, len(self.paths))
        row = SessionPathRow
        added = _rows(db, scope, col(row.version) > self.version, col(row.version) <= version)
        fresh = _as_columns(added, {path_id: number for number, (path_id, _) in enumerate(paths)})
        grown = GraphColumns(
            version=version,
            paths=paths,
            nodes=self.nodes + _new_nodes(db, scope, len(self.nodes)),
            **{name: np.concatenate([getattr(self, name), column]) for name, column in fresh.items()},
        )
        if self.version:
            was_added = col(row.version) <= self.version
            grown._remove(_rows(db, scope, was_added, col(row.removed_version) > self.version))
        grown.order = np.lexsort((grown.duration_ms, grown.path))
        return grown

    def _remove(self, ended: Sequence[Any]) -> None:
        for row in ended:
            is_row = (self.session == _session_key(row.session_id)) & (self.added == row.version)
            self.removed[is_row] = row.removed_version


class ColumnsCache:
    """The columns of the graphs that were asked for last, up to a number of rows."""

    def __init__(self, max_rows: int = _MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._columns: OrderedDict[GraphScope, GraphColumns] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, db: DbSession, scope: GraphScope, version: int) -> GraphColumns:
        """The columns of a graph at its newest version, as read in this transaction."""
        with self._lock:
            kept = self._columns.get(scope, GraphColumns())
        if kept.version > version:  # another thread's transaction began later
            kept = GraphColumns()
        columns = kept.updated(db, scope, version)
        self._keep(scope, columns)
        return columns

    def _keep(self, scope: GraphScope, columns: GraphColumns) -> None:
        with self._lock:
            held = self._columns.get(scope)
            if held is None or held.version < columns.version:
                self._columns[scope] = columns
            self._columns.move_to_end(scope)
            rows = sum(len(held.path) for held in self._columns.values())
            while rows > self._max_rows and len(self._columns) > 1:
                rows -= len(self._columns.popitem(last=False)[1].path)


_caches: "weakref.WeakKeyDictionary[Any, ColumnsCache]" = weakref.WeakKeyDictionary()
_caches_lock = threading.Lock()


def read_columns(db: DbSession, scope: GraphScope, version: int) -> GraphColumns:
    """The columns of a graph at its newest version, from the cache of this process and database."""
    connection = db.connection()
    if connection.get_execution_options().get("recorder_write"):
        # A writer may see what is then rolled back: that must not stay.
        return GraphColumns().updated(db, scope, version)
    with _caches_lock:
        cache = _caches.setdefault(connection.engine.pool, ColumnsCache())
    return cache.read(db, scope, version)


def _rows(db: DbSession, scope: GraphScope, *conditions: Any) -> Sequence[Any]:
    row = SessionPathRow
    chosen = [row.session_id, row.version, row.removed_version, row.path_id, row.outcome]
    columns: list[Any] = [*chosen, row.duration_ms, row.started_at]
    return db.connection().execute(select(*columns).where(*in_scope(row, scope), *conditions)).all()


def _as_columns(rows: Sequence[Any], path_numbers: dict[str, int]) -> dict[str, Ints]:
    values = list(zip(*rows, strict=True)) or [()] * 7
    sessions, versions, removed, paths, outcomes, durations, started = values
    return {
        "session": _column([_session_key(session) for session in sessions]),
        "added": _column(versions),
        "removed": _column([_NEVER if end is None else end for end in removed]),
        "path": _column([path_numbers[path] for path in paths]),
        "outcome": _column([OUTCOMES.index(outcome) for outcome in outcomes]),
        "duration_ms": _column(durations),
        "started_ms": _column([clock.to_ms(moment) for moment in started]),
    }


def _new_paths(db: DbSession, scope: GraphScope, known: int) -> list[tuple[str, list[int]]]:
    statement = (
        select(GraphPathRow.path_id, GraphPathRow.nodes)
        .where(*in_scope(GraphPathRow, scope), col(GraphPathRow.number) >= known)
        .order_by(col(GraphPathRow.number))
    )
    return [(path_id, list(nodes)) for path_id, nodes in db.exec(statement)]


def _new_nodes(db: DbSession, scope: GraphScope, known: int) -> list[tuple[str, str]]:
    statement = (
        select(GraphNodeRow.node_id, GraphNodeRow.label)
        .where(*in_scope(GraphNodeRow, scope), col(GraphNodeRow.number) >= known)
        .order_by(col(GraphNodeRow.number))
    )
    return [(node_id, label) for node_id, label in db.exec(statement)]


def _session_key(session_id: str) -> int:
    return xxhash.xxh64_intdigest(session_id.encode()) >> 1


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
