"""Indexing of sealed sessions: changes computed before the sealing transaction, written in it. Contract §4.

Sealing holds the only right to add structure, so what `prepare` computes stays right until `commit`; late
tags and deletions may move counters in between, which `commit` catches up on.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cachetools import LRUCache
from sqlmodel import Session as DbSession

from recorder.memory.graph.capacity import DEFAULT_CAPACITY, GraphCapacity
from recorder.memory.graph.graph import Graph, GraphChange
from recorder.memory.graph.node_labels import compute_actor_key
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.graph_store import (
    find_known_sessions,
    graph_scope_of,
    load_graph,
    read_graph_labels,
    save_change,
)
from recorder.memory.storage.versions import (
    GraphHead,
    count_trace_changes,
    read_newest_version,
    writer_of_version,
)
from recorder.models.session import SessionRow
from recorder.tenant import GraphScope

#: Graphs that a run keeps in memory, and their estimated bytes together; a larger graph is kept alone.
_KEPT_GRAPHS, _KEPT_BYTES = 64, 100_000_000
#: Sessions from which on a graph is rebuilt, and by which factor it grows until the next time.
_FIRST_REBUILD, _GROWTH = 50, 1.5
#: Larger graphs are left to the nightly rebuild, since a session would wait too long to be sealed: graphs of
#: more sessions, or of more micro-states,
_LARGEST_REBUILD, _MAX_MICRO_STATES = 25_600, 4_000
#: those whose variants take more bytes, of which a rebuild takes several times as much,
_MAX_REBUILT_BYTES = 25_000_000
#: and those whose rebuild is predicted to take longer.
_REBUILD_BUDGET_S = 2.0
#: Time of a rebuild for each variant and each session, as measured on graphs of 300 to 900 variants; it
#: predicts the first rebuild of a graph, later ones are predicted by the one before.
_VARIANT_S, _SESSION_S = 2e-3, 2e-5


@dataclass(slots=True)
class _HeldGraph:
    """A graph in memory, its version, and the change that made it."""

    #: None where the graphs of a batch have no room together: it is loaded again when it is needed.
    graph: Graph | None
    version: int
    writer: str


@dataclass(slots=True)
class _BatchBudget:
    """Comparisons and memory that the graphs of one batch may still take."""

    comparisons: int
    #: Graphs that the batch holds until it is committed, and their estimated bytes.
    held: list[_HeldGraph] = field(default_factory=list)
    held_bytes: int = 0

    def hold(self, held: _HeldGraph, max_bytes: int) -> None:
        """Hold one more graph; those before it are dropped where there is no room for all."""
        size = _measure_graph(held.graph)
        if self.held_bytes + size > max_bytes:
            for other in self.held:
                other.graph = None
            self.held.clear()
            self.held_bytes = 0
        self.held.append(held)
        self.held_bytes += size


@dataclass(frozen=True, slots=True)
class _WorkflowPart:
    """The sessions of one workflow, and what they change if the graph was on when they were prepared."""

    scope: GraphScope
    steps: Mapping[str, Sequence[Step]]
    #: Key of the actor of each.
    actors: Mapping[str, int]
    held: _HeldGraph | None
    change: GraphChange | None


@dataclass(frozen=True, slots=True)
class PreparedIndexing:
    """A batch that is computed but not written."""

    parts: tuple[_WorkflowPart, ...]


class GraphIndexer:
    """Indexer of batches of sealed sessions into their graphs; a sealing run keeps one.

    Args:
        capacity: most that one graph takes.
        rebuild_budget_s: a rebuild that is predicted to take longer is left to the nightly one.
        kept_bytes: estimated memory of the graphs that are kept.
    """

    def __init__(
        self,
        capacity: GraphCapacity = DEFAULT_CAPACITY,
        *,
        rebuild_budget_s: float = _REBUILD_BUDGET_S,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._capacity = capacity
        self._rebuild_budget_s = rebuild_budget_s
        self._kept_bytes = kept_bytes
        #: Measured duration of each graph's last rebuild, divided by the one that its size predicts.
        self._slowness: LRUCache[GraphScope, float] = LRUCache(_KEPT_GRAPHS)
        self._held: LRUCache[GraphScope, _HeldGraph] = LRUCache(
            kept_bytes,
            lambda held: min(max(_measure_graph(held.graph), kept_bytes // _KEPT_GRAPHS), kept_bytes),
        )
        self._name = secrets.token_hex(8)
        self._commits = 0
        self._grown: set[GraphScope] = set()

    def prepare(
        self, db: DbSession, rows: Sequence[SessionRow], steps: Mapping[str, Sequence[Step]]
    ) -> PreparedIndexing:
        """Compute what sessions change in their graphs; reads only.

        Args:
            db: the transaction.
            rows: the sessions about to be sealed, of any workflows; replays enter no graph.
            steps: the steps of each, by session id.
        """
        by_scope: dict[GraphScope, dict[str, Sequence[Step]]] = {}
        actors = {row.id: compute_actor_key(row.actor_id) for row in rows}
        for row in rows:
            if row.origin != "replay":
                by_scope.setdefault(graph_scope_of(row), {})[row.id] = steps[row.id]
        # In one order everywhere, so that two writers of several graphs cannot wait for each other.
        scopes = sorted(by_scope, key=lambda scope: scope.workflow)
        budget = _BatchBudget(self._capacity.comparisons)
        return PreparedIndexing(
            tuple(self._prepare_workflow_part(db, scope, by_scope[scope], actors, budget) for scope in scopes)
        )

    def commit(
        self, db: DbSession, prepared: PreparedIndexing, rows: Sequence[SessionRow]
    ) -> dict[GraphScope, int]:
        """Write a prepared batch; call it in the transaction that seals the sessions.

        Sessions that are missing from `rows`, deleted or indexed before are left out; those of a workflow
        whose graph is paused now get no rows at all.

        Args:
            db: the transaction.
            prepared: the prepared batch.
            rows: the sessions as they are being sealed: outcome, duration, times and `seal_seq` are theirs.

        Returns:
            The new version of each graph that changed.
        """
        versions = {}
        for part in prepared.parts:
            present = [row for row in rows if row.id in part.steps and row.deleted_at is None]
            known = find_known_sessions(db, [row.id for row in present])
            wanted = [row for row in present if row.id not in known]
            head = read_newest_version(db, part.scope, lock=True)
            if wanted and head is not None and head.memory_graph:
                versions[part.scope] = self._write_workflow_part(db, part, wanted, head)
        return versions

    def take_grown(self) -> list[GraphScope]:
        """Return the graphs that grew by half since they were last returned here, and are rebuilt quickly.

        The first sessions of a graph were grouped by a handful: a rebuild now and then, for a constant cost
        per session, groups them with many.
        """
        grown = sorted(self._grown, key=lambda scope: (scope.workspace_id, scope.mode, scope.workflow))
        self._grown.clear()
        return grown

    def record_rebuild(self, scope: GraphScope, seconds: float) -> None:
        """Take the duration of a graph's rebuild into the predictions of its next ones."""
        held = self._held.get(scope)
        if held is not None and held.graph is not None:
            self._slowness[scope] = seconds / _predict_rebuild_after_indexing(held.graph)

    def _prepare_workflow_part(
        self,
        db: DbSession,
        scope: GraphScope,
        steps: Mapping[str, Sequence[Step]],
        actors: Mapping[str, int],
        budget: _BatchBudget,
    ) -> _WorkflowPart:
        head = read_newest_version(db, scope)
        known = find_known_sessions(db, steps)
        if head is None or not head.memory_graph or len(known) == len(steps):
            return _WorkflowPart(scope, steps, actors, None, None)
        held, graph = self._take_cached_graph(db, scope, head, budget)
        before = graph.node_index.comparisons
        change = graph.add_sessions(
            steps, known=known, actors=actors, max_comparisons=max(budget.comparisons, 0)
        )
        budget.comparisons -= graph.node_index.comparisons - before
        budget.hold(held, self._kept_bytes)
        return _WorkflowPart(scope, steps, actors, held, change)

    def _take_cached_graph(
        self, db: DbSession, scope: GraphScope, head: GraphHead, budget: _BatchBudget
    ) -> tuple[_HeldGraph, Graph]:
        """Remove the graph at `head` from the cache, or load it; it is kept again once it is committed."""
        held = self._held.pop(scope, None)
        if held is not None and held.graph is not None and _update_indexed_graph(db, scope, held, head):
            return held, held.graph
        # The graphs of this batch, and those that are kept, share one memory limit.
        while self._held and self._held.currsize + budget.held_bytes >= self._kept_bytes:
            self._held.popitem()
        graph = load_graph(db, scope, self._capacity)
        return _HeldGraph(graph, head.version, head.writer), graph

    def _write_workflow_part(
        self, db: DbSession, part: _WorkflowPart, rows: Sequence[SessionRow], head: GraphHead
    ) -> int:
        """Write the changes of a workflow's graph, and prepare them again if sessions changed since."""
        held, change = part.held, part.change
        prepared_ids = {taken.session_id for taken in change.sessions} if change else set()
        is_usable = held is not None and prepared_ids == {row.id for row in rows}
        if (
            held is None
            or change is None
            or not is_usable
            or not _update_indexed_graph(db, part.scope, held, head)
        ):
            # Rare: a session was deleted, or the graph resumed, since `prepare`. Begin again.
            graph = load_graph(db, part.scope, self._capacity)
            held = _HeldGraph(graph, head.version, head.writer)
            change = graph.add_sessions({row.id: part.steps[row.id] for row in rows}, actors=part.actors)
        self._commits += 1
        writer = f"{self._name}:{self._commits}"
        version = save_change(db, part.scope, change, rows, head=head, writer=writer)
        if held.graph is not None:
            self._held[part.scope] = _HeldGraph(held.graph, version, writer)
            self._note_growth(part.scope, held.graph, len(change.sessions))
        return version

    def _note_growth(self, scope: GraphScope, graph: Graph, added: int) -> None:
        """Remember a graph that has grown by half with the added sessions, if its rebuild is quick."""
        sessions = graph.path_index.sessions
        if len(graph.node_index.number_of) > _MAX_MICRO_STATES or graph.way_bytes > _MAX_REBUILT_BYTES:
            return
        has_grown = _count_rebuilds(sessions) > _count_rebuilds(sessions - added)
        predicted_s = _predict_rebuild_after_indexing(graph) * self._slowness.get(scope, 1.0)
        if has_grown and predicted_s <= self._rebuild_budget_s:
            self._grown.add(scope)


def _measure_graph(graph: Graph | None) -> int:
    """Return the estimated memory of a graph."""
    return 0 if graph is None else graph.state_bytes + graph.way_bytes


def _predict_rebuild_after_indexing(graph: Graph) -> float:
    """Return the usual duration of a rebuild of a graph of this size."""
    index = graph.path_index
    return _VARIANT_S * len(index.variants) + _SESSION_S * index.sessions


def _count_rebuilds(sessions: int) -> int:
    """Return how often a graph of this size is rebuilt as it grows, if each rebuild is quick."""
    size = min(sessions, _LARGEST_REBUILD) / _FIRST_REBUILD
    return 1 + int(math.log(size, _GROWTH)) if size >= 1 else 0


def _update_indexed_graph(db: DbSession, scope: GraphScope, held: _HeldGraph, head: GraphHead) -> bool:
    """Bring a graph to `head` if only counters moved since; False if it must be loaded again.

    Its version must still be the one it was written as: a transaction that was rolled back
    leaves a graph in memory that was never stored.
    """
    if held.version and writer_of_version(db, scope, held.version) != held.writer:
        return False
    if held.version == head.version:
        return True
    changes = count_trace_changes(db, scope, held.version)
    if changes is None:
        return False
    if held.graph is not None:
        for key, change in changes.items():
            held.graph.count(key, change)
        # The texts of a session that was deleted prove nothing any more.
        held.graph.node_labels = read_graph_labels(db, scope)
    held.version, held.writer = head.version, head.writer
    return True
