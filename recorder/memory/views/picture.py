"""SVG document of a memory graph: page, caption, and each node with its marks and words."""

from html import escape
from itertools import pairwise

from recorder.hashing import compute_sha256
from recorder.memory.views.curves import Point, draw_edge_curve, draw_share
from recorder.memory.views.geometry import (
    FIGURE_SIZE,
    LABEL_SIZE,
    LINE_HEIGHT,
    STUB_LENGTH,
    Box,
    DrawnNode,
    PictureGeometry,
)
from recorder.memory.views.graph_view import MAX_NODES, GraphView, ViewNode
from recorder.memory.views.label_lines import estimate_text_width, one_line
from recorder.memory.views.layout import lay_out_graph
from recorder.memory.views.routing import route_edges
from recorder.memory.views.svg_parts import (
    AMBER_INK,
    BLUE,
    FONT,
    GOLD,
    GREEN,
    GREY,
    GREY_LINE,
    INK,
    MUTED,
    PAPER,
    PINK,
    RED,
    draw_flag,
    draw_legend,
    draw_text_line,
    draw_tooltip,
    format_ended_count,
    format_percent,
    format_started_count,
    format_svg_session_count,
    number,
)


def draw_node(layout: PictureGeometry, drawn: DrawnNode) -> str:
    """Draw a node with all that is around it; hovering shows its figures."""
    centre = f'cx="{number(drawn.x)}" cy="{number(drawn.y)}"'
    colour = _choose_node_colour(layout, drawn)
    marks = [
        draw_tooltip(_make_node_tooltip(layout.view, drawn.node)),
        f'<circle {centre} r="{number(drawn.radius)}" fill="{colour}" stroke="{PAPER}" stroke-width="2"/>',
    ]
    if drawn.is_required:
        marks.append(
            f'<circle {centre} r="{number(drawn.radius + 1.5)}" fill="none" stroke="{INK}" '
            'stroke-width="2.5"/>'
        )
    if drawn.is_recovery:
        marks.append(
            f'<circle {centre} r="{number(drawn.radius + 4.5)}" fill="none" stroke="{GOLD}" '
            'stroke-width="2" stroke-dasharray="4 3"/>'
            + draw_flag(drawn.x + drawn.radius * 0.75 + 6, drawn.y - drawn.radius - 4)
        )
    if drawn.is_new:
        marks.append(_draw_picture_badge(drawn))
    return f"<g>{''.join(marks)}{_draw_words(drawn)}{_draw_end_and_start_arrows(drawn)}</g>"


def _choose_node_colour(layout: PictureGeometry, drawn: DrawnNode) -> str:
    node = drawn.node
    succeeded = sum(
        edge.outcomes[0] for edge in layout.view.edges if edge.target is None and edge.source == node.node_id
    )
    if 2 * succeeded > node.sessions:
        return GREEN
    if drawn.column is not None:
        return BLUE
    _, error, abandoned = node.outcomes
    if 2 * error > node.sessions:
        return RED
    return AMBER_INK if 2 * abandoned > node.sessions else GREY


def _make_node_tooltip(view: GraphView, node: ViewNode) -> str:
    success, error, abandoned = node.outcomes
    marks = [
        mark
        for mark, ids in (
            ("required for success", view.required),
            ("recovery point", view.recovery),
            ("new", view.new),
        )
        if node.node_id in ids
    ]
    return " · ".join(
        [
            one_line(node.label, 200),
            f"{format_svg_session_count(node.sessions)} ({format_percent(view.share(node.sessions))})",
            f"{success} succeeded, {error} failed, {abandoned} abandoned",
            *([f"{format_ended_count(node.left)} here"] if node.left else []),
            *marks,
            node.node_id,
        ]
    )


def _draw_words(drawn: DrawnNode) -> str:
    """Draw the label, the number of sessions, and on the common path those that began and left here."""
    y = drawn.y + drawn.radius + 4 + LINE_HEIGHT
    lines = []
    for line in drawn.lines:
        lines.append(
            draw_text_line(
                line, drawn.x, y, size=LABEL_SIZE, fill=INK, anchor="middle", halo=True, weight=500
            )
        )
        y += LINE_HEIGHT
    lines.append(
        draw_text_line(
            f"{drawn.node.sessions:,}",
            drawn.x,
            y - 1,
            size=FIGURE_SIZE,
            fill=MUTED,
            anchor="middle",
            halo=True,
        )
    )
    for note in drawn.notes:
        y += LINE_HEIGHT - 1
        is_exit = note.endswith("left")
        fill = AMBER_INK if is_exit else MUTED
        half = estimate_text_width(note, FIGURE_SIZE) / 2
        lines.append(_draw_dashed_arrow(drawn.x - half - 14, y - 4.5, 16, fill, 1.6))
        lines.append(
            draw_text_line(note, drawn.x + 9, y - 1, size=FIGURE_SIZE, fill=fill, anchor="middle", halo=True)
        )
    return "".join(lines)


def _draw_end_and_start_arrows(drawn: DrawnNode) -> str:
    """Draw dashed arrows for sessions that ended here without success, and for those that began here."""
    made = ""
    node, reach = drawn.node, drawn.radius + 4
    if node.left and not drawn.is_left_below:
        width = 1.4 + min(1.8, 0.1 * node.left)
        made += _draw_dashed_arrow(drawn.x + reach, drawn.y, STUB_LENGTH, AMBER_INK, width)
        x = drawn.x + reach + STUB_LENGTH + 4
        made += draw_text_line(
            format_ended_count(node.left), x, drawn.y + 3.7, size=FIGURE_SIZE, fill=AMBER_INK, halo=True
        )
    if drawn.entries and drawn.column is None:
        x = drawn.x - reach - STUB_LENGTH
        made += _draw_dashed_arrow(x, drawn.y, STUB_LENGTH, MUTED, 1.4)
        start = format_started_count(drawn.entries)
        made += draw_text_line(
            start, x - 4, drawn.y + 3.7, size=FIGURE_SIZE, fill=MUTED, anchor="end", halo=True
        )
    return made


def _draw_dashed_arrow(x: float, y: float, length: float, colour: str, width: float) -> str:
    head = 3.0 + width / 2
    line = f"M{number(x)} {number(y)}h{number(length - 2 * head + 1)}"
    tip = f"M{number(x + length)} {number(y)}l{number(-2 * head)} {number(-head)}v{number(2 * head)}z"
    return (
        f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="{number(width)}" '
        'stroke-dasharray="3 2"/>'
        f'<path d="{tip}" fill="{colour}"/>'
    )


def _draw_picture_badge(drawn: DrawnNode) -> str:
    y = drawn.y - drawn.radius - 14
    return (
        f'<rect x="{number(drawn.x - 16)}" y="{number(y - 8)}" width="32" height="16" rx="8" fill="{PINK}"/>'
        + draw_text_line("new", drawn.x, y + 3.5, size=10.5, fill=PAPER, anchor="middle")
    )


_MARGIN = 28.0
_LEAST_WIDTH = 1080.0
_LEGEND_HEIGHT, _CAPTION_HEIGHT = 64.0, 34.0


def draw_graph(view: GraphView) -> str:
    """Return the picture of a view, as the text of an SVG file."""
    if not view.nodes:
        return _draw_notice(view)
    layout = lay_out_graph(view)
    boxes = [box for drawn in layout.drawn_nodes.values() for box in drawn.boxes()]
    edges = [edge for edge in layout.view.edges if edge.source is not None and edge.target is not None]
    curves = route_edges(layout, edges)
    steps = frozenset(pairwise(layout.view.spine))
    figures = [draw_share(layout, edge, curves[edge], boxes, steps) for edge in edges]
    # Rare edges are drawn first, so that the common path covers them.
    body = [draw_edge_curve(layout, edge, curves[edge], steps) for edge in reversed(edges)]
    body += [draw_node(layout, drawn) for drawn in layout.drawn_nodes.values()]
    body += figures
    points: list[Point] = [(x, y) for curve in curves.values() for x, y in curve.sample().tolist()]
    return _draw_page(view, layout.view, "".join(body), _compute_drawing_bounds(boxes, points))


def _compute_drawing_bounds(boxes: list[Box], points: list[Point]) -> Box:
    return Box(
        min(*(box.left for box in boxes), *(x for x, _ in points), boxes[0].left),
        min(*(box.top for box in boxes), *(y - 14 for _, y in points), boxes[0].top),
        max(*(box.right for box in boxes), *(x for x, _ in points), boxes[0].right),
        max(*(box.bottom for box in boxes), *(y + 8 for _, y in points), boxes[0].bottom),
    )


def _draw_page(view: GraphView, shown: GraphView, body: str, around: Box) -> str:
    """Draw the body between legend and caption."""
    width = max(_LEAST_WIDTH, around.right - around.left + 2 * _MARGIN)
    height = _LEGEND_HEIGHT + around.bottom - around.top + _CAPTION_HEIGHT
    left = (width - around.right - around.left) / 2
    moved = f'<g transform="translate({number(left)} {number(_LEGEND_HEIGHT - around.top)})">{body}</g>'
    caption = draw_text_line(_make_caption(view, shown), _MARGIN, height - 14, size=11, fill=MUTED)
    return _format_svg_document(view, width, height, draw_legend(_MARGIN, 24) + moved + caption)


def _draw_notice(view: GraphView) -> str:
    """Draw the notice for a graph without nodes."""
    width, height = _LEAST_WIDTH, 240.0
    if view.hidden:
        notice = f"None of the {view.hidden} nodes has the share of sessions that was asked for."
    elif view.sessions:
        notice = f"{format_svg_session_count(view.sessions)} without any step so far."
    else:
        notice = "It draws itself as sessions are sealed; or these filters let none through."
    dashed = f'stroke="{GREY_LINE}" stroke-width="2" stroke-dasharray="4 3"'
    centre = width / 2
    drawn = "".join(
        f'<circle cx="{number(centre + x)}" cy="92" r="13" fill="{PAPER}" {dashed}/>' for x in (-90, 0, 90)
    )
    drawn += "".join(f'<path d="M{number(centre + x)} 92h58" {dashed}/>' for x in (-74, 16))
    words = draw_text_line(
        "No paths to show yet", centre, 146, size=16, fill=INK, anchor="middle", weight=600
    )
    words += draw_text_line(notice, centre, 170, size=12, fill=MUTED, anchor="middle")
    words += draw_text_line(
        _name_picture_graph(view), centre, height - 18, size=11, fill=MUTED, anchor="middle"
    )
    return _format_svg_document(view, width, height, drawn + words)


def _format_svg_document(view: GraphView, width: float, height: float, body: str) -> str:
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    # Several pictures may stand in one page: the ids that screen readers follow must differ there.
    mark = compute_sha256(body.encode())[:10]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-labelledby="title-{mark} desc-{mark}" font-family="{FONT}">'
        f'<title id="title-{mark}">Memory graph of {escape(one_line(view.workflow))}</title>'
        f'<desc id="desc-{mark}">{escape(_describe_picture(view))}</desc>'
        f'<rect width="100%" height="100%" rx="10" fill="{PAPER}"/>{body}</svg>\n'
    )


def _describe_picture(view: GraphView) -> str:
    """Return the picture in words, for those who do not see it."""
    labels = {node.node_id: one_line(node.label, 60) for node in view.nodes}
    success, error, abandoned = view.outcomes
    sessions = format_svg_session_count(view.sessions)
    summary = f"{sessions}: {success} succeeded, {error} failed, {abandoned} were abandoned."
    if view.spine:
        # It may go round in a loop thousands of times.
        steps = [labels[node_id] for node_id in view.spine[:MAX_NODES]]
        steps += [f"{len(view.spine) - MAX_NODES:,} more"] if len(view.spine) > MAX_NODES else []
        summary += f" The most common path: {', then '.join(steps)}."
    return summary


def _make_caption(view: GraphView, shown: GraphView) -> str:
    """Return the line under the picture of a graph: workflow, sessions, nodes and edges shown."""
    total = len(view.nodes) + view.hidden
    nodes = f"{total} nodes" if total == len(shown.nodes) else f"{len(shown.nodes)} of {total} nodes shown"
    edges, drawn = (
        sum(edge.source is not None and edge.target is not None for edge in shown_view.edges)
        for shown_view in (view, shown)
    )
    parts = [_name_picture_graph(view), format_svg_session_count(view.sessions), nodes]
    if drawn != edges:
        parts.append(f"{drawn} of {edges} edges shown, those of most sessions")
    return " · ".join(parts)


def _name_picture_graph(view: GraphView) -> str:
    return f"{one_line(view.workflow)} · graph version {view.version}"
