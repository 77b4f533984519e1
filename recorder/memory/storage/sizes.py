"""Sizes of the graphs of workflows: their present content, not all that ever was. Contract §4 (workflow)."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cachetools import LRUCache
from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.memory.storage.versions import PerDatabase, is_writing
from recorder.models.memory import GraphTraceRow, GraphVariantRow, GraphVersionRow
from recorder.models.workflow import WorkflowGraph
from recorder.storage.conditions import in_tenant
from recorder.tenant import GraphScope, Tenant

#: Graphs whose sizes a process keeps.
_MAX_KEPT = 4_096


@dataclass(slots=True)
class _VisitedParts:
    """The parts of one graph that have sessions."""

    nodes: set[int] = field(default_factory=set)
    edges: set[tuple[int, int]] = field(default_factory=set)
    paths: set[int] = field(default_factory=set)


class GraphSizesCache:
    """The sizes of the graphs that were asked for last, each at its newest version."""

    def __init__(self, max_kept: int = _MAX_KEPT) -> None:
        self._counted: LRUCache[GraphScope, WorkflowGraph] = LRUCache(max_kept)
        self._lock = threading.Lock()

    def find(self, scope: GraphScope, version: int) -> WorkflowGraph | None:
        """Return the size of a graph at this version, if it is kept."""
        with self._lock:
            counted = self._counted.get(scope)
            return counted if counted is not None and counted.version == version else None

    def keep(self, scope: GraphScope, counted: WorkflowGraph) -> None:
        """Keep the size of a graph instead of an older one."""
        with self._lock:
            held = self._counted.get(scope)
            if held is None or held.version < counted.version:
                self._counted[scope] = counted


_caches = PerDatabase(GraphSizesCache)


def read_graph_sizes(db: DbSession, tenant: Tenant, workflows: Sequence[str]) -> dict[str, WorkflowGraph]:
    """Return version, nodes, edges and paths of each workflow's graph.

    Nodes, edges and paths whose sessions were all deleted are not counted, nor are the edges that lead into
    a session and out of it. A graph is counted once for each version: that reads all its variants.
    """
    version = GraphVersionRow
    newest = (
        select(version.workflow, func.max(version.version))
        .where(*_choose_graph_size_rows(version, tenant, workflows))
        .group_by(col(version.workflow))
    )
    version_of = dict(db.exec(newest).all())
    cache = GraphSizesCache() if is_writing(db) else _caches.of(db)
    scopes = {workflow: GraphScope(tenant, workflow) for workflow in workflows}
    counted = {
        workflow: size
        for workflow, scope in scopes.items()
        if (size := cache.find(scope, version_of.get(workflow, 0))) is not None
    }
    missing = [workflow for workflow in scopes if workflow not in counted]
    held = _read_held(db, tenant, [workflow for workflow in missing if workflow in version_of])
    for workflow in missing:
        counted[workflow] = WorkflowGraph(
            version=version_of.get(workflow, 0),
            nodes=len(held[workflow].nodes),
            edges=len(held[workflow].edges),
            paths=len(held[workflow].paths),
        )
        cache.keep(scopes[workflow], counted[workflow])
    return counted


def _read_held(db: DbSession, tenant: Tenant, workflows: Sequence[str]) -> defaultdict[str, _VisitedParts]:
    """Return the present parts of each graph; none for a graph without sessions."""
    held: defaultdict[str, _VisitedParts] = defaultdict(_VisitedParts)
    if not workflows:
        return held
    trace, variant = GraphTraceRow, GraphVariantRow
    taken = select(trace.workflow, trace.variant_key).where(
        *_choose_graph_size_rows(trace, tenant, workflows), col(trace.n) > 0
    )
    in_use = set(db.exec(taken.distinct()))
    variants = select(variant.workflow, variant.variant_key, variant.nodes, variant.path).where(
        *_choose_graph_size_rows(variant, tenant, workflows)
    )
    for workflow, key, nodes, path in db.exec(variants):
        if (workflow, key) in in_use:
            held[workflow].nodes.update(nodes)
            held[workflow].edges.update(pairwise(nodes))
            if nodes:
                held[workflow].paths.add(path)
    return held


def _choose_graph_size_rows(table: Any, tenant: Tenant, workflows: Sequence[str]) -> Iterator[Any]:
    """Return the conditions that choose the rows of some graphs."""
    yield from in_tenant(table, tenant)
    yield col(table.workflow).in_(workflows)
