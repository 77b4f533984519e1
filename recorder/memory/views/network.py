"""A graph in NetworkX, to ask what the structure says: loops, what no success gets round, the likeliest way.

A read view: made from a `GraphView` when it is asked for, stored nowhere. NetworkX is imported where it is
used, so that a service that draws no graph does not pay for it. Spec §2.6.
"""

from collections.abc import Iterator
from math import log
from typing import Any

from recorder.memory.queries.columns import OUTCOMES
from recorder.memory.views.graph_view import Counts, GraphView
from recorder.memory.views.labels import one_line

#: Ids of the two nodes that stand for where sessions begin and end.
START, END = "start", "end"


def to_networkx(view: GraphView) -> Any:
    """Return the view as a `networkx.DiGraph` of plain numbers, texts and booleans, with a start and an end.

    Node attributes: label, kind, sessions, visits, frequency, success, error, abandoned, left,
    recovery_point, new. Edge attributes: sessions, n, frequency, probability (of the crossings that leave
    the source), median_ms, success, error, abandoned. Graph attributes: workflow, graph_version, sessions.
    """
    import networkx as nx

    graph = nx.DiGraph(workflow=view.workflow, graph_version=view.version, sessions=view.sessions)
    for node in view.nodes:
        graph.add_node(
            node.node_id,
            label=one_line(node.label),
            kind=one_line(node.kind),
            sessions=node.sessions,
            visits=node.visits,
            frequency=view.share(node.sessions),
            **_by_outcome(node.outcomes),
            left=node.left,
            recovery_point=node.node_id in view.recovery,
            new=node.node_id in view.new,
        )
    _add_ends(graph, view)
    for edge in view.edges:
        source, target = edge.source or START, edge.target or END
        figures = _by_outcome(edge.outcomes)
        frequency = view.share(edge.sessions)
        graph.add_edge(
            source,
            target,
            sessions=edge.sessions,
            n=edge.n,
            frequency=frequency,
            median_ms=edge.median_ms,
            **figures,
        )
    for source in graph:
        leaving = sum(figures["n"] for _, _, figures in graph.out_edges(source, data=True))
        for _, _, figures in graph.out_edges(source, data=True):
            figures["probability"] = figures["n"] / leaving
    return graph


def loops(graph: Any) -> list[tuple[str, ...]]:
    """Return groups of nodes that sessions can go round in, the largest first, each sorted by id."""
    import networkx as nx

    groups = [
        tuple(sorted(component))
        for component in nx.strongly_connected_components(graph)
        if len(component) > 1 or any(graph.has_edge(node, node) for node in component)
    ]
    return sorted(groups, key=lambda component: (-len(component), component))


def success_dominators(graph: Any) -> list[str]:
    """Return the nodes on every way to success, from start to end, through which a recovery must lead.

    They are the dominators of the end in the graph of the edges that successful sessions took.
    """
    import networkx as nx

    succeeded = nx.DiGraph(
        (source, target)
        for source, target, figures in graph.edges(data=True)
        if figures["success"] > 0 and (source, target) != (START, END)
    )
    if START not in succeeded or END not in succeeded or not nx.has_path(succeeded, START, END):
        return []
    above = nx.immediate_dominators(succeeded, START)
    return list(_climb(above, END))[::-1]


def likeliest_path(graph: Any) -> list[str]:
    """Return the likeliest way from start to end, without the two; empty where there is none.

    The product of the edges' probabilities: sessions are assumed to choose independently at each node.
    """
    import networkx as nx

    def unlikeliness(source: str, target: str, figures: dict[str, Any]) -> float | None:
        # A session without steps goes no way; None hides its edge.
        return None if (source, target) == (START, END) else -log(figures["probability"])

    try:
        way: list[str] = nx.dijkstra_path(graph, START, END, weight=unlikeliness)
    except nx.NetworkXNoPath:
        return []
    return way[1:-1]


def _add_ends(graph: Any, view: GraphView) -> None:
    for name in (START, END):
        graph.add_node(
            name,
            label=name,
            kind=name,
            sessions=view.sessions,
            visits=view.sessions,
            frequency=view.share(view.sessions),
            **_by_outcome(view.outcomes),
            left=0,
            recovery_point=False,
            new=False,
        )


def _by_outcome(counts: Counts) -> dict[str, int]:
    return dict(zip(OUTCOMES, counts, strict=True))


def _climb(above: dict[str, str | None], node: str) -> Iterator[str]:
    """Yield the dominators of a node, the nearest first, without the start."""
    next_up = above.get(node)
    while next_up is not None and next_up != START:
        yield next_up
        following = above.get(next_up)
        next_up = None if following == next_up else following
