"""A graph in the formats that other programs read: JSON, GraphML, Mermaid, DOT, SVG. Contract §4 (graph).

Labels are text of recorded pages. Every format escapes them so that they stay labels; all but JSON, which
keeps them whole, show them on one line and without what is invisible (`label_lines`).
"""

import re
from collections.abc import Callable, Collection
from typing import Any, Literal, get_args

import orjson

from recorder import limits
from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.views.graph_view import GraphView, ViewNode, most_supported_view
from recorder.memory.views.label_lines import one_line
from recorder.memory.views.networkx_graph import END, START, Counts
from recorder.memory.views.picture import draw_graph
from recorder.memory.views.svg_parts import AMBER_INK, BLUE, GREY, RED, format_percent
from recorder.memory.views.view_limit import limit_graph_view

GraphFormat = Literal["json", "graphml", "mermaid", "dot", "svg"]
FORMATS: tuple[GraphFormat, ...] = get_args(GraphFormat)
_LIMITED_FORMATS: tuple[GraphFormat, ...] = ("json", "graphml", "dot")
#: Mermaid's own layout becomes unreadable beyond, and its renderers refuse long texts.
MERMAID_EDGES = 60
_MERMAID_LABEL = 60
_MARKS = re.compile(r"(?![./-](?<=[A-Za-z0-9].)(?=[A-Za-z0-9]))[!-+\--/:-@\[-`{-~]")
_COLOURS = {"spine": BLUE, "error": RED, "abandoned": AMBER_INK, None: GREY}


def format_graph_view(view: GraphView, format: GraphFormat) -> tuple[bytes, str]:
    """Return the view in a format, and the format's media type; the same view gives the same bytes.

    JSON, GraphML and DOT have the nodes and edges that a page of JSON has room for.
    """
    writer, media_type = _WRITERS[format]
    if format in _LIMITED_FORMATS:
        view = limit_graph_view(view, most_bytes=limits.PAGE_BYTES)
    return writer(view), media_type


def format_graph_as_json(view: GraphView) -> bytes:
    """Return node-link JSON with every figure; `networkx.node_link_graph` reads it.

    `{workflow, graph_version, sessions, sessions_without_steps, sessions_beyond_limit, limited, outcomes,
    spine, hidden_nodes, truncated, loops, required_nodes, likeliest_path, directed, multigraph, nodes,
    edges}`; the structure is that of the whole graph, as far as its nodes are shown.
    A node is `{id, label, kind, sessions, visits, frequency, outcomes, left, recovery_point, new}`, an edge
    `{source, target, sessions, n, frequency, median_ms, outcomes}`. Two nodes more, `start` and `end`, are
    where sessions begin and end. Outcomes are numbers of sessions, frequencies shares of all sessions.
    """
    ends = [
        {
            "id": name,
            "label": name,
            "kind": name,
            "sessions": view.sessions,
            "visits": view.sessions,
            "frequency": view.share(view.sessions),
            "outcomes": _format_counts_by_outcome(view.outcomes),
            "left": 0,
            "recovery_point": False,
            "new": False,
        }
        for name in (START, END)
    ]
    nodes = [
        {
            "id": node.node_id,
            "label": _replace_surrogates(node.label),
            "kind": _replace_surrogates(node.kind),
            "sessions": node.sessions,
            "visits": node.visits,
            "frequency": view.share(node.sessions),
            "outcomes": _format_counts_by_outcome(node.outcomes),
            "left": node.left,
            "recovery_point": node.node_id in view.recovery,
            "new": node.node_id in view.new,
        }
        for node in view.nodes
    ]
    edges = [
        {
            "source": edge.source or START,
            "target": edge.target or END,
            "sessions": edge.sessions,
            "n": edge.n,
            "frequency": view.share(edge.sessions),
            "median_ms": edge.median_ms,
            "outcomes": _format_counts_by_outcome(edge.outcomes),
        }
        for edge in view.edges
    ]
    return orjson.dumps(
        {
            "workflow": view.workflow,
            "graph_version": view.version,
            "sessions": view.sessions,
            "sessions_without_steps": view.without_steps,
            "sessions_beyond_limit": view.beyond_limit,
            "limited": view.is_limited,
            "outcomes": _format_counts_by_outcome(view.outcomes),
            "spine": list(view.spine),
            "hidden_nodes": view.hidden,
            "truncated": view.is_truncated,
            "loops": view.loops,
            "required_nodes": view.required,
            "likeliest_path": view.likeliest,
            "directed": True,
            "multigraph": False,
            "nodes": [*ends, *nodes] if view.sessions else nodes,
            "edges": edges,
        }
    )


def format_graph_as_graphml(view: GraphView) -> bytes:
    """Return GraphML with plain numbers, texts and booleans as attributes; `start` and `end` are nodes.

    Node attributes: label, kind, sessions, visits, frequency, success, error, abandoned, left,
    recovery_point, new, required. Edge attributes: sessions, n, frequency, probability (of the crossings that
    leave the source), median_ms, success, error, abandoned. Graph attributes: workflow, graph_version,
    sessions.
    """
    import networkx as nx

    graph = nx.DiGraph(workflow=one_line(view.workflow), graph_version=view.version, sessions=view.sessions)
    required = frozenset(view.required)
    for node in view.nodes:
        graph.add_node(
            node.node_id,
            label=one_line(node.label),
            kind=one_line(node.kind),
            sessions=node.sessions,
            visits=node.visits,
            frequency=view.share(node.sessions),
            **_format_counts_by_outcome(node.outcomes),
            left=node.left,
            recovery_point=node.node_id in view.recovery,
            new=node.node_id in view.new,
            required=node.node_id in required,
        )
    for name in (START, END):
        graph.add_node(
            name,
            label=name,
            kind=name,
            sessions=view.sessions,
            visits=view.sessions,
            frequency=view.share(view.sessions),
            **_format_counts_by_outcome(view.outcomes),
            left=0,
            recovery_point=False,
            new=False,
            required=False,
        )
    for edge in view.edges:
        graph.add_edge(
            edge.source or START,
            edge.target or END,
            sessions=edge.sessions,
            n=edge.n,
            frequency=view.share(edge.sessions),
            probability=edge.probability,
            median_ms=edge.median_ms,
            **_format_counts_by_outcome(edge.outcomes),
        )
    text = "\n".join(nx.generate_graphml(graph))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def format_graph_as_mermaid(view: GraphView) -> bytes:
    """Return a Mermaid flowchart of at most 60 edges, those of most sessions, without start and end."""
    shown = most_supported_view(view, edges=MERMAID_EDGES)
    edges = [edge for edge in shown.edges if edge.source is not None and edge.target is not None]
    ends = {end for edge in edges for end in (edge.source, edge.target)}
    nodes = [node for node in shown.nodes if node.node_id in ends or len(shown.nodes) == 1]
    names = {node.node_id: f"n{number}" for number, node in enumerate(nodes)}
    lines = ["flowchart LR"]
    all_edges = sum(edge.source is not None and edge.target is not None for edge in view.edges)
    if len(edges) < all_edges:
        lines.append(f"  %% {len(edges)} of {all_edges} edges shown, those of most sessions")
    for node in nodes:
        label = _mermaid_text(one_line(node.label, _MERMAID_LABEL))
        lines.append(f'  {names[node.node_id]}["{label}<br/>{node.sessions}"]')
    if not nodes:
        lines.append('  none["No paths to show yet"]')
    for edge in edges:
        assert edge.source is not None and edge.target is not None
        share = format_percent(view.share(edge.sessions)).replace("<", "#lt;")
        lines.append(f'  {names[edge.source]} -->|"{share}"| {names[edge.target]}')
    for style, members in _list_mermaid_styles(shown, names):
        lines.append(f"  classDef {style} fill:{_COLOURS[style]},color:#fff,stroke:none")
        lines.append(f"  class {','.join(members)} {style}")
    return ("\n".join(lines) + "\n").encode()


def format_graph_as_dot(view: GraphView) -> bytes:
    """Return a Graphviz digraph with every node and edge, start and end included."""
    head = f"digraph {_quote_dot(one_line(view.workflow))} {{"
    lines = [head, "  rankdir=LR;", '  node [shape=box, style="rounded,filled", fillcolor=white];']
    if view.sessions:
        lines += [f"  {name} [shape=circle, label={_quote_dot(name)}];" for name in (START, END)]
    on_spine = frozenset(view.spine)
    for node in view.nodes:
        colour = _COLOURS[_choose_node_style(on_spine, node)]
        label = _quote_dot(one_line(node.label), f"\\n{node.sessions}")
        lines.append(f'  {_quote_dot(node.node_id)} [label={label}, color="{colour}"];')
    for edge in view.edges:
        share = view.share(edge.sessions)
        source, target = edge.source or START, edge.target or END
        figures = f'label="{format_percent(share)}", penwidth={1 + 9 * share:.2f}, weight={edge.sessions}'
        lines.append(f"  {_quote_dot(source)} -> {_quote_dot(target)} [{figures}];")
    return ("\n".join([*lines, "}"]) + "\n").encode()


def format_graph_as_svg(view: GraphView) -> bytes:
    """Return the picture of `draw_graph`."""
    return draw_graph(view).encode()


_WRITERS: dict[GraphFormat, tuple[Callable[[GraphView], bytes], str]] = {
    "json": (format_graph_as_json, "application/json"),
    "graphml": (format_graph_as_graphml, "application/graphml+xml"),
    "mermaid": (format_graph_as_mermaid, "text/vnd.mermaid; charset=utf-8"),
    "dot": (format_graph_as_dot, "text/vnd.graphviz; charset=utf-8"),
    "svg": (format_graph_as_svg, "image/svg+xml"),
}


def _replace_surrogates(label: str) -> str:
    """Return a label or a kind without halves of surrogate pairs, which no UTF-8 can carry."""
    return label.encode("utf-8", "replace").decode()


def _mermaid_text(label: str) -> str:
    """Return a label with every mark as an entity code: Mermaid reads quotes, Markdown and HTML, even quoted.

    Single marks inside a word, as in `E-mail` or an address, mean nothing and stay.
    """
    return _MARKS.sub(lambda mark: f"#{ord(mark[0])};", label)


def _list_mermaid_styles(view: GraphView, names: dict[str, str]) -> list[tuple[str, list[str]]]:
    members: dict[str, list[str]] = {}
    on_spine = frozenset(view.spine)
    for node in view.nodes:
        style = _choose_node_style(on_spine, node)
        if style is not None and node.node_id in names:
            members.setdefault(style, []).append(names[node.node_id])
    return sorted(members.items())


def _choose_node_style(on_spine: Collection[str], node: ViewNode) -> str | None:
    """Return the style of the common path or of mostly bad endings; None for other nodes."""
    if node.node_id in on_spine:
        return "spine"
    bad = zip(OUTCOMES[1:], node.outcomes[1:], strict=True)
    return next((name for name, count in bad if 2 * count > node.sessions), None)


def _quote_dot(text: str, escaped_rest: str = "") -> str:
    """Return a DOT string; backslashes and entities, which labels would interpret, are written twice."""
    safe = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{safe}{escaped_rest}"'


def _format_counts_by_outcome(counts: Counts) -> dict[str, Any]:
    return dict(zip(OUTCOMES, counts, strict=True))
