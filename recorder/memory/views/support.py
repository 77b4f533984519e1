"""Less of a large graph: the common path first, then what most sessions went through."""

from dataclasses import replace
from itertools import pairwise

from recorder.memory.views.view import GraphView, ViewEdge

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
