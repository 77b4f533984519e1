"""Edges of the picture: their lines, the heads of those that lead back, and their shares."""

from recorder.memory.drawing.curves import Curve
from recorder.memory.drawing.figures import duration_text, percent_text
from recorder.memory.drawing.palette import (
    AMBER,
    AMBER_INK,
    BLUE,
    BLUE_LINE,
    GREY_LINE,
    MUTED,
    RED,
    RED_LINE,
    number,
    text,
    tooltip,
)
from recorder.memory.drawing.spots import FIGURE_SIZE, Box, Layout
from recorder.memory.views.labels import one_line, text_width
from recorder.memory.views.view import ViewEdge

#: Edges beside the common path that fewer sessions took carry no figure.
_TOLD_SHARE = 0.03
#: Where along an edge its figure may stand, the best place first.
_PLACES = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74)
Steps = frozenset[tuple[str | None, str | None]]


def draw_edge(layout: Layout, edge: ViewEdge, curve: Curve, steps: Steps) -> str:
    """The line of an edge, as wide as its share; hovering tells its figures.

    Args:
        steps: the edges of the common path.
    """
    share = layout.view.share(edge.sessions)
    colour = _edge_colour(edge, (edge.source, edge.target) in steps)
    width = 1 + 13.5 * share
    path = "M{} C{} {} {}".format(*(f"{number(x)} {number(y)}" for x, y in curve.points))
    arrow = _arrow(curve, colour, width) if curve.goes_back else ""
    return (
        f"<g>{tooltip(_edge_told(layout, edge))}"
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{number(width)}"/>{arrow}</g>'
    )


def _edge_colour(edge: ViewEdge, is_step: bool) -> str:
    if is_step:
        return BLUE_LINE
    _, error, abandoned = edge.outcomes
    if 2 * error > edge.sessions:
        return RED_LINE
    return AMBER if 2 * abandoned > edge.sessions else GREY_LINE


def _edge_told(layout: Layout, edge: ViewEdge) -> str:
    names = [
        "" if end is None else one_line(layout.spots[end].node.label, 60)
        for end in (edge.source, edge.target)
    ]
    share = f"{percent_text(layout.view.share(edge.sessions))} of sessions ({edge.sessions:,})"
    return f"{names[0]} → {names[1]}: {share}, {edge.n:,} times, median {duration_text(edge.median_ms)}"


def _arrow(curve: Curve, colour: str, width: float) -> str:
    """A head at the end of a curve."""
    (x, y), (back_x, back_y) = curve.points[3], curve.at(0.94)
    length = ((x - back_x) ** 2 + (y - back_y) ** 2) ** 0.5 or 1.0
    ahead_x, ahead_y = (x - back_x) / length, (y - back_y) / length
    size = 6 + width
    corners = [
        (x - size * (ahead_x + side * 0.55 * ahead_y), y - size * (ahead_y - side * 0.55 * ahead_x))
        for side in (1, -1)
    ]
    path = f"M{number(x)} {number(y)}" + "".join(f"L{number(a)} {number(b)}" for a, b in corners) + "Z"
    return f'<path d="{path}" fill="{colour}"/>'


def draw_figure(
    layout: Layout,
    edge: ViewEdge,
    curve: Curve,
    taken: list[Box],
    steps: Steps,
) -> str:
    """The share of an edge, where it hides nothing; left out where there is no such place."""
    share = layout.view.share(edge.sessions)
    is_step = (edge.source, edge.target) in steps
    if share < _TOLD_SHARE and not is_step:
        return ""
    told = percent_text(share)
    half = text_width(told, FIGURE_SIZE) / 2
    raised = 7 + (1 + 13.5 * share) / 2 if curve.is_straight else 0.0
    for t in _PLACES:
        x, y = curve.at(t)
        box = Box(x - half, y - raised - 6, x + half, y - raised + 6)
        if not any(box.overlaps(other) for other in taken):
            taken.append(box)
            fill = _figure_colour(edge, is_step)
            return text(told, x, y - raised + 3.7, size=FIGURE_SIZE, fill=fill, anchor="middle", halo=True)
    return ""


def _figure_colour(edge: ViewEdge, is_step: bool) -> str:
    return {BLUE_LINE: BLUE, RED_LINE: RED, AMBER: AMBER_INK}.get(_edge_colour(edge, is_step), MUTED)
