"""Routes of drawn edges past labels and other nodes.

An edge keeps its usual curve where that crosses no label and no other node, else takes the flattest bow that
crosses none. Where there is none either, it goes round the nodes: the shortest way over the corners of what
is drawn around them (a visibility graph), nearer to them where nodes are close together.
"""

from collections.abc import Iterable
from math import hypot

import numpy as np

from recorder.lazy_property import lazy_property
from recorder.memory.graph.arrays import Bools, Floats
from recorder.memory.views.curves import (
    Curve,
    Point,
    bow_curve_between,
    compute_edge_width,
    curve_between,
    find_rim_point,
)
from recorder.memory.views.geometry import Box, DrawnNode, PictureGeometry
from recorder.memory.views.graph_view import ViewEdge

#: Heights of bows, in pixels, the flattest first.
_BOWS = (26.0, -26.0, 52.0, -52.0, 84.0, -84.0, 125.0, -125.0, 180.0, -180.0)
#: Lines stay so far from boxes, where there is no room less; corners to go round lie a little further away.
_CLEARANCE, _LEAST_CLEARANCE, _CORNER = 4.0, 1.0, 1.0
#: A turn costs as much as so many pixels; the line is rounded so far from it.
_TURN_COST, _ROUNDING = 14.0, 8.0


def route_edges(layout: PictureGeometry, edges: Iterable[ViewEdge]) -> dict[ViewEdge, Curve]:
    """Return the curves of edges between nodes."""
    router = _Router(layout)
    return {edge: router.route(edge) for edge in edges}


def find_crossed_boxes(points: Floats, boxes: Floats, margin: float = 0.0) -> Bools:
    """Return which boxes (left, top, right, bottom) a line through these points crosses.

    Args:
        points: the points of the line, one in each row.
        boxes: the boxes, one in each row.
        margin: boxes are larger by this much on each side.
    """
    crossed: Bools = np.any(_find_crossings(points[:-1], points[1:], boxes, margin), axis=0)
    return crossed


def _find_crossings(starts: Floats, ends: Floats, boxes: Floats, margin: float) -> Bools:
    """Return for each segment and box whether they meet (Liang and Barsky)."""
    enters, leaves = np.zeros((2, len(starts), len(boxes)))
    leaves += 1.0
    for axis in (0, 1):
        start, way = starts[:, axis, None], (ends - starts)[:, axis, None]
        way = np.where(way == 0, 1e-9, way)
        first = (boxes[:, axis] - margin - start) / way
        second = (boxes[:, axis + 2] + margin - start) / way
        np.maximum(enters, np.minimum(first, second), out=enters)
        np.minimum(leaves, np.maximum(first, second), out=leaves)
    meets: Bools = enters < leaves
    return meets


class _Router:
    """The nodes of a layout as boxes to go round.

    Args:
        layout: the layout.
        clearance: lines stay so far from boxes.
    """

    def __init__(self, layout: PictureGeometry, clearance: float = _CLEARANCE) -> None:
        self._layout = layout
        self._clearance = clearance
        drawn_nodes = list(layout.drawn_nodes.values())
        self._words = _make_edge_route_box_rows(box for drawn in drawn_nodes for box in drawn.word_boxes())
        self._circles = _make_edge_route_box_rows(drawn.round_box for drawn in drawn_nodes)
        self._number = {drawn.node.node_id: index for index, drawn in enumerate(drawn_nodes)}
        self._boxes = _make_edge_route_box_rows(
            box for drawn in drawn_nodes for box in (drawn.circle_box, *drawn.word_boxes())
        )
        self._distances: dict[int, Floats] = {}

    def route(self, edge: ViewEdge) -> Curve:
        """Return the curve of an edge."""
        assert edge.source is not None and edge.target is not None
        source, target = self._layout.drawn_nodes[edge.source], self._layout.drawn_nodes[edge.target]
        usual = curve_between(self._layout, source, target)
        if source is target or self._is_clear(usual, edge):
            return usual
        for height in _BOWS:
            bow = bow_curve_between(source, target, height, goes_back=usual.goes_back)
            if self._is_clear(bow, edge):
                return bow
        return self._go_round(source, target, usual) or self._narrow._go_round(source, target, usual) or usual

    @lazy_property
    def _narrow(self) -> "_Router":
        """Return a router for lines between nodes that are close to each other."""
        return _Router(self._layout, _LEAST_CLEARANCE)

    def _is_clear(self, curve: Curve, edge: ViewEdge) -> bool:
        """Return whether a curve crosses no words and no circle of another node."""
        margin, points = compute_edge_width(self._layout.view, edge) / 2 + 1, curve.sample()
        if find_crossed_boxes(points, self._words, margin).any():
            return False
        ends = [self._number[end] for end in (edge.source, edge.target) if end is not None]
        return not np.delete(find_crossed_boxes(points, self._circles), ends).any()

    @lazy_property
    def _corners(self) -> Floats:
        """Corners of the boxes, a little outside of them, that are in no other box."""
        distance = self._clearance + _CORNER
        left, top, right, bottom = self._boxes.T + np.array([[-1], [-1], [1], [1]]) * distance
        corners = np.concatenate(
            [np.stack(pair, axis=1) for pair in _list_box_corners(left, right, top, bottom)]
        )
        return corners[~_are_inside_boxes(corners, self._boxes, self._clearance)]

    def _measure_from(self, corner: int) -> Floats:
        """Return the lengths of straight lines from a corner to all corners; measured once, at first use."""
        if corner not in self._distances:
            self._distances[corner] = self._measure(self._corners[corner], self._boxes)
        return self._distances[corner]

    def _measure(self, point: Floats, boxes: Floats) -> Floats:
        """Return the lengths of the straight lines from a point to all corners, infinite past boxes."""
        starts = np.broadcast_to(point, self._corners.shape)
        is_blocked = _find_crossings(starts, self._corners, boxes, self._clearance).any(axis=1)
        lengths: Floats = np.where(is_blocked, np.inf, np.hypot(*(self._corners - point).T))
        return lengths

    def _go_round(self, source: DrawnNode, target: DrawnNode, usual: Curve) -> Curve | None:
        """Return the shortest line over corners; None where the two nodes are walled in."""
        ends = [np.array([drawn.x, drawn.y]) for drawn in (source, target)]
        away, towards = (
            self._measure(end, self._boxes[~self._is_around(drawn)])
            for end, drawn in zip(ends, (source, target), strict=True)
        )
        cost = away + _TURN_COST
        # A* search: what is left of the way is at least the straight line.
        left = np.hypot(*(self._corners - ends[1]).T)
        before = np.full(len(cost), -1, dtype=np.int64)
        is_open = np.ones(len(cost), dtype=np.bool_)
        best, last = np.inf, -1
        while True:
            estimates = np.where(is_open, cost + left, np.inf)
            here = int(np.argmin(estimates))
            if estimates[here] >= best:
                break
            is_open[here] = False
            if cost[here] + towards[here] < best:
                best, last = float(cost[here] + towards[here]), here
            further = cost[here] + self._measure_from(here) + _TURN_COST
            is_nearer = is_open & (further < cost)
            cost[is_nearer], before[is_nearer] = further[is_nearer], here
        if last < 0:
            return None
        turns: list[Point] = []
        while last >= 0:
            turns.append((float(self._corners[last, 0]), float(self._corners[last, 1])))
            last = int(before[last])
        return _round_corners(source, turns[::-1], target, goes_back=usual.goes_back)

    def _is_around(self, drawn: DrawnNode) -> Bools:
        """Return which boxes hold the centre of a node."""
        left, top, right, bottom = self._boxes.T
        is_around: Bools = (left < drawn.x) & (drawn.x < right) & (top < drawn.y) & (drawn.y < bottom)
        return is_around


def _make_edge_route_box_rows(boxes: Iterable[Box]) -> Floats:
    return np.array([(box.left, box.top, box.right, box.bottom) for box in boxes], dtype=np.float64)


def _list_box_corners(
    left: Floats, right: Floats, top: Floats, bottom: Floats
) -> Iterable[tuple[Floats, Floats]]:
    return ((x, y) for x in (left, right) for y in (top, bottom))


def _are_inside_boxes(points: Floats, boxes: Floats, margin: float) -> Bools:
    low, high = boxes[None, :, :2] - margin, boxes[None, :, 2:] + margin
    are_between = (points[:, None] > low) & (points[:, None] < high)
    inside: Bools = np.any(np.all(are_between, axis=2), axis=1)
    return inside


def _round_corners(source: DrawnNode, turns: list[Point], target: DrawnNode, *, goes_back: bool) -> Curve:
    """Return a line from rim to rim through these points, rounded at each of them."""
    start = find_rim_point(source, turns[0][0] - source.x, turns[0][1] - source.y)
    end = find_rim_point(target, turns[-1][0] - target.x, turns[-1][1] - target.y)
    stops = [start, *turns, end]
    points: list[Point] = [start]
    for before, here, after in zip(stops, stops[1:], stops[2:], strict=False):
        entry, leaving = (_find_edge_route_point_towards(here, other) for other in (before, after))
        points += [*_divide_edge_route_line(points[-1], entry), entry]
        points += [
            _find_edge_route_point_between(entry, here),
            _find_edge_route_point_between(leaving, here),
            leaving,
        ]
    points += [*_divide_edge_route_line(points[-1], end), end]
    return Curve(tuple(points), goes_back=goes_back)


def _find_edge_route_point_towards(here: Point, other: Point) -> Point:
    """Return the point on the way to another where the rounding of a corner begins."""
    length = hypot(other[0] - here[0], other[1] - here[1]) or 1.0
    share = min(_ROUNDING, length / 2) / length
    return here[0] + share * (other[0] - here[0]), here[1] + share * (other[1] - here[1])


def _find_edge_route_point_between(outer: Point, corner: Point) -> Point:
    return (outer[0] + 2 * corner[0]) / 3, (outer[1] + 2 * corner[1]) / 3


def _divide_edge_route_line(start: Point, end: Point) -> tuple[Point, Point]:
    """Return the points that divide a straight piece of a route into three equal parts."""
    return (
        ((2 * start[0] + end[0]) / 3, (2 * start[1] + end[1]) / 3),
        ((start[0] + 2 * end[0]) / 3, (start[1] + 2 * end[1]) / 3),
    )
