"""The indexed sessions of a graph as columns in memory, brought to later versions. Spec §4.2."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.memory.graph.arrays import Bools, Ints
from recorder.memory.graph.capacity import UNKEPT_TRACE
from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.queries.structure import GraphStructure, make_empty_column, read_structure
from recorder.memory.storage.graph_store import read_graph_rows
from recorder.memory.storage.versions import in_scope, was_rebuilt_since_graph_version
from recorder.models.memory import SessionPathRow
from recorder.tenant import GraphScope

#: Empty for sessions without an actor.
ACTOR_KINDS = ("", "human", "model", "script")
#: `removed` of a session that is in the graph.
NEVER = int(np.iinfo(np.int64).max)
#: Row of a session that is not in the graph, and number of a trace that is not.
NOWHERE = -1
#: Beginning of the ids that a purge gives to rows that still count.
_ANONYMOUS_ID = b"ano_"
#: Columns of a session that are read, its times last, and rows that are read at once.
_READ = (
    "session_id",
    "version",
    "removed_version",
    "trace_key",
    "actor_kind",
    "duration_ms",
    "started_at",
    "sealed_at",
    "seal_seq",
    "outcome",
    "outcome_version",
    "earlier_outcome",
    "step_ms",
)
_ROWS_AT_ONCE = 500

#: Estimated bytes of a node, a path and a numbered key: objects of Python.
_NODE_BYTES, _PATH_BYTES, _KEY_BYTES = 800, 300, 120

Made = TypeVar("Made")

Strings = npt.NDArray[np.bytes_]


def _make_empty_id_column() -> Strings:
    return np.zeros(0, dtype="S30")


@dataclass(slots=True)
class KeptValues:
    """Values by name that are kept over the versions of a graph until a rebuild; all versions share them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class GraphColumns(GraphStructure):
    """One graph at one version: a row for every session that is or was in it."""

    version: int = 0
    session_id: Strings = field(default_factory=_make_empty_id_column)
    added: Ints = field(default_factory=make_empty_column)
    removed: Ints = field(default_factory=make_empty_column)
    trace: Ints = field(default_factory=make_empty_column)
    #: Indexes in OUTCOMES and ACTOR_KINDS.
    outcome: Ints = field(default_factory=make_empty_column)
    #: The version that gave a row its outcome, and the outcome before; 0 and the outcome where none did.
    outcome_since: Ints = field(default_factory=make_empty_column)
    earlier_outcome: Ints = field(default_factory=make_empty_column)
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
    def is_unkept(self) -> Bools:
        """Rows of sessions whose way the graph had no room for."""
        unkept: Bools = self.trace == self.trace_number.get(UNKEPT_TRACE, NOWHERE)
        return unkept

    @property
    def is_anonymous(self) -> Bools:
        """Rows of purged sessions: they count, but there is no session to list."""
        return self.derive("anonymous rows", _find_anonymous_rows)

    def current(self) -> Bools:
        """Return for each row whether its session is in the graph now."""
        return self.removed > self.version

    def derive(self, name: str, make: Callable[["GraphColumns"], Made]) -> Made:
        """Return a value that is computed once for this version; concurrent callers wait for it."""
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
        is_fresh = (col(row.version) > self.version, col(row.version) <= version)
        fresh = _read_columns(db, scope, structure["trace_number"], is_fresh)
        grown = GraphColumns(
            version=version,
            lasting=self.lasting,
            time_start=np.concatenate([self.time_start, self.time_start[-1] + fresh.pop("time_start")]),
            **structure,
            **{name: _append_rows(getattr(self, name), column) for name, column in fresh.items()},
        )
        if self.version:
            grown._apply_changes(db, scope, self.version)
        grown.order = np.lexsort((grown.duration_ms, grown.path))
        return grown

    def _apply_changes(self, db: DbSession, scope: GraphScope, since: int) -> None:
        """Apply the removals and changed outcomes after a version to the rows that were there."""
        row = SessionPathRow
        was_added = col(row.version) <= since
        ended = read_graph_rows(
            db,
            scope,
            row.session_id,
            row.removed_version,
            where=[was_added, col(row.removed_version) > since],
        )
        rows, positions = self._find_rows([session_id for session_id, _ in ended])
        self.removed[rows] = _make_column([version for _, version in ended])[positions]
        turned = read_graph_rows(
            db,
            scope,
            row.session_id,
            row.outcome,
            row.outcome_version,
            row.earlier_outcome,
            where=[was_added, col(row.outcome_version) > since],
        )
        rows, positions = self._find_rows([session_id for session_id, *_ in turned])
        for name, column in _make_outcome_columns([members for _, *members in turned]).items():
            getattr(self, name)[rows] = column[positions]

    def _find_rows(self, session_ids: Sequence[str]) -> tuple[Ints, Ints]:
        """Return the rows of some sessions, and for each the position of its session among them."""
        if not session_ids:
            return make_empty_column(), make_empty_column()
        ids = np.array([session_id.encode() for session_id in session_ids], dtype=self.session_id.dtype)
        order = np.argsort(ids)
        # All rows are sought among the few: the other way round all would have to be sorted.
        positions = np.minimum(np.searchsorted(ids, self.session_id, sorter=order), len(ids) - 1)
        rows = np.flatnonzero(ids[order[positions]] == self.session_id)
        return rows, order[positions[rows]]


def _find_anonymous_rows(columns: GraphColumns) -> Bools:
    """Return for each row whether its session was purged, and has an anonymous id."""
    # Shorter texts, since comparing bytes is far faster than calling `startswith` on each id.
    is_anonymous: Bools = columns.session_id.astype(f"S{len(_ANONYMOUS_ID)}") == _ANONYMOUS_ID
    return is_anonymous


def _read_columns(
    db: DbSession, scope: GraphScope, trace_number: dict[int, int], where: Iterable[Any]
) -> dict[str, Any]:
    """Return the columns of sessions; their times, which may be millions, are packed as they are read."""
    row = SessionPathRow
    rows, times = [], [make_empty_column()]
    statement = select(*(getattr(row, name) for name in _READ)).where(*in_scope(row, scope), *where)
    with closing(db.connection().execute(statement.execution_options(yield_per=_ROWS_AT_ONCE))) as stored:
        for *members, step_ms in stored:
            rows.append(members)
            times.append(_make_column(step_ms))
    values = list(zip(*rows, strict=True)) or [()] * (len(_READ) - 1)
    sessions, versions, removed, traces, actors, durations, started, sealed, seqs, *outcomes = values
    return {
        "session_id": np.array([session.encode() for session in sessions], dtype="S30"),
        "added": _make_column(versions),
        "removed": _make_column([NEVER if end is None else end for end in removed]),
        "trace": _make_column([trace_number[key] for key in traces]),
        "actor": _make_column([ACTOR_KINDS.index(kind or "") for kind in actors]),
        "duration_ms": _make_column(durations),
        "started_ms": _make_column([clock.to_ms(moment) for moment in started]),
        "sealed_ms": _make_column([clock.to_ms(moment) for moment in sealed]),
        "seal_seq": _make_column(seqs),
        **_make_outcome_columns(list(zip(*outcomes, strict=True))),
        "time_start": np.cumsum(_make_column([len(session_times) for session_times in times[1:]])),
        "step_ms": np.concatenate(times),
    }


def _make_outcome_columns(rows: Sequence[Sequence[Any]]) -> dict[str, Ints]:
    """Return the columns of outcomes: of each row the outcome, its version, and the outcome before."""
    return {
        "outcome": _make_column([OUTCOMES.index(outcome) for outcome, _, _ in rows]),
        "outcome_since": _make_column([version or 0 for _, version, _ in rows]),
        "earlier_outcome": _make_column([OUTCOMES.index(earlier or outcome) for outcome, _, earlier in rows]),
    }


def _append_rows(rows: Any, new_rows: Any) -> Any:
    """Return a column of the graph with the rows of a newer version appended."""
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
    return columns.derive("lookup", _index_columns_by_session)


def _index_columns_by_session(columns: GraphColumns) -> SessionColumnLookup:
    rows = np.flatnonzero(columns.current())
    rows = rows[np.argsort(columns.session_id[rows])]
    return SessionColumnLookup(columns.session_id[rows], rows)
