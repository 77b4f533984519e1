"""The indexed sessions of a graph as columns in memory, kept from query to query. Spec §4.2 (memory paths).

A query reads one number from SQL (the graph's version) and the rows that came since; the rest is numpy.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock
from recorder.memory.graph.capacity import UNKEPT_TRACE
from recorder.memory.graph.inverted_index import Ints
from recorder.memory.queries.structure import Structure, make_empty_column, read_structure
from recorder.memory.storage.graph_store import read_graph_rows
from recorder.memory.storage.versions import PerDatabase, is_writing, was_rebuilt_since_graph_version
from recorder.models.memory import SessionPathRow
from recorder.tenant import GraphScope

OUTCOMES = ("success", "error", "abandoned")
#: Empty for sessions without an actor.
ACTOR_KINDS = ("", "human", "model", "script")
#: `removed` of a session that is in the graph.
NEVER = int(np.iinfo(np.int64).max)
#: Row of a session that is not in the graph, and number of a trace that is not.
NOWHERE = -1
#: Bytes of all graphs together that stay in memory: a session with twenty steps takes about 300.
_MAX_BYTES = 2**30

#: Estimated bytes of a node, a path and a numbered key: objects of Python.
_NODE_BYTES, _PATH_BYTES, _KEY_BYTES = 800, 300, 120

Made = TypeVar("Made")

Strings = npt.NDArray[np.bytes_]
Mask = npt.NDArray[np.bool_]


def _make_empty_id_column() -> Strings:
    return np.zeros(0, dtype="S30")


@dataclass(slots=True)
class KeptValues:
    """Values by name that are kept over the versions of a graph until a rebuild; all versions share them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class GraphColumns(Structure):
    """One graph at one version: a row for every session that is or was in it."""

    version: int = 0
    session_id: Strings = field(default_factory=_make_empty_id_column)
    added: Ints = field(default_factory=make_empty_column)
    removed: Ints = field(default_factory=make_empty_column)
    trace: Ints = field(default_factory=make_empty_column)
    #: Places in OUTCOMES and ACTOR_KINDS.
    outcome: Ints = field(default_factory=make_empty_column)
    actor: Ints = field(default_factory=make_empty_column)
    duration_ms: Ints = field(default_factory=make_empty_column)
    started_ms: Ints = field(default_factory=make_empty_column)
    sealed_ms: Ints = field(default_factory=make_empty_column)
    seal_seq: Ints = field(default_factory=make_empty_column)
    #: Times of row r are `step_ms[time_start[r]:time_start[r + 1]]`: to the first step of its trace, between
    #: steps, and from the last to the end.
    time_start: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    step_ms: Ints = field(default_factory=make_empty_column)
    #: The rows by (path, duration): medians of any selection are then a matter of counting.
    order: Ints = field(default_factory=make_empty_column)
    #: What queries made of this version, by name; kept as long as it is.
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    lasting: KeptValues = field(default_factory=KeptValues, repr=False, compare=False)
    _deriving: dict[str, threading.Lock] = field(default_factory=dict, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Size of the arrays, and the estimated size of the objects beside them."""
        members = (getattr(self, member.name) for member in fields(self))
        arrays = sum(member.nbytes for member in members if isinstance(member, np.ndarray))
        listed = _NODE_BYTES * len(self.nodes) + sum(_PATH_BYTES + 8 * len(path.nodes) for path in self.paths)
        return arrays + listed + _KEY_BYTES * (len(self.variant_number) + len(self.trace_number))

    @property
    def variant(self) -> Ints:
        """The variant of each row."""
        return self.trace_variant[self.trace]

    @property
    def path(self) -> Ints:
        """The path number of each row."""
        return self.variant_path[self.variant]

    @property
    def is_unkept(self) -> Mask:
        """Rows of sessions whose way the graph had no room for."""
        unkept: Mask = self.trace == self.trace_number.get(UNKEPT_TRACE, NOWHERE)
        return unkept

    def current(self) -> Mask:
        """Return the rows of sessions that are in the graph."""
        return self.removed > self.version

    def derive(self, name: str, make: Callable[["GraphColumns"], Made]) -> Made:
        """Return a value that is made of this version once; concurrent callers wait for the first one."""
        if name not in self.derived:
            # `setdefault` is one step of the interpreter, so all get the same lock.
            with self._deriving.setdefault(name, threading.Lock()):
                if name not in self.derived:
                    self.derived[name] = make(self)
        made: Made = self.derived[name]
        return made

    def updated(self, db: DbSession, scope: GraphScope, version: int) -> "GraphColumns":
        """Return the columns at a later version; these stay as they are, for readers that still use them."""
        if version == self.version:
            return self
        if self.version and was_rebuilt_since_graph_version(db, scope, self.version):
            return GraphColumns().updated(db, scope, version)
        row = SessionPathRow
        structure = read_structure(db, scope, self, self.version)
        rows = _read_column_rows(db, scope, col(row.version) > self.version, col(row.version) <= version)
        fresh = _make_columns(rows, structure["trace_number"])
        grown = GraphColumns(
            version=version,
            lasting=self.lasting,
            time_start=np.concatenate([self.time_start, self.time_start[-1] + fresh.pop("time_start")]),
            **structure,
            **{name: _append_rows(getattr(self, name), column) for name, column in fresh.items()},
        )
        if self.version:
            was_added = col(row.version) <= self.version
            grown._remove(_read_column_rows(db, scope, was_added, col(row.removed_version) > self.version))
        grown.order = np.lexsort((grown.duration_ms, grown.path))
        return grown

    def _remove(self, ended: Sequence[Any]) -> None:
        if not ended:
            return
        end_of = {(row.session_id.encode(), row.version): row.removed_version for row in ended}
        ids = np.array(sorted({session_id for session_id, _ in end_of}), dtype=self.session_id.dtype)
        # All rows are sought among the few that ended: the other way round all would have to be sorted.
        places = np.minimum(np.searchsorted(ids, self.session_id), len(ids) - 1)
        rows = np.flatnonzero(ids[places] == self.session_id)
        keys = zip(self.session_id[rows].tolist(), self.added[rows].tolist(), strict=True)
        ends = [end_of.get(key, NEVER) for key in keys]
        # A row that ended earlier, for an outcome that changed again, keeps its end.
        self.removed[rows] = np.minimum(self.removed[rows], np.array(ends, dtype=np.int64))


@dataclass(slots=True, weakref_slot=True)
class _Build:
    """A graph that is being read; it is kept as long as a thread reads it or waits for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: GraphColumns = field(default_factory=GraphColumns)


class ColumnsCache:
    """The columns of the graphs that were asked for last, up to a number of bytes."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._columns: LRUCache[GraphScope, GraphColumns] = LRUCache(max_bytes, attrgetter("nbytes"))
        self._builds: weakref.WeakValueDictionary[GraphScope, _Build] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def read(self, db: DbSession, scope: GraphScope, version: int, *, keep: bool = True) -> GraphColumns:
        """Return the columns of a graph at its newest version, as read in this transaction.

        Only one thread at a time reads a graph; those that wait get what it read, also if that is too large
        to be kept.

        Args:
            db: the transaction.
            scope: the graph.
            version: its newest version.
            keep: whether others may get them too.
        """
        cached = self._kept(scope)
        if cached.version == version:
            return cached
        if cached.version > version:  # another thread's transaction began later
            return GraphColumns().updated(db, scope, version)
        if not keep:
            columns = cached.updated(db, scope, version)
            columns.lasting = KeptValues()
            return columns
        build = self._build(scope)
        with build.lock:
            cached = max(self._kept(scope), build.made, key=lambda columns: columns.version)
            if cached.version > version:
                cached = GraphColumns()
            columns = cached.updated(db, scope, version)
            if columns.version > build.made.version:
                build.made = columns
            self._keep(scope, columns)
        return columns

    def _kept(self, scope: GraphScope) -> GraphColumns:
        with self._lock:
            return self._columns.get(scope, GraphColumns())

    def _build(self, scope: GraphScope) -> _Build:
        with self._lock:
            build = self._builds.get(scope)
            if build is None:
                build = self._builds[scope] = _Build()
            return build

    def _keep(self, scope: GraphScope, columns: GraphColumns) -> None:
        with self._lock:
            held = self._columns.get(scope)
            if held is not None and held.version >= columns.version:
                return
            self._columns.pop(scope, None)
            with suppress(ValueError):  # it alone would push all others out, and still be too much
                self._columns[scope] = columns


_caches = PerDatabase(ColumnsCache)


def read_graph_columns(db: DbSession, scope: GraphScope, version: int) -> GraphColumns:
    """Return the columns of a graph at its newest version, from the cache of this process and database."""
    return _caches.of(db).read(db, scope, version, keep=not is_writing(db))


def _read_column_rows(db: DbSession, scope: GraphScope, *conditions: Any) -> Sequence[Any]:
    row = SessionPathRow
    columns = (row.session_id, row.version, row.removed_version, row.trace_key, row.outcome, row.actor_kind)
    numbers = (row.duration_ms, row.started_at, row.sealed_at, row.seal_seq, row.step_ms)
    return read_graph_rows(db, scope, *columns, *numbers, where=conditions)


def _make_columns(rows: Sequence[Any], trace_number: dict[int, int]) -> dict[str, Any]:
    values = list(zip(*rows, strict=True)) or [()] * 11
    sessions, versions, removed, traces, outcomes, actors, durations, started, sealed, seqs, times = values
    return {
        "session_id": np.array([session.encode() for session in sessions], dtype="S30"),
        "added": _make_column(versions),
        "removed": _make_column([NEVER if end is None else end for end in removed]),
        "trace": _make_column([trace_number[key] for key in traces]),
        "outcome": _make_column([OUTCOMES.index(outcome) for outcome in outcomes]),
        "actor": _make_column([ACTOR_KINDS.index(kind or "") for kind in actors]),
        "duration_ms": _make_column(durations),
        "started_ms": _make_column([clock.to_ms(moment) for moment in started]),
        "sealed_ms": _make_column([clock.to_ms(moment) for moment in sealed]),
        "seal_seq": _make_column(seqs),
        "time_start": np.cumsum(_make_column([len(session_times) for session_times in times])),
        "step_ms": np.fromiter(chain.from_iterable(times), dtype=np.int64),
    }


def _append_rows(rows: Any, new_rows: Any) -> Any:
    return np.concatenate([rows, new_rows])


def _make_column(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SessionColumnLookup:
    """The sessions that are in a graph, by id."""

    #: Ascending, each with its row.
    ids: Strings
    rows: Ints

    def find(self, session_ids: Sequence[str]) -> Ints:
        """Return the row of each session; NOWHERE for one that is not in the graph."""
        if not len(self.ids):
            return np.full(len(session_ids), NOWHERE, dtype=np.int64)
        encoded_ids = np.array([session_id.encode() for session_id in session_ids], dtype=np.bytes_)
        positions = np.minimum(np.searchsorted(self.ids, encoded_ids), len(self.ids) - 1)
        rows: Ints = np.where(self.ids[positions] == encoded_ids, self.rows[positions], NOWHERE)
        return rows


def make_session_lookup(columns: GraphColumns) -> SessionColumnLookup:
    """Return the look-up of a graph; made once for each version."""
    return columns.derive("lookup", _make_lookup)


def _make_lookup(columns: GraphColumns) -> SessionColumnLookup:
    rows = np.flatnonzero(columns.current())
    rows = rows[np.argsort(columns.session_id[rows])]
    return SessionColumnLookup(columns.session_id[rows], rows)
