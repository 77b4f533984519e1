"""View of a graph for pictures and interchange formats: nodes and edges with exact figures. Spec §2.6, §4.2.

Pure: the network of chosen sessions without what few of them did. Nothing of it is stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from recorder.memory.graph.arrays import Bools
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.views.network_cache import network_of
from recorder.memory.views.networkx_graph import END, START, Counts, Network


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
    #: Share of the crossings that leave the source.
    probability: float


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
    #: What the structure of the whole graph says, as far as the nodes are shown (`Network`).
    loops: tuple[tuple[str, ...], ...] = ()
    required: tuple[str, ...] = ()
    likeliest: tuple[str, ...] = ()
    #: Nodes that are left out here, for their small share or for want of room.
    hidden: int = 0
    #: Whether nodes and edges are left out for want of room.
    is_truncated: bool = False
    #: Sessions that have no step, and are on no path.
    without_steps: int = 0
    #: Sessions whose way the graph had no room for; they are on no path either.
    beyond_limit: int = 0
    #: True if the graph had no room for a way or a state of these sessions.
    is_limited: bool = False

    def share(self, sessions: int) -> float:
        """Return a number of sessions as a fraction of all in this view."""
        return sessions / self.sessions if self.sessions else 0.0


def graph_view_of(
    columns: GraphColumns,
    chosen: Bools,
    *,
    workflow: str,
    min_frequency: float = 0.0,
    recovery: frozenset[str] = frozenset(),
    new: frozenset[str] = frozenset(),
) -> GraphView:
    """Return the graph of the chosen sessions.

    Loops, required nodes and the likeliest path are those of all its nodes and edges; of them, what is left
    out here is not listed.

    Args:
        columns: the graph's columns.
        chosen: which rows of `columns` to take; the others count nowhere.
        workflow: name of the workflow.
        min_frequency: nodes and edges of fewer sessions than this share are left out; the others keep theirs.
        recovery: ids of nodes to mark as recovery points.
        new: ids of nodes to mark as new.
    """
    network = network_of(columns, chosen)
    least = min_frequency * network.sessions
    nodes = _list_view_nodes(network, least)
    shown = frozenset(node.node_id for node in nodes)

    def only_shown(node_ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(node_id for node_id in node_ids if node_id in shown)

    return GraphView(
        workflow=workflow,
        version=columns.version,
        sessions=network.sessions,
        outcomes=network.outcomes,
        nodes=nodes,
        edges=_list_view_edges(network, least, shown),
        spine=only_shown(network.spine),
        recovery=recovery & shown,
        new=new & shown,
        loops=list_shown_loops(network.loops, shown),
        required=only_shown(network.required_nodes),
        likeliest=only_shown(network.likeliest_path),
        hidden=network.node_count - len(nodes),
        without_steps=network.without_steps,
        beyond_limit=network.beyond_limit,
        is_limited=network.is_limited,
    )


def _list_view_nodes(network: Network, least: float) -> tuple[ViewNode, ...]:
    """Return the nodes of at least so many sessions."""
    nodes = [
        ViewNode(node_id, **figures)
        for node_id, figures in network.graph.nodes(data=True)
        if figures and figures["sessions"] >= least
    ]
    return tuple(sorted(nodes, key=lambda node: (-node.sessions, node.node_id)))


def _list_view_edges(network: Network, least: float, shown: frozenset[str]) -> tuple[ViewEdge, ...]:
    """Return the edges of at least so many sessions between shown nodes, and to and from the outside."""
    node_ids = shown | {START, END}
    edges = [
        ViewEdge(None if source == START else source, None if target == END else target, **figures)
        for source, target, figures in network.graph.edges(data=True)
        if figures["sessions"] >= least and source in node_ids and target in node_ids
    ]
    edges.sort(key=lambda edge: (-edge.sessions, -edge.n, edge.source or "", edge.target or ""))
    return tuple(edges)


def list_shown_loops(loops: Sequence[tuple[str, ...]], shown: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """Return the shown part of each loop; a loop of which one node of several is left is none."""
    parts = ((loop, tuple(node_id for node_id in loop if node_id in shown)) for loop in loops)
    cycles = [part for loop, part in parts if part and (len(part) > 1 or len(loop) == 1)]
    return tuple(sorted(cycles, key=lambda part: (-len(part), part)))


#: What a picture shows at most; edges, too, only as far as an eye can follow them.
MAX_NODES = 40
_EDGES, _EDGES_A_NODE = 12, 2


def most_supported_view(view: GraphView, nodes: int = MAX_NODES, edges: int | None = None) -> GraphView:
    """Return the view with its common path and then its nodes and edges of most sessions.

    Args:
        view: the view.
        nodes: how many nodes are kept.
        edges: how many edges between nodes; by default two for each node and a few.
    """
    on_spine = frozenset(view.spine)
    ranked = sorted(view.nodes, key=lambda node: (node.node_id not in on_spine, -node.sessions, node.node_id))
    node_ids = {node.node_id for node in ranked[:nodes]}
    inner = [edge for edge in view.edges if edge.source in node_ids and edge.target in node_ids]
    steps = frozenset(pairwise(view.spine))
    strongest: dict[tuple[str, str | None], ViewEdge] = {}
    for edge in inner:
        strongest.setdefault(("from", edge.source), edge)
        strongest.setdefault(("to", edge.target), edge)
    needed = frozenset(strongest.values())
    inner.sort(key=lambda edge: ((edge.source, edge.target) not in steps, edge not in needed))
    chosen = frozenset(inner[: _EDGES + _EDGES_A_NODE * len(node_ids) if edges is None else edges])
    outer = {
        edge
        for edge in view.edges
        if _is_view_edge_to_outside(edge) and {edge.source, edge.target} - {None} <= node_ids
    }
    return replace(
        view,
        nodes=tuple(node for node in view.nodes if node.node_id in node_ids),
        edges=tuple(edge for edge in view.edges if edge in chosen or edge in outer),
        spine=tuple(node_id for node_id in view.spine if node_id in node_ids),
        required=tuple(node_id for node_id in view.required if node_id in node_ids),
        hidden=view.hidden + len(view.nodes) - len(node_ids),
    )


def _is_view_edge_to_outside(edge: ViewEdge) -> bool:
    return edge.source is None or edge.target is None
