"""A graph as a picture: one SVG without scripts, styles or anything from elsewhere. Spec §2.6, contract §4.

The most common path is a straight line; wide is what many sessions did. The same view gives the same bytes.
Labels are text of recorded pages: `labels.one_line` takes out what is invisible, here it is escaped.
"""

from html import escape
from itertools import pairwise

from recorder.digest import sha256_of
from recorder.memory.drawing.edges import Curve, Point, curve_between, draw_edge, draw_figure
from recorder.memory.drawing.geometry import Box, Layout
from recorder.memory.drawing.layout import place
from recorder.memory.drawing.nodes import draw_node
from recorder.memory.drawing.style import (
    FONT,
    GREY_LINE,
    INK,
    MUTED,
    PAPER,
    legend,
    number,
    sessions_text,
    text,
)
from recorder.memory.views.graph_view import GraphView, ViewEdge
from recorder.memory.views.labels import one_line

_MARGIN = 28.0
_LEAST_WIDTH = 1080.0
_LEGEND_HEIGHT, _CAPTION_HEIGHT = 46.0, 34.0


def draw_graph(view: GraphView) -> str:
    """The picture of a view, as the text of an SVG file."""
    if not view.nodes:
        return _empty(view)
    layout = place(view)
    taken = [box for spot in layout.spots.values() for box in spot.boxes()]
    edges = [edge for edge in layout.view.edges if edge.source is not None and edge.target is not None]
    curves = {edge: _curve(layout, edge) for edge in edges}
    steps = frozenset(pairwise(layout.view.spine))
    figures = [draw_figure(layout, edge, curves[edge], taken, steps) for edge in edges]
    # What few took is drawn first: the common path lies over it.
    body = [draw_edge(layout, edge, curves[edge], steps) for edge in reversed(edges)]
    body += [draw_node(layout, spot) for spot in layout.spots.values()]
    body += figures
    points = [point for curve in curves.values() for point in (curve.at(step / 16) for step in range(17))]
    return _page(view, layout.view, "".join(body), _around(taken, points))


def _curve(layout: Layout, edge: ViewEdge) -> Curve:
    assert edge.source is not None and edge.target is not None
    return curve_between(layout, layout.spots[edge.source], layout.spots[edge.target])


def _around(boxes: list[Box], points: list[Point]) -> Box:
    return Box(
        min(*(box.left for box in boxes), *(x for x, _ in points), boxes[0].left),
        min(*(box.top for box in boxes), *(y - 14 for _, y in points), boxes[0].top),
        max(*(box.right for box in boxes), *(x for x, _ in points), boxes[0].right),
        max(*(box.bottom for box in boxes), *(y + 8 for _, y in points), boxes[0].bottom),
    )


def _page(view: GraphView, shown: GraphView, body: str, around: Box) -> str:
    """The body between legend and caption."""
    width = max(_LEAST_WIDTH, around.right - around.left + 2 * _MARGIN)
    height = _LEGEND_HEIGHT + around.bottom - around.top + _CAPTION_HEIGHT
    left = (width - around.right - around.left) / 2
    moved = f'<g transform="translate({number(left)} {number(_LEGEND_HEIGHT - around.top)})">{body}</g>'
    caption = text(_caption(view, shown), _MARGIN, height - 14, size=11, fill=MUTED)
    return _document(view, width, height, legend(_MARGIN, 24) + moved + caption)


def _empty(view: GraphView) -> str:
    """What is shown where no session has left a node yet."""
    width, height = _LEAST_WIDTH, 240.0
    if view.hidden:
        told = f"None of the {view.hidden} nodes has the share of sessions that was asked for."
    elif view.sessions:
        told = f"{sessions_text(view.sessions)} without any step so far."
    else:
        told = "It draws itself as sessions are sealed; or these filters let none through."
    dashed = f'stroke="{GREY_LINE}" stroke-width="2" stroke-dasharray="4 3"'
    centre = width / 2
    drawn = "".join(
        f'<circle cx="{number(centre + x)}" cy="92" r="13" fill="{PAPER}" {dashed}/>' for x in (-90, 0, 90)
    )
    drawn += "".join(f'<path d="M{number(centre + x)} 92h58" {dashed}/>' for x in (-74, 16))
    words = text("No paths to show yet", centre, 146, size=16, fill=INK, anchor="middle", weight=600)
    words += text(told, centre, 170, size=12, fill=MUTED, anchor="middle")
    words += text(_name(view), centre, height - 18, size=11, fill=MUTED, anchor="middle")
    return _document(view, width, height, drawn + words)


def _document(view: GraphView, width: float, height: float, body: str) -> str:
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    # Several pictures may stand in one page: the ids that screen readers follow must differ there.
    mark = sha256_of(body.encode())[:10]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-labelledby="title-{mark} desc-{mark}" font-family="{FONT}">'
        f'<title id="title-{mark}">Memory graph of {escape(one_line(view.workflow))}</title>'
        f'<desc id="desc-{mark}">{escape(_description(view))}</desc>'
        f'<rect width="100%" height="100%" rx="10" fill="{PAPER}"/>{body}</svg>\n'
    )


def _description(view: GraphView) -> str:
    """The picture in words, for those who do not see it."""
    labels = {node.node_id: one_line(node.label, 60) for node in view.nodes}
    success, error, abandoned = view.outcomes
    told = f"{sessions_text(view.sessions)}: {success} succeeded, {error} failed, {abandoned} were abandoned."
    if view.spine:
        told += f" The most common path: {', then '.join(labels[node_id] for node_id in view.spine)}."
    return told


def _caption(view: GraphView, shown: GraphView) -> str:
    total = len(view.nodes) + view.hidden
    nodes = f"{total} nodes" if total == len(shown.nodes) else f"{len(shown.nodes)} of {total} nodes shown"
    edges, drawn = (
        sum(edge.source is not None and edge.target is not None for edge in one.edges)
        for one in (view, shown)
    )
    told = [_name(view), sessions_text(view.sessions), nodes]
    if drawn != edges:
        told.append(f"{drawn} of {edges} edges shown, those of most sessions")
    return " · ".join(told)


def _name(view: GraphView) -> str:
    return f"{one_line(view.workflow)} · graph version {view.version}"
