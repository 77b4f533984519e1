"""Nodes of the picture: circles and marks, words, and the stubs of sessions that began or ended there."""

from recorder.memory.drawing.geometry import FIGURE_SIZE, LABEL_SIZE, LINE_HEIGHT, STUB_LENGTH, Layout, Spot
from recorder.memory.drawing.style import (
    AMBER_INK,
    BLUE,
    GOLD,
    GREEN,
    GREY,
    INK,
    MUTED,
    PAPER,
    PINK,
    RED,
    flag,
    left_text,
    number,
    percent_text,
    sessions_text,
    start_text,
    text,
    tooltip,
)
from recorder.memory.views.graph_view import GraphView, ViewNode
from recorder.memory.views.labels import one_line, text_width


def draw_node(layout: Layout, spot: Spot) -> str:
    """A node with all that stands around it; hovering tells its figures."""
    place = f'cx="{number(spot.x)}" cy="{number(spot.y)}"'
    colour = _node_colour(layout, spot)
    marks = [
        tooltip(_node_told(layout.view, spot.node)),
        f'<circle {place} r="{number(spot.radius)}" fill="{colour}" stroke="{PAPER}" stroke-width="2"/>',
    ]
    if spot.is_recovery:
        marks.append(
            f'<circle {place} r="{number(spot.radius + 4.5)}" fill="none" stroke="{GOLD}" '
            'stroke-width="2" stroke-dasharray="4 3"/>'
            + flag(spot.x + spot.radius * 0.75 + 6, spot.y - spot.radius - 4)
        )
    if spot.is_new:
        marks.append(_badge(spot))
    return f"<g>{''.join(marks)}{_words(spot)}{_stubs(spot)}</g>"


def _node_colour(layout: Layout, spot: Spot) -> str:
    node = spot.node
    succeeded = sum(
        edge.outcomes[0] for edge in layout.view.edges if edge.target is None and edge.source == node.node_id
    )
    if 2 * succeeded > node.sessions:
        return GREEN
    if spot.column is not None:
        return BLUE
    _, error, abandoned = node.outcomes
    if 2 * error > node.sessions:
        return RED
    return AMBER_INK if 2 * abandoned > node.sessions else GREY


def _node_told(view: GraphView, node: ViewNode) -> str:
    success, error, abandoned = node.outcomes
    marks = [
        mark for mark, ids in (("recovery point", view.recovery), ("new", view.new)) if node.node_id in ids
    ]
    return " · ".join(
        [
            one_line(node.label, 200),
            f"{sessions_text(node.sessions)} ({percent_text(view.share(node.sessions))})",
            f"{success} succeeded, {error} failed, {abandoned} abandoned",
            *([f"{left_text(node.left)} here"] if node.left else []),
            *marks,
            node.node_id,
        ]
    )


def _words(spot: Spot) -> str:
    """The label, the number of sessions, and on the common path who came and left here."""
    y = spot.y + spot.radius + 4 + LINE_HEIGHT
    lines = []
    for line in spot.lines:
        lines.append(text(line, spot.x, y, size=LABEL_SIZE, fill=INK, anchor="middle", halo=True, weight=500))
        y += LINE_HEIGHT
    lines.append(
        text(
            f"{spot.node.sessions:,}", spot.x, y - 1, size=FIGURE_SIZE, fill=MUTED, anchor="middle", halo=True
        )
    )
    for note in spot.notes:
        y += LINE_HEIGHT - 1
        is_exit = note.endswith("left")
        fill = AMBER_INK if is_exit else MUTED
        half = text_width(note, FIGURE_SIZE) / 2
        lines.append(_stub(spot.x - half - 14, y - 4.5, 16, fill, 1.6))
        lines.append(text(note, spot.x + 9, y - 1, size=FIGURE_SIZE, fill=fill, anchor="middle", halo=True))
    return "".join(lines)


def _stubs(spot: Spot) -> str:
    """Dashed arrows of those that ended here without success, and of those that began here."""
    made = ""
    node, reach = spot.node, spot.radius + 4
    if node.left and not spot.is_left_below:
        width = 1.4 + min(1.8, 0.1 * node.left)
        made += _stub(spot.x + reach, spot.y, STUB_LENGTH, AMBER_INK, width)
        x = spot.x + reach + STUB_LENGTH + 4
        made += text(left_text(node.left), x, spot.y + 3.7, size=FIGURE_SIZE, fill=AMBER_INK, halo=True)
    if spot.entries and spot.column is None:
        x = spot.x - reach - STUB_LENGTH
        made += _stub(x, spot.y, STUB_LENGTH, MUTED, 1.4)
        told = start_text(spot.entries)
        made += text(told, x - 4, spot.y + 3.7, size=FIGURE_SIZE, fill=MUTED, anchor="end", halo=True)
    return made


def _stub(x: float, y: float, length: float, colour: str, width: float) -> str:
    head = 3.0 + width / 2
    line = f"M{number(x)} {number(y)}h{number(length - 2 * head + 1)}"
    tip = f"M{number(x + length)} {number(y)}l{number(-2 * head)} {number(-head)}v{number(2 * head)}z"
    return (
        f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="{number(width)}" '
        'stroke-dasharray="3 2"/>'
        f'<path d="{tip}" fill="{colour}"/>'
    )


def _badge(spot: Spot) -> str:
    y = spot.y - spot.radius - 14
    return (
        f'<rect x="{number(spot.x - 16)}" y="{number(y - 8)}" width="32" height="16" rx="8" fill="{PINK}"/>'
        + text("new", spot.x, y + 3.5, size=10.5, fill=PAPER, anchor="middle")
    )
