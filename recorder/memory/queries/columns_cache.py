"""Cache of the columns of graphs, kept from query to query. Spec §4.2 (memory paths).

A query reads one number from SQL (the graph's version) and the rows that came since; the rest is numpy.
"""

import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter

from cachetools import LRUCache
from sqlmodel import Session as DbSession

from recorder.memory.queries.columns import GraphColumns, KeptValues
from recorder.memory.storage.versions import PerDatabase, is_writing
from recorder.tenant import GraphScope

#: Bytes of all graphs together that stay in memory: a session with twenty steps takes about 300.
_MAX_BYTES = 2**30


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
        cached = self._get_kept_columns(scope)
        if cached.version == version:
            return cached
        if cached.version > version:  # another thread's transaction began later
            return GraphColumns().updated(db, scope, version)
        if not keep:
            columns = cached.updated(db, scope, version)
            columns.lasting = KeptValues()
            return columns
        build = self._find_or_begin_build(scope)
        with build.lock:
            cached = max(self._get_kept_columns(scope), build.made, key=lambda columns: columns.version)
            if cached.version > version:
                cached = GraphColumns()
            columns = cached.updated(db, scope, version)
            if columns.version > build.made.version:
                build.made = columns
            self._keep_newest_columns(scope, columns)
        return columns

    def _get_kept_columns(self, scope: GraphScope) -> GraphColumns:
        with self._lock:
            return self._columns.get(scope, GraphColumns())

    def _find_or_begin_build(self, scope: GraphScope) -> _Build:
        with self._lock:
            build = self._builds.get(scope)
            if build is None:
                build = self._builds[scope] = _Build()
            return build

    def _keep_newest_columns(self, scope: GraphScope, columns: GraphColumns) -> None:
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
