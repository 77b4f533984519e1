"""Network of a workflow: its directly-follows graph as a `networkx.DiGraph`, and what its structure says.

Built from columns in memory, exact, once for a version of the graph and a selection of sessions; views,
drawings and formats are made from it. Stored nowhere. NetworkX is imported where it is used, so that a
service that draws no graph does not pay for it. Spec §2.6.
"""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from recorder.lazy_property import lazy_property
from recorder.memory.graph.arrays import Bools, Ints
from recorder.memory.graph.capacity import compute_act_beyond_capacity
from recorder.memory.graph.directly_follows import (
    OUTCOMES,
    GraphCounts,
    Walks,
    count_directly_follows_graph,
    list_ranges,
)
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.views.dominators import find_immediate_dominators

Counts = tuple[int, int, int]
#: Ids of the two nodes that stand for where sessions begin and end.
START, END = "start", "end"
#: Longer times between two steps count as this one, 34 years.
_MAX_GAP_MS = (1 << 40) - 1


class Network:
    """Nodes and edges of chosen sessions, and the questions to their structure.

    `graph` is a `networkx.DiGraph` with the nodes START and END. Node attributes: label, kind, sessions,
    visits, outcomes (success, error, abandoned), left (sessions that end there without success); START and
    END have none. Edge attributes: sessions, n, median_ms, outcomes, probability (of the crossings that leave
    the source).
    """

    def __init__(self, columns: GraphColumns, chosen: Bools) -> None:
        rows = np.flatnonzero(chosen)
        taken, walks = _make_network_walks(columns, rows)
        counts = count_directly_follows_graph(walks)
        self.graph: Any = _build_networkx_graph(columns, counts)
        self.sessions = len(rows)
        self.node_count = int(counts.nodes.any(axis=1).sum())
        #: Sessions that have no step, and are on no path.
        self.without_steps = int((np.diff(columns.variant_start)[columns.variant[rows]] == 0).sum())
        #: Sessions whose way the graph had no room for, and which are on no path.
        self.beyond_limit = int(columns.is_unkept[rows].sum())
        self.without_steps -= self.beyond_limit
        #: True if the graph had no room for a way or a state of these sessions.
        self.is_limited = self.beyond_limit > 0 or any(
            columns.nodes[number].act == compute_act_beyond_capacity(columns.nodes[number].kind)
            for number in np.flatnonzero(counts.visits).tolist()
        )
        self.outcomes = _unpack_outcome_counts(counts.variants.sum(axis=0))
        #: Nodes of the most common path, in its order; one may come twice.
        self.spine = tuple(_list_spine(columns, taken, counts))

    @property
    def size(self) -> int:
        """Number of nodes and edges."""
        return len(self.graph) + int(self.graph.number_of_edges())

    @lazy_property
    def loops(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of nodes that sessions can go round in, the largest first, each sorted by id."""
        import networkx as nx

        groups = [
            tuple(sorted(component))
            for component in nx.strongly_connected_components(self.graph)
            if len(component) > 1 or any(self.graph.has_edge(node, node) for node in component)
        ]
        return tuple(sorted(groups, key=lambda component: (-len(component), component)))

    @lazy_property
    def required_nodes(self) -> tuple[str, ...]:
        """Nodes on every way to success, from start to end: the dominators of the end."""
        return tuple(reversed([node for node in self._climb(END) if node not in (START, END)]))

    def skips_required(self, node: str, next_node: str) -> bool:
        """Return whether going from `node` to `next_node` leaves out a node that every success passes."""
        needed = self._dominators.get(next_node, START)
        if needed in (START, node) or node not in self._dominators:
            return needed not in (START, node)
        first, last = self._dominated[needed]
        return not first <= self._dominated[node][0] <= last

    @lazy_property
    def _dominators(self) -> dict[str, str]:
        """Immediate dominators in the graph of the edges that successful sessions took."""
        succeeded: dict[str, list[str]] = {}
        for source, target, outcomes in self.graph.edges(data="outcomes"):
            if outcomes[0] > 0 and (source, target) != (START, END):
                succeeded.setdefault(source, []).append(target)
        return find_immediate_dominators(succeeded, START) if START in succeeded else {}

    @lazy_property
    def _dominated(self) -> dict[str, tuple[int, int]]:
        """Position of each node in preorder of the dominator tree, and the last one of those it dominates."""
        import networkx as nx

        tree = nx.DiGraph(
            (above, node) for node, above in self._dominators.items() if node not in (START, above)
        )
        ordered = list(nx.dfs_preorder_nodes(tree, START))
        spans = {node: (position, position) for position, node in enumerate(ordered)}
        for node in reversed(ordered[1:]):
            above = self._dominators[node]
            spans[above] = (spans[above][0], max(spans[above][1], spans[node][1]))
        return spans

    def _climb(self, node: str) -> Iterator[str]:
        """Yield a node and what dominates it, the nearest first, without the start."""
        while node in self._dominators and node != START:
            yield node
            node = self._dominators[node]

    @lazy_property
    def likeliest_path(self) -> tuple[str, ...]:
        """Likeliest way from start to end, without the two; empty where there is none.

        The product of the edges' probabilities: sessions are assumed to choose independently at each node.
        """
        import networkx as nx

        def unlikeliness(source: str, target: str, figures: dict[str, Any]) -> float | None:
            # A session without steps goes no way; None hides its edge.
            return None if (source, target) == (START, END) else -log(figures["probability"])

        try:
            way = nx.dijkstra_path(self.graph, START, END, weight=unlikeliness)
        except nx.NetworkXNoPath:
            return ()
        return tuple(way[1:-1])


def _build_networkx_graph(columns: GraphColumns, counts: GraphCounts) -> Any:
    import networkx as nx

    graph = nx.DiGraph()
    outside = len(columns.nodes)
    left = np.zeros(outside + 1, dtype=np.int64)
    is_end = counts.target == outside
    left[counts.source[is_end]] = counts.edges[is_end, 1:].sum(axis=1)
    sessions = counts.nodes.sum(axis=1)
    graph.add_nodes_from((START, END))
    for number in np.flatnonzero(sessions).tolist():
        node = columns.nodes[number]
        graph.add_node(
            node.node_id,
            label=node.label,
            kind=node.kind,
            sessions=int(sessions[number]),
            visits=int(counts.visits[number]),
            outcomes=_unpack_outcome_counts(counts.nodes[number]),
            left=int(left[number]),
        )
    leaving = np.bincount(counts.source, weights=counts.crossings, minlength=outside + 1)
    names = [node.node_id for node in columns.nodes]
    graph.add_edges_from(
        (
            START if source == outside else names[source],
            END if target == outside else names[target],
            {
                "sessions": sum(outcomes),
                "n": n,
                "median_ms": median_ms,
                "outcomes": tuple(outcomes),
                "probability": n / leaving[source].item(),
            },
        )
        for source, target, n, median_ms, outcomes in zip(
            counts.source.tolist(),
            counts.target.tolist(),
            counts.crossings.tolist(),
            counts.median.tolist(),
            counts.edges.tolist(),
            strict=True,
        )
    )
    return graph


def _make_network_walks(columns: GraphColumns, rows: Ints) -> tuple[Ints, Walks]:
    """Return the variants that the sessions of some rows took, and the sessions as walks."""
    trace = columns.trace[rows]
    variant = columns.trace_variant[trace]
    variants = np.flatnonzero(np.bincount(variant, minlength=len(columns.variant_path)))
    lengths = np.diff(columns.variant_start)[variants]
    walks = Walks(
        node_count=len(columns.nodes),
        nodes=columns.variant_nodes[list_ranges(columns.variant_start[variants], lengths)],
        starts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        variant=np.searchsorted(variants, variant),
        outcome=columns.outcome[rows],
        outcome_count=len(OUTCOMES),
        gaps=_list_gaps(columns, rows, trace),
    )
    return variants, walks


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


def _unpack_outcome_counts(values: Ints) -> Counts:
    success, error, abandoned = values.tolist()
    return success, error, abandoned
