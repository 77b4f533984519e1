"""View of a graph for pictures and interchange formats: nodes and edges with exact figures. Spec §2.6, §4.2.

Pure: the directly-follows graph of chosen sessions as `count_graph` counts it. Nothing of it is stored.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from recorder.memory.graph.directly_follows import GraphCounts, Walks, count_graph, list_ranges
from recorder.memory.graph.inverted_index import Ints
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import OUTCOMES, GraphColumns

Counts = tuple[int, int, int]
#: Longer times between two steps count as this one, 34 years.
_MAX_GAP_MS = (1 << 40) - 1


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A node and the sessions that came through it."""

    node_id: str
    label: str
    kind: str
    sessions: int
    #: How often it was entered; more than `sessions` where sessions came back to it.
    visits: int
    #: Its sessions by outcome: success, error, abandoned.
    outcomes: Counts
    #: Sessions whose last node this is and which did not succeed.
    left: int


@dataclass(frozen=True, slots=True)
class ViewEdge:
    """A way from one node to the next; source None is the start of a session, target None its end."""

    source: str | None
    target: str | None
    sessions: int
    #: How often it was crossed.
    n: int
    #: Median over all crossings, from entering the source to entering the target.
    median_ms: int
    #: Its sessions by outcome: success, error, abandoned.
    outcomes: Counts


@dataclass(frozen=True, slots=True)
class GraphView:
    """The graph of chosen sessions, the most supported nodes and edges first."""

    workflow: str
    version: int
    sessions: int
    outcomes: Counts
    nodes: tuple[ViewNode, ...]
    edges: tuple[ViewEdge, ...]
    #: Nodes of the most common path, in its order; one may come twice.
    spine: tuple[str, ...]
    recovery: frozenset[str]
    new: frozenset[str]
    #: Nodes that are left out here for their small share.
    hidden: int = 0
    #: Sessions that have no step, and are on no path.
    without_steps: int = 0

    def share(self, sessions: int) -> float:
        """Return a number of sessions as a fraction of all in this view."""
        return sessions / self.sessions if self.sessions else 0.0


def view_of(
    columns: GraphColumns,
    chosen: npt.NDArray[np.bool_],
    *,
    workflow: str,
    min_frequency: float = 0.0,
    recovery: frozenset[str] = frozenset(),
    new: frozenset[str] = frozenset(),
) -> GraphView:
    """Return the graph of the chosen sessions.

    Args:
        columns: the graph's columns.
        chosen: which rows of `columns` to take; the others count nowhere.
        workflow: name of the workflow.
        min_frequency: nodes and edges of fewer sessions than this share are left out; the others keep theirs.
        recovery: ids of nodes to mark as recovery points.
        new: ids of nodes to mark as new.
    """
    rows = np.flatnonzero(chosen)
    taken, walks = _make_walks(columns, rows)
    counts = count_graph(walks)
    least = min_frequency * len(rows)
    nodes, hidden = _describe_nodes(columns, counts, least)
    shown = frozenset(node.node_id for node in nodes)
    return GraphView(
        workflow=workflow,
        version=columns.version,
        sessions=len(rows),
        outcomes=_by_outcome(counts.variants.sum(axis=0)),
        nodes=nodes,
        edges=_describe_edges(columns, counts, least, shown),
        spine=tuple(node_id for node_id in _list_spine(columns, taken, counts) if node_id in shown),
        recovery=recovery & shown,
        new=new & shown,
        hidden=hidden,
        without_steps=int((np.diff(columns.variant_start)[columns.variant[rows]] == 0).sum()),
    )


def _make_walks(columns: GraphColumns, rows: Ints) -> tuple[Ints, Walks]:
    """Return the variants that the sessions of some rows took, and the sessions as walks."""
    trace = columns.trace[rows]
    variant = columns.trace_variant[trace]
    taken = np.flatnonzero(np.bincount(variant, minlength=len(columns.variant_path)))
    lengths = np.diff(columns.variant_start)[taken]
    walks = Walks(
        node_count=len(columns.nodes),
        nodes=columns.variant_nodes[list_ranges(columns.variant_start[taken], lengths)],
        starts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        variant=np.searchsorted(taken, variant),
        outcome=columns.outcome[rows],
        outcome_count=len(OUTCOMES),
        gaps=_list_gaps(columns, rows, trace),
    )
    return taken, walks


def _list_gaps(columns: GraphColumns, rows: Ints, trace: Ints) -> Ints:
    """Return the times of the crossings of all sessions; each ends where a node is entered, or a session."""
    entries = np.diff(columns.trace_start)[trace]
    ends = np.cumsum(entries + 1)
    total = int(ends[-1]) if len(ends) else 0
    moments = np.zeros(total, dtype=np.int64)
    is_end = np.zeros(total, dtype=np.bool_)
    is_end[ends - 1] = True
    first = columns.time_start[rows]
    entered = columns.trace_entry[list_ranges(columns.trace_start[trace], entries)]
    moments[~is_end] = np.repeat(first, entries) + entered + 1
    moments[is_end] = columns.time_start[rows + 1]
    began = np.concatenate([np.zeros(1, dtype=np.int64), moments[:-1]])[:total]
    began[ends - entries - 1] = first
    elapsed = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(columns.step_ms)])
    gaps: Ints = np.clip(elapsed[moments] - elapsed[began], 0, _MAX_GAP_MS)
    return gaps


def _describe_nodes(
    columns: GraphColumns, counts: GraphCounts, least: float
) -> tuple[tuple[ViewNode, ...], int]:
    """Return the nodes of at least so many sessions, and the number of the others."""
    sessions = counts.nodes.sum(axis=1)
    left = np.zeros(len(columns.nodes) + 1, dtype=np.int64)
    is_end = counts.target == len(columns.nodes)
    left[counts.source[is_end]] = counts.edges[is_end, 1:].sum(axis=1)
    seen = np.flatnonzero(sessions).tolist()
    nodes = [
        ViewNode(
            node_id=columns.nodes[number].node_id,
            label=columns.nodes[number].label,
            kind=columns.nodes[number].kind,
            sessions=int(sessions[number]),
            visits=int(counts.visits[number]),
            outcomes=_by_outcome(counts.nodes[number]),
            left=int(left[number]),
        )
        for number in seen
        if sessions[number] >= least
    ]
    nodes.sort(key=lambda node: (-node.sessions, node.node_id))
    return tuple(nodes), len(seen) - len(nodes)


def _describe_edges(
    columns: GraphColumns, counts: GraphCounts, least: float, shown: frozenset[str]
) -> tuple[ViewEdge, ...]:
    """Return the edges of at least so many sessions between shown nodes, and to and from the outside."""
    names: list[str | None] = [*(node.node_id for node in columns.nodes), None]
    kept = shown | {None}
    sessions = counts.edges.sum(axis=1)
    edges = []
    for number in np.flatnonzero(sessions >= least).tolist():
        source, target = names[counts.source[number]], names[counts.target[number]]
        if source in kept and target in kept:
            edge = ViewEdge(
                source,
                target,
                sessions=int(sessions[number]),
                n=int(counts.crossings[number]),
                median_ms=int(counts.median[number]),
                outcomes=_by_outcome(counts.edges[number]),
            )
            edges.append(edge)
    edges.sort(key=lambda edge: (-edge.sessions, -edge.n, edge.source or "", edge.target or ""))
    return tuple(edges)


def _list_spine(columns: GraphColumns, taken: Ints, counts: GraphCounts) -> list[str]:
    """Return the nodes of the most common path that has any.

    Where none of its sessions took the path's own nodes, these are the nodes that most of its sessions took.

    Args:
        columns: the graph's columns.
        taken: the variants of `counts`.
        counts: the counts of the chosen sessions.
    """
    sessions = counts.variants.sum(axis=1)
    has_path = columns.variant_path[taken] != NO_PATH
    weights = np.bincount(
        columns.variant_path[taken][has_path], weights=sessions[has_path], minlength=len(columns.paths)
    )
    ranked = sorted(
        (number for number in np.flatnonzero(weights).tolist() if columns.paths[number].nodes),
        key=lambda number: (-int(weights[number]), columns.paths[number].path_id),
    )
    if not ranked:
        return []
    path_nodes = np.array(columns.paths[ranked[0]].nodes, dtype=np.int64)
    on_path = np.flatnonzero(columns.variant_path[taken] == ranked[0])
    by_sessions = on_path[np.argsort(-sessions[on_path], kind="stable")]
    spine = _choose_spine(columns, taken[by_sessions], path_nodes)
    return [columns.nodes[number].node_id for number in spine.tolist()]


def _choose_spine(columns: GraphColumns, variants: Ints, path_nodes: Ints) -> Ints:
    """Return the path's nodes if any of these variants has just them; else those of the first with any."""
    starts, ends = columns.variant_start[variants], columns.variant_start[variants + 1]
    same = starts[ends - starts == len(path_nodes)]
    # Node by node over all of them at once: a path may have as many variants as sessions.
    for offset, node in enumerate(path_nodes.tolist()):
        if not len(same):
            break
        same = same[columns.variant_nodes[same + offset] == node]
    walked = np.flatnonzero(ends > starts)
    if len(same) or not len(walked):
        return path_nodes
    nodes: Ints = columns.variant_nodes[starts[walked[0]] : ends[walked[0]]]
    return nodes


def _by_outcome(values: Ints) -> Counts:
    success, error, abandoned = values.tolist()
    return success, error, abandoned


#: What a picture shows at most; edges, too, only as far as an eye can follow them.
MAX_NODES = 40
_EDGES, _EDGES_A_NODE = 12, 2


def most_supported(view: GraphView, nodes: int = MAX_NODES, edges: int | None = None) -> GraphView:
    """Return the view with its common path and then its nodes and edges of most sessions.

    Args:
        view: the view.
        nodes: how many nodes are kept.
        edges: how many edges between nodes; by default two for each node and a few.
    """
    on_spine = frozenset(view.spine)
    ranked = sorted(view.nodes, key=lambda node: (node.node_id not in on_spine, -node.sessions, node.node_id))
    kept = {node.node_id for node in ranked[:nodes]}
    inner = [edge for edge in view.edges if edge.source in kept and edge.target in kept]
    steps = frozenset(pairwise(view.spine))
    strongest: dict[tuple[str, str | None], ViewEdge] = {}
    for edge in inner:
        strongest.setdefault(("from", edge.source), edge)
        strongest.setdefault(("to", edge.target), edge)
    needed = frozenset(strongest.values())
    inner.sort(key=lambda edge: ((edge.source, edge.target) not in steps, edge not in needed))
    chosen = frozenset(inner[: _EDGES + _EDGES_A_NODE * len(kept) if edges is None else edges])
    outer = {edge for edge in view.edges if _is_end(edge) and {edge.source, edge.target} - {None} <= kept}
    return replace(
        view,
        nodes=tuple(node for node in view.nodes if node.node_id in kept),
        edges=tuple(edge for edge in view.edges if edge in chosen or edge in outer),
        spine=tuple(node_id for node_id in view.spine if node_id in kept),
        hidden=view.hidden + len(view.nodes) - len(kept),
    )


def _is_end(edge: ViewEdge) -> bool:
    return edge.source is None or edge.target is None
