"""A graph as pictures and interchange formats show it: nodes and edges with exact figures. Spec §2.6, §4.2.

Pure and vectorised: the directly-follows graph of chosen sessions, counted by variant (sessions that went the
same way are counted once and weighted) and timed by session. Nothing of it is stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from recorder.memory.graph.inverted_index import Ints
from recorder.memory.queries.columns import OUTCOMES, GraphColumns

Counts = tuple[int, int, int]
#: Times are sorted together with the number of their edge, in one integer each: 34 years have room.
_TIME_BITS = 40


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

    def share(self, sessions: int) -> float:
        """A number of sessions as a fraction of all in this view."""
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
    """The graph of the chosen sessions.

    Args:
        columns: the graph's columns.
        chosen: which rows of `columns` to take; the others count nowhere.
        min_frequency: nodes and edges of fewer sessions than this share are left out; the others keep theirs.
        recovery: ids of nodes to mark as recovery points.
        new: ids of nodes to mark as new.
    """
    rows = np.flatnonzero(chosen)
    routes = _Routes(columns, rows)
    least = min_frequency * len(rows)
    nodes, hidden = _nodes(columns, routes, least)
    shown = frozenset(node.node_id for node in nodes)
    return GraphView(
        workflow=workflow,
        version=columns.version,
        sessions=len(rows),
        outcomes=_counts(np.bincount(columns.outcome[rows], minlength=len(OUTCOMES)).tolist()),
        nodes=nodes,
        edges=_edges(columns, routes, least, shown),
        spine=tuple(node_id for node_id in _spine(columns, routes) if node_id in shown),
        recovery=recovery & shown,
        new=new & shown,
        hidden=hidden,
    )


class _Routes:
    """The variants of some sessions, laid out one behind the other: their nodes, and their edges."""

    def __init__(self, columns: GraphColumns, rows: Ints) -> None:
        count = len(columns.variant_path)
        self.rows = rows
        self.variant: Ints = columns.trace_variant[columns.trace[rows]]
        outcomes = np.bincount(
            self.variant * len(OUTCOMES) + columns.outcome[rows], minlength=count * len(OUTCOMES)
        ).reshape(count, len(OUTCOMES))
        #: The variants that were taken, and the sessions of each by outcome.
        self.taken = np.flatnonzero(outcomes.sum(axis=1))
        self.outcomes: Ints = outcomes[self.taken].astype(np.int64)
        lengths = np.diff(columns.variant_start)[self.taken]
        self.nodes: Ints = columns.variant_nodes[_ranges(columns.variant_start[self.taken], lengths)]
        self.node_owner = np.repeat(np.arange(len(self.taken)), lengths)
        self.edge_owner = np.repeat(np.arange(len(self.taken)), lengths + 1)
        #: Where the edges of each taken variant begin.
        self.edge_start: Ints = np.cumsum(lengths + 1) - (lengths + 1)
        #: Numbers that stand for the start and the end beside the nodes.
        self.start, self.end = len(columns.nodes), len(columns.nodes) + 1
        self.edges = self._ends(lengths)

    def _ends(self, lengths: Ints) -> Ints:
        total = int(lengths.sum()) + len(lengths)
        source = np.full(total, self.start, dtype=np.int64)
        target = np.full(total, self.end, dtype=np.int64)
        is_first, is_last = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.bool_)
        is_first[self.edge_start] = True
        is_last[self.edge_start + lengths] = True
        source[~is_first] = self.nodes
        target[~is_last] = self.nodes
        return source * (self.end + 1) + target

    def crossed(self, values: Ints, owner: Ints, count: int) -> Ints:
        """How often sessions met each of `count` values."""
        weights = self.outcomes.sum(axis=1)[owner]
        return np.bincount(values, weights=weights, minlength=count).astype(np.int64)

    def met(self, values: Ints, owner: Ints, count: int) -> Ints:
        """Sessions that met each of `count` values at least once, by outcome."""
        pairs = np.unique(owner * np.int64(count) + values)
        owner, values = np.divmod(pairs, np.int64(max(count, 1)))
        columns = [
            np.bincount(values, weights=self.outcomes[owner, place], minlength=count)
            for place in range(len(OUTCOMES))
        ]
        return np.stack(columns, axis=1).astype(np.int64)


def _nodes(columns: GraphColumns, routes: _Routes, least: float) -> tuple[tuple[ViewNode, ...], int]:
    count = len(columns.nodes)
    visits = routes.crossed(routes.nodes, routes.node_owner, count)
    outcomes = routes.met(routes.nodes, routes.node_owner, count)
    sessions = outcomes.sum(axis=1)
    left = _left(routes, count)
    seen = np.flatnonzero(sessions).tolist()
    made = [
        ViewNode(
            node_id=columns.nodes[number].node_id,
            label=columns.nodes[number].label,
            kind=columns.nodes[number].kind,
            sessions=int(sessions[number]),
            visits=int(visits[number]),
            outcomes=_counts(outcomes[number].tolist()),
            left=int(left[number]),
        )
        for number in seen
        if sessions[number] >= least
    ]
    made.sort(key=lambda node: (-node.sessions, node.node_id))
    return tuple(made), len(seen) - len(made)


def _left(routes: _Routes, count: int) -> Ints:
    """Sessions by their last node, without those that succeeded."""
    source, target = np.divmod(routes.edges, routes.end + 1)
    is_end = (target == routes.end) & (source != routes.start)
    lost = routes.outcomes[:, 1:].sum(axis=1)[routes.edge_owner[is_end]]
    return np.bincount(source[is_end], weights=lost, minlength=count).astype(np.int64)


def _edges(
    columns: GraphColumns, routes: _Routes, least: float, shown: frozenset[str]
) -> tuple[ViewEdge, ...]:
    keys, numbers = np.unique(routes.edges, return_inverse=True)
    crossings = routes.crossed(numbers, routes.edge_owner, len(keys))
    outcomes = routes.met(numbers, routes.edge_owner, len(keys))
    medians = _medians(columns, routes, numbers, crossings)
    names: list[str | None] = [*(node.node_id for node in columns.nodes), None, None]
    kept = shown | {None}
    sessions = outcomes.sum(axis=1)
    figures = zip(
        keys.tolist(), sessions.tolist(), crossings.tolist(), medians.tolist(), outcomes.tolist(), strict=True
    )
    made = []
    for key, met, n, median_ms, by_outcome in figures:
        source, target = (names[number] for number in divmod(key, routes.end + 1))
        if met >= least and source in kept and target in kept:
            made.append(ViewEdge(source, target, met, n, median_ms, _counts(by_outcome)))
    made.sort(key=lambda edge: (-edge.sessions, -edge.n, edge.source or "", edge.target or ""))
    return tuple(made)


def _medians(columns: GraphColumns, routes: _Routes, numbers: Ints, crossings: Ints) -> Ints:
    """The exact median time of each edge's crossings; of an even number the mean of the middle."""
    rows, trace = routes.rows, columns.trace[routes.rows]
    entries = np.diff(columns.trace_start)[trace]
    ends = np.cumsum(entries + 1)
    # Every crossing ends at a moment: the entry of its target, or the end of the session.
    total = int(ends[-1]) if len(ends) else 0
    moments = np.zeros(total, dtype=np.int64)
    is_end = np.zeros(total, dtype=np.bool_)
    is_end[ends - 1] = True
    first = columns.time_start[rows]
    entered = columns.trace_entry[_ranges(columns.trace_start[trace], entries)]
    moments[~is_end] = np.repeat(first, entries) + entered + 1
    moments[is_end] = columns.time_start[rows + 1]
    began = np.concatenate([np.zeros(1, dtype=np.int64), moments[:-1]])[:total]
    began[ends - entries - 1] = first
    elapsed = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(columns.step_ms)])
    taken_ms = np.clip(elapsed[moments] - elapsed[began], 0, (1 << _TIME_BITS) - 1)
    place = np.searchsorted(routes.taken, routes.variant)
    edge = numbers[_ranges(routes.edge_start[place], entries + 1)]
    ordered = np.sort((edge << _TIME_BITS) | taken_ms) & ((1 << _TIME_BITS) - 1)
    starts = np.cumsum(crossings) - crossings
    medians: Ints = (ordered[starts + (crossings - 1) // 2] + ordered[starts + crossings // 2]) // 2
    return medians


def _spine(columns: GraphColumns, routes: _Routes) -> list[str]:
    """Nodes of the most common path that has any; the way most of its sessions took, if none took its own."""
    counts = np.bincount(columns.variant_path[routes.variant], minlength=len(columns.paths))
    ranked = sorted(
        (number for number in np.flatnonzero(counts).tolist() if columns.paths[number].nodes),
        key=lambda number: (-int(counts[number]), columns.paths[number].path_id),
    )
    if not ranked:
        return []
    own = np.array(columns.paths[ranked[0]].nodes, dtype=np.int64)
    taken = np.flatnonzero(columns.variant_path[routes.taken] == ranked[0])
    by_sessions = taken[np.argsort(-routes.outcomes[taken].sum(axis=1), kind="stable")]
    way = _way(columns, routes.taken[by_sessions], own)
    return [columns.nodes[number].node_id for number in way.tolist()]


def _way(columns: GraphColumns, variants: Ints, own: Ints) -> Ints:
    """The path's own nodes if any of these variants has just them; else those of the first that has any."""
    starts, ends = columns.variant_start[variants], columns.variant_start[variants + 1]
    same = starts[ends - starts == len(own)]
    # Node by node over all of them at once: a path may have as many variants as sessions.
    for place, node in enumerate(own.tolist()):
        if not len(same):
            break
        same = same[columns.variant_nodes[same + place] == node]
    walked = np.flatnonzero(ends > starts)
    if len(same) or not len(walked):
        return own
    nodes: Ints = columns.variant_nodes[starts[walked[0]] : ends[walked[0]]]
    return nodes


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers start, start + 1, … of each range, one range behind the other."""
    offsets = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(offsets, lengths) + np.arange(int(lengths.sum()))


def _counts(values: Sequence[int]) -> Counts:
    success, error, abandoned = values
    return success, error, abandoned


#: What a picture shows at most; edges, too, only as far as an eye can follow them.
MAX_NODES = 40
_EDGES, _EDGES_A_NODE = 12, 2


def most_supported(view: GraphView, nodes: int = MAX_NODES, edges: int | None = None) -> GraphView:
    """The view with its common path and then its nodes and edges of most sessions.

    Args:
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
