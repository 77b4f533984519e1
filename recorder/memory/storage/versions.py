"""Versions of a graph: head, changes since a version, pauses; conditions that select one graph.

Contract §4.
"""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, insert, select, update

from recorder import clock
from recorder.memory.graph.communities import GROUPING, PATH_COSINE
from recorder.memory.graph.exemplars import SCREEN_JACCARD
from recorder.memory.graph.features import PRUNE_SESSIONS, PRUNE_SHARE
from recorder.memory.steps.session_steps import ALGO_VERSION
from recorder.models.memory import GraphPauseRow, GraphVersionRow, SessionPathRow, VersionKind
from recorder.models.operations import SealBatchRow, SealCounterRow
from recorder.models.workflow import WorkflowRow
from recorder.storage.conditions import in_tenant
from recorder.storage.deployment import compute_sealing_slot, read_sealing_slot_count
from recorder.tenant import GraphScope

_PARAMS = {
    "algo_version": ALGO_VERSION,
    "screen_jaccard": SCREEN_JACCARD,
    "grouping": GROUPING,
    "path_cosine": PATH_COSINE,
    "prune_share": PRUNE_SHARE,
    "prune_sessions": PRUNE_SESSIONS,
}


@dataclass(frozen=True, slots=True)
class GraphHead:
    """The newest version of a graph (0 before its first) and what its workflow says."""

    version: int
    writer: str
    up_to_seal_seq: int
    memory_graph: bool


def read_newest_version(db: DbSession, scope: GraphScope, *, lock: bool = False) -> GraphHead | None:
    """Return the head of a graph; None for an unknown workflow.

    Args:
        db: the transaction.
        scope: the graph.
        lock: keep other writers of this graph out until the transaction ends.
    """
    workflow = select(WorkflowRow.memory_graph).where(*in_scope(WorkflowRow, scope))
    is_on = db.exec(workflow.with_for_update() if lock else workflow).one_or_none()
    if is_on is None:
        return None
    newest = (
        select(GraphVersionRow)
        .where(*in_scope(GraphVersionRow, scope))
        .order_by(col(GraphVersionRow.version).desc())
        .limit(1)
    )
    row = db.exec(newest).one_or_none()
    if row is None:
        return GraphHead(0, "", 0, is_on)
    return GraphHead(row.version, row.writer, row.up_to_seal_seq, is_on)


def add_graph_version(
    db: DbSession,
    scope: GraphScope,
    head: GraphHead,
    kind: VersionKind,
    *,
    writer: str = "",
    seal_seq: int = 0,
    params: Mapping[str, Any] | None = None,
) -> int:
    """Begin the version after `head`, which must have been read with `lock` in this transaction.

    Args:
        db: the transaction.
        scope: the graph.
        head: the present head, read with its lock.
        kind: kind of the change.
        writer: name of this one change, by which a cached graph is known again.
        seal_seq: the highest of its sessions.
        params: what else the version was made with.
    """
    values = {
        **scope_columns(scope),
        "version": head.version + 1,
        "parent": head.version,
        "kind": kind,
        "writer": writer,
        "params": {**_PARAMS, **(params or {})},
        "up_to_seal_seq": max(seal_seq, head.up_to_seal_seq),
        "created_at": clock.now(),
    }
    db.connection().execute(insert(GraphVersionRow), [values])
    return head.version + 1


def writer_of_version(db: DbSession, scope: GraphScope, version: int) -> str | None:
    """Return the name of the change that made a version; None if there is no such version."""
    return db.exec(
        select(GraphVersionRow.writer).where(
            *in_scope(GraphVersionRow, scope), GraphVersionRow.version == version
        )
    ).one_or_none()


def was_rebuilt_since_graph_version(db: DbSession, scope: GraphScope, since_version: int) -> bool:
    """Return whether rows of a graph changed after a version: by a rebuild, a purge, or new names."""
    row = GraphVersionRow
    rebuilt = (col(row.version) > since_version, col(row.kind).in_(("rebuild", "purge", "names")))
    return db.exec(select(row.version).where(*in_scope(row, scope), *rebuilt).limit(1)).first() is not None


def have_sessions_left_since_graph_version(db: DbSession, scope: GraphScope, since_version: int) -> bool:
    """Return whether sessions were deleted or purged from a graph after a version."""
    row = GraphVersionRow
    left = (col(row.version) > since_version, col(row.kind).in_(("removal", "purge")))
    return db.exec(select(row.version).where(*in_scope(row, scope), *left).limit(1)).first() is not None


def has_outcome_changed_twice(db: DbSession, scope: GraphScope, since_version: int, version: int) -> bool:
    """Return whether a session of a version changed its outcome more than once, up to a later version.

    A row keeps one earlier outcome, so that of the version is then lost. Changes that an earlier release
    stored do not show whose they are, and count as second ones.
    """
    row = GraphVersionRow
    added, earlier = (col(row.params)[name].as_integer() for name in ("added_version", "earlier_version"))
    changed = (col(row.version) > since_version, col(row.version) <= version, row.kind == "outcome")
    is_second = (
        func.coalesce(added, 0) <= since_version,
        func.coalesce(earlier, since_version + 1) > since_version,
    )
    second = select(row.version).where(*in_scope(row, scope), *changed, *is_second)
    return db.exec(second.limit(1)).first() is not None


def count_trace_changes(db: DbSession, scope: GraphScope, since_version: int) -> dict[int, int] | None:
    """Return the changes of trace counts after a version, if only counters moved.

    Returns:
        Changes by trace key; None if structure was added or rebuilt, or rows were purged, in between.
    """
    kinds = select(GraphVersionRow.kind).where(
        *in_scope(GraphVersionRow, scope), col(GraphVersionRow.version) > since_version
    )
    if any(kind in ("sessions", "rebuild", "purge", "names") for kind in db.exec(kinds)):
        return None
    changes: dict[int, int] = defaultdict(int)
    for bound, sign in ((SessionPathRow.version, 1), (SessionPathRow.removed_version, -1)):
        counted = (
            select(SessionPathRow.trace_key, func.count())
            .where(*in_scope(SessionPathRow, scope), col(bound) > since_version)
            .group_by(col(SessionPathRow.trace_key))
        )
        for key, count in db.exec(counted):
            changes[key] += sign * count
    return changes


def scope_columns(scope: GraphScope) -> dict[str, Any]:
    """Return the columns that every row of a graph begins with."""
    return {"workspace_id": scope.workspace_id, "mode": scope.mode, "workflow": scope.workflow}


def in_scope(table: Any, scope: GraphScope) -> Iterator[Any]:
    """Return the conditions that choose the rows of one graph."""
    yield from in_tenant(table, scope.tenant)
    yield col(table.workflow) == scope.workflow


def set_memory_graph(db: DbSession, scope: GraphScope, is_on: bool) -> None:
    """Pause or resume the graph of a workflow; a workflow that is so already stays as it is.

    The range of seal numbers is kept, since a rebuild must leave the same sessions out.
    """
    head = read_newest_version(db, scope, lock=True)
    if head is None or head.memory_graph == is_on:
        return
    last_seq = _read_last_sealed_graph_number(db, scope)
    if is_on:
        _end_pause(db, scope, last_seq)
    else:
        db.add(GraphPauseRow(**scope_columns(scope), from_seq=last_seq + 1, to_seq=None))
    db.execute(update(WorkflowRow).where(*in_scope(WorkflowRow, scope)).values(memory_graph=is_on))


def _read_last_sealed_graph_number(db: DbSession, scope: GraphScope) -> int:
    """Return the last sealed number, read under the lock: later sessions heed the pause that is set now.

    A batch takes its numbers before it is sealed, so those of an open one have yet to come.
    """
    slot = compute_sealing_slot(scope.workflow, read_sealing_slot_count(db))
    counter = db.get(SealCounterRow, (scope.workspace_id, scope.mode, slot), populate_existing=True)
    last_seq = 0 if counter is None else counter.seal_seq
    batch = SealBatchRow
    is_open = (
        *in_tenant(batch, scope.tenant),
        batch.slot == slot,
        batch.state != "done",
    )
    firsts = db.exec(select(batch.first_seal_seq).where(*is_open))
    return min([last_seq, *(first - 1 for first in firsts)])


def _end_pause(db: DbSession, scope: GraphScope, last_seq: int) -> None:
    """End the open pause of a graph; delete it if nothing was sealed while it lasted."""
    is_open = (*in_scope(GraphPauseRow, scope), col(GraphPauseRow.to_seq).is_(None))
    pause = db.exec(select(GraphPauseRow).where(*is_open)).one_or_none()
    if pause is None:
        return
    if pause.from_seq > last_seq:
        db.delete(pause)  # nothing was sealed during the pause
        return
    pause.to_seq = last_seq
    db.add(pause)


Kept = TypeVar("Kept")


class PerDatabase(Generic[Kept]):
    """One object for each database that is in use."""

    def __init__(self, make: Callable[[], Kept]) -> None:
        self._make = make
        self._kept: weakref.WeakKeyDictionary[Any, Kept] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, db: DbSession) -> Kept:
        """Return the object of the database of this transaction."""
        pool = db.connection().engine.pool
        with self._lock:
            value = self._kept.get(pool)
            if value is None:
                value = self._kept[pool] = self._make()
            return value


def is_writing(db: DbSession) -> bool:
    """Return whether this transaction may see rows that are then rolled back, which no cache may keep."""
    return bool(db.connection().get_execution_options().get("recorder_write", False))
