"""Curves of the edges of a drawn graph: straight on the common path, arcs over it, curves beside it.

What goes from left to right needs no arrow; what goes back has one, and is violet where it closes a loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, hypot, radians, sin

import numpy as np
import numpy.typing as npt

from recorder.memory.views.geometry import FIGURE_SIZE, Box, DrawnNode, PictureGeometry
from recorder.memory.views.graph_view import GraphView, ViewEdge
from recorder.memory.views.label_lines import estimate_text_width, one_line
from recorder.memory.views.svg_parts import (
    AMBER,
    AMBER_INK,
    BLUE,
    BLUE_LINE,
    GREY_LINE,
    MUTED,
    RED,
    RED_LINE,
    VIOLET,
    draw_text_line,
    draw_tooltip,
    format_percent,
    number,
)
from recorder.number_formats import format_duration

Point = tuple[float, float]
_AWAY = 2.0
#: Nodes whose centres lie closer together than this, sideways, stand one above the other.
_UPRIGHT = 40.0
#: Nearer ones have nothing between them that a curve along the row would cross.
_NEAR = 170.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A chain of cubic Bézier curves from the rim of one node to the rim of another."""

    #: The beginning, and for each piece two inner points and its end.
    points: tuple[Point, ...]
    goes_back: bool = False
    is_straight: bool = False

    def at(self, t: float) -> Point:
        """Return the point at 0 (beginning) to 1 (end)."""
        pieces = len(self.points) // 3
        piece = min(int(t * pieces), pieces - 1)
        t = t * pieces - piece
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        inner = self.points[3 * piece : 3 * piece + 4]
        x = sum(weight * point[0] for weight, point in zip(weights, inner, strict=True))
        y = sum(weight * point[1] for weight, point in zip(weights, inner, strict=True))
        return x, y

    def sample(self) -> npt.NDArray[np.float64]:
        """Return points all along it, close enough for straight lines between them."""
        t = np.linspace(0.0, 1.0, 25)[:, None]
        weights = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
        points = np.array(self.points)
        pieces = [weights @ points[first : first + 4] for first in range(0, len(points) - 1, 3)]
        return np.concatenate(pieces)

    @property
    def path(self) -> str:
        """The commands of its SVG path."""
        start, *rest = (f"{number(x)} {number(y)}" for x, y in self.points)
        pieces = (" ".join(rest[first : first + 3]) for first in range(0, len(rest), 3))
        return f"M{start} " + " ".join(f"C{piece}" for piece in pieces)


def curve_between(layout: PictureGeometry, source: DrawnNode, target: DrawnNode) -> Curve:
    """Return the curve of the edge between two positions."""
    if source is target:
        return _make_self_loop_curve(source)
    height = layout.arcs.get((source.node.node_id, target.node.node_id))
    if height is not None:
        return _bend_curve_over(source, target, height)
    if source.y == target.y:
        if source.x < target.x and _is_straight_line_free(layout, source, target):
            return _make_straight_curve(source, target)
        return _bend_curve_over(source, target, 30 + 0.05 * abs(target.x - source.x))
    if abs(target.x - source.x) < _UPRIGHT:
        return _bend_curve_between_rows(source, target)
    return _bend_curve_forward(source, target) if target.x > source.x else _bend_curve_back(source, target)


def arc_points(layout: PictureGeometry) -> Iterator[Point]:
    """Yield points all along the arcs above the line, where nothing else should be drawn."""
    for source, target in layout.arcs:
        curve = _bend_curve_over(
            layout.drawn_nodes[source], layout.drawn_nodes[target], layout.arcs[source, target]
        )
        yield from (curve.at(step / 32) for step in range(2, 31))


def find_rim_point(drawn: DrawnNode, x: float, y: float, away: float = _AWAY) -> Point:
    """Return the point at the rim of a node towards a direction."""
    length = hypot(x, y) or 1.0
    reach = drawn.radius + away + (4 if drawn.is_recovery else 0)
    return drawn.x + reach * x / length, drawn.y + reach * y / length


def _make_straight_curve(source: DrawnNode, target: DrawnNode) -> Curve:
    start, end = find_rim_point(source, 1, 0), find_rim_point(target, -1, 0)
    third = (end[0] - start[0]) / 3
    inner = ((start[0] + third, start[1]), (end[0] - third, end[1]))
    return Curve((start, *inner, end), is_straight=True)


def _bend_curve_over(source: DrawnNode, target: DrawnNode, height: float) -> Curve:
    """Return a curve up, over and down; its top is `height` above the nodes' centres."""
    right = 1 if target.x > source.x else -1
    start, end = find_rim_point(source, 0.5 * right, -0.86), find_rim_point(target, -0.5 * right, -0.86)
    rise = (height - 0.25 * (source.y - start[1])) / 0.75
    lean = 0.2 * (end[0] - start[0])
    inner = ((start[0] + lean, source.y - rise), (end[0] - lean, target.y - rise))
    return Curve((start, *inner, end), goes_back=right < 0)


def bow_curve_between(source: DrawnNode, target: DrawnNode, height: float, *, goes_back: bool) -> Curve:
    """Return a curve that leaves the straight line between two nodes by about this height, up if positive."""
    across, along = target.y - source.y, target.x - source.x
    length = hypot(along, across) or 1.0
    up = 1 if along >= 0 else -1
    # The middle of the curve moves by three quarters of the distance by which the inner points move.
    move_x, move_y = up * height * across / length / 0.75, -up * height * along / length / 0.75
    inner = [
        (source.x + share * along + move_x, source.y + share * across + move_y) for share in (0.25, 0.75)
    ]
    start = find_rim_point(source, inner[0][0] - source.x, inner[0][1] - source.y)
    end = find_rim_point(target, inner[1][0] - target.x, inner[1][1] - target.y)
    return Curve((start, *inner, end), goes_back=goes_back)


def _make_self_loop_curve(drawn: DrawnNode) -> Curve:
    start, end = find_rim_point(drawn, 0.6, -0.8), find_rim_point(drawn, -0.6, -0.8)
    inner = ((start[0] + 22, drawn.y - drawn.radius - 52), (end[0] - 22, drawn.y - drawn.radius - 52))
    return Curve((start, *inner, end), goes_back=True)


def _bend_curve_forward(source: DrawnNode, target: DrawnNode) -> Curve:
    down = 1 if target.y > source.y else -1
    steep = radians(62 if target.x - source.x < 70 else 32)
    start = find_rim_point(source, cos(steep), down * sin(steep))
    end = find_rim_point(target, -cos(steep), -down * sin(radians(20)))
    pull = max(0.5 * (end[0] - start[0]), 14.0)
    return Curve((start, (start[0] + pull, start[1]), (end[0] - pull, end[1]), end))


def _bend_curve_between_rows(source: DrawnNode, target: DrawnNode) -> Curve:
    """Draw a curve between rows: away from the line on the right, towards it on the left."""
    down = 1 if target.y > source.y else -1
    side = 1 if abs(target.y) > abs(source.y) else -1
    start, end = (
        find_rim_point(source, 0.55 * side, 0.84 * down),
        find_rim_point(target, 0.55 * side, -0.84 * down),
    )
    pull = 0.4 * (end[1] - start[1])
    inner = ((start[0] + 18 * side, start[1] + pull), (end[0] + 18 * side, end[1] - pull))
    return Curve((start, *inner, end), goes_back=side < 0)


def _bend_curve_back(source: DrawnNode, target: DrawnNode) -> Curve:
    """Return the curve to a node further left in another row, through the space between the rows."""
    down = 1 if target.y > source.y else -1
    far = source.x - target.x
    pull = min(max(0.45 * far, 26.0), 140.0)
    rise = 0.45 * abs(target.y - source.y)
    if source.column is None:
        end = find_rim_point(target, 0.6, -0.8 * down)
        last = (end[0] + 0.5 * pull, end[1] - down * rise)
        if down > 0 or far < _NEAR:
            # Beside its label, and beside the way by which one came.
            start = find_rim_point(source, -1, 0.3 * down)
            return Curve((start, (start[0] - pull, start[1]), last, end), goes_back=True)
        start = find_rim_point(source, -0.6, -0.8)
        return Curve((start, (start[0] - pull, start[1] - rise), last, end), goes_back=True)
    start = find_rim_point(source, -0.6, 0.8 * down)
    end = find_rim_point(target, 0.6, -0.8) if down > 0 else find_rim_point(target, 1, 0.3)
    last = (end[0] + pull, end[1] - (down * rise if down > 0 else 0.0))
    return Curve((start, (start[0] - 0.5 * pull, start[1] + down * rise), last, end), goes_back=True)


def _is_straight_line_free(layout: PictureGeometry, source: DrawnNode, target: DrawnNode) -> bool:
    """Return whether neither another node nor a stub of the two is on the straight line."""
    if (source.node.left and not source.is_left_below) or (target.entries and target.column is None):
        return False
    return not any(
        drawn.y == source.y and source.x < drawn.x < target.x for drawn in layout.drawn_nodes.values()
    )


#: Edges beside the common path that fewer sessions took carry no figure.
_LABELLED_SHARE = 0.03
#: Where along an edge its figure may stand, the best position first.
_SHARE_POSITIONS = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74)
Steps = frozenset[tuple[str | None, str | None]]


def draw_edge_curve(layout: PictureGeometry, edge: ViewEdge, curve: Curve, steps: Steps) -> str:
    """Draw the line of an edge, as wide as its share; hovering shows its figures.

    Args:
        layout: the positions of the nodes.
        edge: the edge.
        curve: its curve.
        steps: the edges of the common path.
    """
    colour = _choose_edge_curve_colour(layout, edge, (edge.source, edge.target) in steps)
    width = compute_edge_width(layout.view, edge)
    arrow = _draw_arrowhead(curve, colour, width) if curve.goes_back or is_back_edge(layout, edge) else ""
    return (
        f"<g>{draw_tooltip(_describe_edge_curve(layout, edge))}"
        f'<path d="{curve.path}" fill="none" stroke="{colour}" stroke-width="{number(width)}"/>{arrow}</g>'
    )


def compute_edge_width(view: GraphView, edge: ViewEdge) -> float:
    """Return the width of the line of an edge."""
    return 1 + 13.5 * view.share(edge.sessions)


def is_back_edge(layout: PictureGeometry, edge: ViewEdge) -> bool:
    """Return whether an edge of a loop leads back in the drawing, as at least one of each loop does."""
    if edge.source is None or edge.target is None:
        return False
    is_in_loop = any(edge.source in loop and edge.target in loop for loop in layout.view.loops)
    return is_in_loop and layout.drawn_nodes[edge.target].x <= layout.drawn_nodes[edge.source].x


def _choose_edge_curve_colour(layout: PictureGeometry, edge: ViewEdge, is_step: bool) -> str:
    if is_step:
        return BLUE_LINE
    if is_back_edge(layout, edge):
        return VIOLET
    _, error, abandoned = edge.outcomes
    if 2 * error > edge.sessions:
        return RED_LINE
    return AMBER if 2 * abandoned > edge.sessions else GREY_LINE


def _describe_edge_curve(layout: PictureGeometry, edge: ViewEdge) -> str:
    names = [
        "" if end is None else one_line(layout.drawn_nodes[end].node.label, 60)
        for end in (edge.source, edge.target)
    ]
    share = f"{format_percent(layout.view.share(edge.sessions))} of sessions ({edge.sessions:,})"
    return f"{names[0]} → {names[1]}: {share}, {edge.n:,} times, median {format_duration(edge.median_ms)}"


def _draw_arrowhead(curve: Curve, colour: str, width: float) -> str:
    """Draw a head at the end of a curve."""
    (x, y), (back_x, back_y) = curve.points[-1], curve.at(1 - 0.06 / (len(curve.points) // 3))
    length = ((x - back_x) ** 2 + (y - back_y) ** 2) ** 0.5 or 1.0
    ahead_x, ahead_y = (x - back_x) / length, (y - back_y) / length
    size = 6 + width
    corners = [
        (x - size * (ahead_x + side * 0.55 * ahead_y), y - size * (ahead_y - side * 0.55 * ahead_x))
        for side in (1, -1)
    ]
    path = f"M{number(x)} {number(y)}" + "".join(f"L{number(a)} {number(b)}" for a, b in corners) + "Z"
    return f'<path d="{path}" fill="{colour}"/>'


def draw_share(
    layout: PictureGeometry,
    edge: ViewEdge,
    curve: Curve,
    taken: list[Box],
    steps: Steps,
) -> str:
    """Draw the share of an edge where it hides nothing; nothing where there is no such position."""
    share = layout.view.share(edge.sessions)
    is_step = (edge.source, edge.target) in steps
    if share < _LABELLED_SHARE and not is_step:
        return ""
    share_text = format_percent(share)
    half = estimate_text_width(share_text, FIGURE_SIZE) / 2
    raised = 7 + compute_edge_width(layout.view, edge) / 2 if curve.is_straight else 0.0
    for t in _SHARE_POSITIONS:
        x, y = curve.at(t)
        box = Box(x - half, y - raised - 6, x + half, y - raised + 6)
        if not any(box.overlaps(other) for other in taken):
            taken.append(box)
            fill = _choose_curve_share_colour(layout, edge, is_step)
            return draw_text_line(
                share_text, x, y - raised + 3.7, size=FIGURE_SIZE, fill=fill, anchor="middle", halo=True
            )
    return ""


def _choose_curve_share_colour(layout: PictureGeometry, edge: ViewEdge, is_step: bool) -> str:
    colour = _choose_edge_curve_colour(layout, edge, is_step)
    return {BLUE_LINE: BLUE, RED_LINE: RED, AMBER: AMBER_INK, VIOLET: VIOLET}.get(colour, MUTED)
