"""Indexing of sealed sessions: changes computed before the sealing transaction, written in it. Contract §4.

Sealing holds the only right to add structure, so what `prepare` computes stays right until `commit`; late
tags and deletions may move counters in between, which `commit` catches up on.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache
from sqlmodel import Session as DbSession

from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.graph import Graph, GraphChange
from recorder.memory.graph.node_labels import actor_key
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.graph_store import (
    graph_scope_of,
    known_sessions,
    load_graph,
    read_labels,
    save_change,
)
from recorder.memory.storage.versions import GraphHead, count_trace_changes, read_head, writer_of_version
from recorder.models.session import SessionRow
from recorder.tenant import GraphScope

#: Graphs that a run keeps in memory, and their micro-states and variants together, of about 7 kB each; a
#: larger graph is kept alone.
_KEPT_GRAPHS, _KEPT_SIZE = 64, 100_000
#: Sessions from which on a graph is rebuilt whenever they have doubled.
_FIRST_REBUILD = 50
#: Graphs of more sessions, or of more micro-states, wait for the night: a rebuild would take longer than a
#: session should wait to be sealed.
_LARGEST_REBUILD, _MAX_MICRO_STATES = 25_600, 4_000
#: So do graphs whose rebuild is predicted to take longer than this.
_REBUILD_BUDGET_S = 2.0
#: Time of a rebuild for each variant and each session, as measured on graphs of 300 to 900 variants; it
#: predicts the first rebuild of a graph, later ones are predicted by the one before.
_VARIANT_S, _SESSION_S = 2e-3, 2e-5


@dataclass(slots=True)
class _HeldGraph:
    """A graph in memory, its version, and the change that made it."""

    graph: Graph
    version: int
    writer: str


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
class Prepared:
    """A batch that is computed but not written."""

    parts: tuple[_WorkflowPart, ...]


class GraphIndexer:
    """Takes batches of sealed sessions into their graphs; a sealing run keeps one.

    Args:
        rebuild_budget_s: a rebuild that is predicted to take longer is left to the nightly one.
        kept_size: micro-states and variants of the graphs that are kept in memory.
        bounds: how much of a graph a session is compared with.
    """

    def __init__(
        self,
        *,
        rebuild_budget_s: float = _REBUILD_BUDGET_S,
        kept_size: int = _KEPT_SIZE,
        bounds: GraphBounds = GRAPH_BOUNDS,
    ) -> None:
        self._rebuild_budget_s = rebuild_budget_s
        self._bounds = bounds
        #: Measured duration of each graph's last rebuild, divided by the one that its size predicts.
        self._slowness: LRUCache[GraphScope, float] = LRUCache(_KEPT_GRAPHS)
        self._held: LRUCache[GraphScope, _HeldGraph] = LRUCache(
            kept_size,
            lambda held: min(max(_measure_graph(held.graph), kept_size // _KEPT_GRAPHS), kept_size),
        )
        self._name = secrets.token_hex(8)
        self._commits = 0
        self._grown: set[GraphScope] = set()

    def prepare(
        self, db: DbSession, rows: Sequence[SessionRow], steps: Mapping[str, Sequence[Step]]
    ) -> Prepared:
        """Compute what sessions change in their graphs; reads only.

        Args:
            db: the transaction.
            rows: the sessions about to be sealed, of any workflows; replays enter no graph.
            steps: the steps of each, by session id.
        """
        by_scope: dict[GraphScope, dict[str, Sequence[Step]]] = {}
        actors = {row.id: actor_key(row.actor_id) for row in rows}
        for row in rows:
            if row.origin != "replay":
                by_scope.setdefault(graph_scope_of(row), {})[row.id] = steps[row.id]
        # In one order everywhere, so that two writers of several graphs cannot wait for each other.
        scopes = sorted(by_scope, key=lambda scope: scope.workflow)
        return Prepared(tuple(self._part(db, scope, by_scope[scope], actors) for scope in scopes))

    def commit(self, db: DbSession, prepared: Prepared, rows: Sequence[SessionRow]) -> dict[GraphScope, int]:
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
            known = known_sessions(db, [row.id for row in present])
            wanted = [row for row in present if row.id not in known]
            head = read_head(db, part.scope, lock=True)
            if wanted and head is not None and head.memory_graph:
                versions[part.scope] = self._write(db, part, wanted, head)
        return versions

    def take_grown(self) -> list[GraphScope]:
        """Return the graphs that have doubled since they were last returned here, and are rebuilt quickly.

        The first sessions of a graph were grouped by a handful: a rebuild now and then, for a constant cost
        per session, groups them with many.
        """
        grown = sorted(self._grown, key=lambda scope: (scope.workspace_id, scope.mode, scope.workflow))
        self._grown.clear()
        return grown

    def record_rebuild(self, scope: GraphScope, seconds: float) -> None:
        """Take the duration of a graph's rebuild into the predictions of its next ones."""
        held = self._held.get(scope)
        if held is not None:
            self._slowness[scope] = seconds / _predict_rebuild_s(held.graph)

    def _part(
        self,
        db: DbSession,
        scope: GraphScope,
        steps: Mapping[str, Sequence[Step]],
        actors: Mapping[str, int],
    ) -> _WorkflowPart:
        head = read_head(db, scope)
        known = known_sessions(db, steps)
        if head is None or not head.memory_graph or len(known) == len(steps):
            return _WorkflowPart(scope, steps, actors, None, None)
        held = self._take(db, scope, head)
        change = held.graph.add_sessions(steps, known=known, actors=actors)
        return _WorkflowPart(scope, steps, actors, held, change)

    def _take(self, db: DbSession, scope: GraphScope, head: GraphHead) -> _HeldGraph:
        """Return the graph at `head`, out of the cache: what is added to it now may never be committed."""
        held = self._held.pop(scope, None)
        if held is None or not _catch_up(db, scope, held, head):
            held = _HeldGraph(load_graph(db, scope, self._bounds), head.version, head.writer)
        return held

    def _write(self, db: DbSession, part: _WorkflowPart, rows: Sequence[SessionRow], head: GraphHead) -> int:
        held, change = part.held, part.change
        prepared_ids = {taken.session_id for taken in change.sessions} if change else set()
        is_usable = held is not None and prepared_ids == {row.id for row in rows}
        if held is None or change is None or not is_usable or not _catch_up(db, part.scope, held, head):
            # Rare: a session was deleted, or the graph resumed, since `prepare`. Begin again.
            held = _HeldGraph(load_graph(db, part.scope, self._bounds), head.version, head.writer)
            change = held.graph.add_sessions({row.id: part.steps[row.id] for row in rows}, actors=part.actors)
        self._commits += 1
        writer = f"{self._name}:{self._commits}"
        version = save_change(db, part.scope, change, rows, head=head, writer=writer)
        self._held[part.scope] = _HeldGraph(held.graph, version, writer)
        sessions = held.graph.path_index.sessions
        if len(held.graph.node_index.number_of) > _MAX_MICRO_STATES:
            return version
        has_doubled = _count_doublings(sessions) > _count_doublings(sessions - len(change.sessions))
        predicted_s = _predict_rebuild_s(held.graph) * self._slowness.get(part.scope, 1.0)
        if has_doubled and predicted_s <= self._rebuild_budget_s:
            self._grown.add(part.scope)
        return version


def _measure_graph(graph: Graph) -> int:
    """Return the number of parts that a graph's memory goes with."""
    return len(graph.node_index.number_of) + len(graph.path_index.variants)


def _predict_rebuild_s(graph: Graph) -> float:
    """Return the usual duration of a rebuild of a graph of this size."""
    index = graph.path_index
    return _VARIANT_S * len(index.variants) + _SESSION_S * index.sessions


def _count_doublings(sessions: int) -> int:
    """Return how often a graph of this size has doubled since its first rebuild."""
    return min(sessions // _FIRST_REBUILD, _LARGEST_REBUILD // _FIRST_REBUILD).bit_length()


def _catch_up(db: DbSession, scope: GraphScope, held: _HeldGraph, head: GraphHead) -> bool:
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
    for key, change in changes.items():
        held.graph.count(key, change)
    # The texts of a session that was deleted prove nothing any more.
    held.graph.node_labels = read_labels(db, scope)
    held.version, held.writer = head.version, head.writer
    return True
