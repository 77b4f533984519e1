"""Layout of a drawn graph: the common path on one line, the other nodes above and below it.

Pure arithmetic in pixels, the line at y = 0; the same view gives the same positions. A layered layout whose
layers are the nodes of the common path: another node is put between those it comes from and goes to, in the
nearest row that has room for its label.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import sqrt

from recorder.memory.views.curves import arc_points
from recorder.memory.views.geometry import LABEL_SIZE, Box, DrawnNode, PictureGeometry
from recorder.memory.views.graph_view import GraphView, ViewNode, most_supported_view
from recorder.memory.views.label_lines import break_label_into_lines

_SMALLEST, _LARGEST = 5.0, 19.5
_LABEL_WIDTH = 118.0
_GAP, _LABEL_GAP = 112.0, 18.0
#: Distance of the first row from what lies on the line, and of the rows from each other.
_FIRST_ROW, _ROW = 62.0, 98.0
_ROWS = 12
#: Room between nodes, in which an edge can pass.
_ROOM = 12.0
#: Columns by which a node stands behind the one it comes from, if it leads nowhere further.
_BEHIND = 0.7
#: What it costs, in pixels moved aside, to stand a row further away, on the other side, or out of line.
_ROW_COST, _SIDE_COST, _LINE_COST = 80.0, 45.0, 50.0
#: Entries are drawn where at least this share of a node's sessions begin.
_ENTRY_SHARE = 0.1


def lay_out_graph(view: GraphView) -> PictureGeometry:
    """Give every node its position; of large graphs only the nodes and edges of most sessions."""
    shown = most_supported_view(view)
    order = list(dict.fromkeys(shown.spine)) or [node.node_id for node in shown.nodes[:1]]
    column_of = {node_id: column for column, node_id in enumerate(order)}
    wanted = _choose_node_columns(shown, column_of)
    drawn_nodes = {
        node.node_id: _make_drawn_node(shown, node, column_of, last=len(order) - 1) for node in shown.nodes
    }
    centres = _compute_centres([drawn_nodes[node_id] for node_id in order], wanted)
    for node_id, x in zip(order, centres, strict=True):
        drawn_nodes[node_id] = replace(drawn_nodes[node_id], x=x)
    layout = PictureGeometry(shown, {node_id: drawn_nodes[node_id] for node_id in order})
    layout.arcs = _compute_arc_heights(layout)
    rows = _LayoutRows(layout, wanted, centres)
    ids = [node.node_id for node in shown.nodes if node.node_id not in column_of]
    for node_id in sorted(ids, key=lambda key: (-drawn_nodes[key].node.sessions, wanted[key], key)):
        layout.drawn_nodes[node_id] = rows.put(drawn_nodes[node_id])
    return layout


def _make_drawn_node(
    view: GraphView, node: ViewNode, column_of: Mapping[str, int], *, last: int
) -> DrawnNode:
    column = column_of.get(node.node_id)
    starts = sum(edge.sessions for edge in view.edges if edge.source is None and edge.target == node.node_id)
    has_entries = starts >= _ENTRY_SHARE * node.sessions and column != 0
    return DrawnNode(
        node=node,
        x=0.0,
        y=0.0,
        radius=_SMALLEST + (_LARGEST - _SMALLEST) * sqrt(view.share(node.sessions)),
        lines=break_label_into_lines(node.label, _LABEL_WIDTH, LABEL_SIZE),
        column=column,
        entries=starts if has_entries else 0,
        is_recovery=node.node_id in view.recovery,
        is_new=node.node_id in view.new,
        is_required=node.node_id in view.required,
        has_loop=any(edge.source == edge.target == node.node_id for edge in view.edges),
        is_left_below=column is not None and column != last,
    )


def _choose_node_columns(view: GraphView, column_of: Mapping[str, int]) -> dict[str, float]:
    """Return the wanted position of each node along the common path, in columns."""
    coming: dict[str, dict[str, int]] = defaultdict(dict)
    going: dict[str, dict[str, int]] = defaultdict(dict)
    for edge in view.edges:
        if edge.source is not None and edge.target is not None and edge.source != edge.target:
            going[edge.source][edge.target] = edge.sessions
            coming[edge.target][edge.source] = edge.sessions
    wanted: dict[str, float] = {node_id: float(column) for node_id, column in column_of.items()}
    side_nodes = [node.node_id for node in view.nodes if node.node_id not in column_of]
    order = _order_side_nodes(side_nodes, set(wanted), coming, going)
    # A node hangs on those placed before it, so that nodes in a circle do not push each other along.
    rank = {node_id: index for index, node_id in enumerate([*column_of, *order])}
    for _ in range(6):
        for node_id in order:
            older = [
                {end: n for end, n in ends[node_id].items() if rank[end] < rank[node_id]}
                for ends in (coming, going)
            ]
            wanted[node_id] = _choose_column_between(
                older[0], older[1] if not older[0] else going[node_id], wanted
            )
    return _close_column_gaps(wanted)


def _close_column_gaps(wanted: Mapping[str, float]) -> dict[str, float]:
    """Return the same order with no two neighbours further apart than a column."""
    closed: dict[float, float] = {0.0: 0.0}
    positions = sorted({0.0, *wanted.values()})
    middle = positions.index(0.0)
    for before, column in pairwise(positions[middle:]):
        closed[column] = closed[before] + min(column - before, 1.0)
    for before, column in pairwise(positions[middle::-1]):
        closed[column] = closed[before] - min(before - column, 1.0)
    return {node_id: closed[column] for node_id, column in wanted.items()}


def _order_side_nodes(
    side_nodes: list[str],
    path_nodes: set[str],
    incoming: Mapping[str, Mapping[str, int]],
    outgoing: Mapping[str, Mapping[str, int]],
) -> list[str]:
    """Return the nodes beside the common path in the order in which they are placed.

    Next comes the node that most sessions take from or to the nodes placed by then.
    """
    order: list[str] = []
    placed = path_nodes.copy()
    waiting = side_nodes.copy()
    while waiting:
        ties = {
            node_id: sum(
                sessions
                for neighbour, sessions in (*incoming[node_id].items(), *outgoing[node_id].items())
                if neighbour in placed
            )
            for node_id in waiting
        }
        following = max(waiting, key=lambda node_id: (ties[node_id], node_id))
        waiting.remove(following)
        placed.add(following)
        order.append(following)
    return order


def _choose_column_between(
    coming: Mapping[str, int], going: Mapping[str, int], wanted: Mapping[str, float]
) -> float:
    """Return the column after the node most sessions come from and before the one most go on to."""
    before = _find_layout_column_of_most(coming, wanted)
    if before is None:
        after = _find_layout_column_of_most(going, wanted)
        return 0.0 if after is None else after - _BEHIND
    after = _find_layout_column_of_most(
        {end: n for end, n in going.items() if wanted.get(end, before) > before}, wanted
    )
    return before + (_BEHIND if after is None else min((after - before) / 2, 1.0))


def _find_layout_column_of_most(ends: Mapping[str, int], wanted: Mapping[str, float]) -> float | None:
    """Return the wanted column of the neighbour with most sessions, among those that have one."""
    known = [(n, end) for end, n in ends.items() if end in wanted]
    return wanted[max(known)[1]] if known else None


def _compute_centres(spine: list[DrawnNode], wanted: Mapping[str, float]) -> list[float]:
    """Return the centres of the common path's nodes, with room for labels and for nodes in gaps."""
    x, centres = 0.0, [0.0]
    for column, (here, following) in enumerate(pairwise(spine)):
        halves = [(drawn.boxes()[1].right - drawn.boxes()[1].left) / 2 for drawn in (here, following)]
        between = sum(column < position < column + 1 for position in wanted.values())
        x += max(_GAP, sum(halves) + _LABEL_GAP) + min(18.0 * between, 72.0)
        centres.append(x)
    return centres


def _compute_arc_heights(layout: PictureGeometry) -> dict[tuple[str, str], float]:
    """Return heights of the edges between path nodes that do not follow each other; short ones are inside."""
    columns = {
        node_id: drawn.column for node_id, drawn in layout.drawn_nodes.items() if drawn.column is not None
    }
    spans = [
        (min(ends), max(ends), edge.source, edge.target)
        for edge in layout.view.edges
        if edge.source in columns and edge.target in columns and edge.source != edge.target
        for ends in [(columns[edge.source], columns[edge.target])]
        if ends[1] - ends[0] != 1
    ]
    levels: dict[tuple[str, str], tuple[int, int, int]] = {}
    for first, last, source, target in sorted(spans, key=lambda span: (span[1] - span[0], *span)):
        inside = [level for low, high, level in levels.values() if first <= low and high <= last]
        levels[source, target] = (first, last, 1 + max(inside, default=0))
    positions = {drawn.column: drawn.x for drawn in layout.drawn_nodes.values()}
    return {
        ends: 16 + 24 * level + 0.08 * min(positions[last] - positions[first], 500)
        for ends, (first, last, level) in levels.items()
    }


def _find_detours(view: GraphView, wanted: Mapping[str, float]) -> set[str]:
    """Return nodes from which most go on towards a node further along the common path."""
    onward = set(view.spine)
    for node in sorted(view.nodes, key=lambda node: -wanted[node.node_id]):
        leaving = [edge for edge in view.edges if edge.source == node.node_id and edge.target is not None]
        ahead = sum(
            edge.sessions
            for edge in leaving
            if edge.target in onward and wanted[edge.target] > wanted[node.node_id]
        )
        if 2 * ahead > sum(edge.sessions for edge in leaving):
            onward.add(node.node_id)
    return onward


class _LayoutRows:
    """The rows beside the common path, filled node by node."""

    def __init__(self, layout: PictureGeometry, wanted: Mapping[str, float], centres: list[float]) -> None:
        self._layout, self._wanted, self._centres = layout, wanted, centres
        self._taken = [box for drawn in layout.drawn_nodes.values() for box in drawn.boxes()]
        for x, y in arc_points(layout):
            self._taken.append(Box(x - 5, y - 5, x + 5, y + 5))
        self._depth = max((box.bottom for box in self._taken), default=0.0)
        self._row_of: dict[str, int] = {}
        self._detours = _find_detours(layout.view, wanted)

    def put(self, drawn: DrawnNode) -> DrawnNode:
        """Return the node at the position of least cost."""
        wish = self._convert_column_to_pixels(self._wanted[drawn.node.node_id])
        side, in_line = self._side(drawn), self._list_neighbour_rows(drawn)
        best: tuple[float, DrawnNode] | None = None
        for row in sorted(range(-_ROWS, _ROWS + 1), key=lambda row: (abs(row), row * side < 0)):
            if row == 0:
                continue
            cost = _ROW_COST * (abs(row) - 1) + (_SIDE_COST if row * side < 0 else 0)
            cost += _LINE_COST if in_line and row not in in_line else 0
            if best is not None and cost >= best[0]:
                continue
            x, y = self._free(drawn, wish, row)
            if best is None or cost + abs(x - wish) < best[0]:
                best = (cost + abs(x - wish), replace(drawn, x=x, y=y))
                self._row_of[drawn.node.node_id] = row
        assert best is not None
        self._taken += best[1].boxes()
        return best[1]

    def _side(self, drawn: DrawnNode) -> int:
        """Return -1 (above) for detours that return further on, 1 (below) for those that lead back or end."""
        return -1 if drawn.node.node_id in self._detours else 1

    def _list_neighbour_rows(self, drawn: DrawnNode) -> set[int]:
        ends = {
            end
            for edge in self._layout.view.edges
            if drawn.node.node_id in (edge.source, edge.target)
            for end in (edge.source, edge.target)
        }
        return {self._row_of[end] for end in ends if end in self._row_of}

    def _convert_column_to_pixels(self, column: float) -> float:
        centres = self._centres
        last = len(centres) - 1
        if column >= last:
            return centres[-1] + (column - last) * _GAP
        if column <= 0:
            return centres[0] + column * _GAP
        left = int(column)
        return centres[left] + (column - left) * (centres[left + 1] - centres[left])

    def _free(self, drawn: DrawnNode, wish: float, row: int) -> tuple[float, float]:
        """Return the free position of a row nearest to the node's wish."""
        y = self._depth + _FIRST_ROW + (row - 1) * _ROW if row > 0 else -_FIRST_ROW - 48 + (row + 1) * _ROW
        blocked = []
        for area in replace(drawn, x=0.0, y=y).boxes():
            for box in self._taken:
                if area.top - _ROOM < box.bottom and box.top < area.bottom + _ROOM:
                    blocked.append((box.left - area.right - _ROOM, box.right - area.left + _ROOM))
        return _find_free_position(wish, blocked), y


def _find_free_position(wish: float, blocked: list[tuple[float, float]]) -> float:
    """Return the number nearest to `wish` that is inside no interval."""
    low = high = wish
    for start, end in sorted(blocked):
        if start < high < end:
            high = end
    for start, end in sorted(blocked, key=lambda interval: -interval[1]):
        if start < low < end:
            low = start
    return high if high - wish <= wish - low else low
