"""Limit of the bytes of a view: fewer nodes, each with all its figures. Contract §4.

A graph may have tens of thousands of nodes and 200,000 edges, which are 40 MB of JSON and more of GraphML.
"""

from collections import Counter
from dataclasses import replace
from itertools import accumulate, chain

import orjson

from recorder.memory.views.graph_view import GraphView, ViewNode, list_shown_loops

#: Most bytes of the members of a node beside its texts, of an edge, and of an id in a list.
_NODE_BYTES, _EDGE_BYTES, _ID_BYTES = 250, 230, 30


def limit_graph_view(view: GraphView, *, most_bytes: int) -> GraphView:
    """Return the view with as many nodes as have room, and the edges between them and to the outside.

    The first are those of the most common path, then those of most sessions; one is always kept.

    Args:
        view: the view.
        most_bytes: most bytes of its nodes, edges and lists of ids as JSON.
    """
    if not view.nodes:
        return view
    mentions = Counter(chain(view.spine, view.required, view.likeliest, *view.loops))
    on_spine = frozenset(view.spine)
    ranked = sorted(view.nodes, key=lambda node: node.node_id not in on_spine)
    ranks = {node.node_id: rank for rank, node in enumerate(ranked)}
    sizes = [_estimate_node_bytes(node) + _ID_BYTES * mentions[node.node_id] for node in ranked]
    for edge in view.edges:
        sizes[max(ranks.get(end, 0) for end in (edge.source or "", edge.target or ""))] += _EDGE_BYTES
    kept = max(1, sum(size <= most_bytes for size in accumulate(sizes)))
    if kept >= len(ranked):
        return view
    shown = frozenset(node.node_id for node in ranked[:kept])

    def only_shown(node_ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(node_id for node_id in node_ids if node_id in shown)

    return replace(
        view,
        nodes=tuple(node for node in view.nodes if node.node_id in shown),
        edges=tuple(edge for edge in view.edges if {edge.source, edge.target} - {None} <= shown),
        spine=only_shown(view.spine),
        recovery=view.recovery & shown,
        new=view.new & shown,
        loops=list_shown_loops(view.loops, shown),
        required=only_shown(view.required),
        likeliest=only_shown(view.likeliest),
        hidden=view.hidden + len(ranked) - kept,
        is_truncated=True,
    )


def _estimate_node_bytes(node: ViewNode) -> int:
    """Return the bytes of a node as JSON, or a few more."""
    texts = (node.label, node.kind)
    return _NODE_BYTES + sum(len(orjson.dumps(text.encode("utf-8", "replace").decode())) for text in texts)
