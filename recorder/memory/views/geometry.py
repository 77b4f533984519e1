"""SVG parts of the graph's picture (colours, texts, legend), and positions of its nodes."""

from dataclasses import dataclass, field
from html import escape

from recorder.memory.views.graph_view import GraphView, ViewNode
from recorder.memory.views.labels import text_width

INK, MUTED, PAPER = "#1b1d28", "#6f6d66", "#ffffff"
BLUE, BLUE_LINE = "#2446c8", "#4560d0"
GREY, GREY_LINE = "#8a91a8", "#c9cbd8"
RED, RED_LINE = "#c0332b", "#dd8079"
AMBER, AMBER_INK = "#dba04a", "#a86b0a"
GREEN, GOLD, PINK, VIOLET = "#1f7f4c", "#d69a17", "#d14b93", "#7a4fc4"
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"


def number(value: float) -> str:
    """Return a coordinate with one decimal, written in one way only."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def draw_text_line(
    words: str,
    x: float,
    y: float,
    *,
    size: float,
    fill: str,
    anchor: str = "start",
    weight: int = 400,
    halo: bool = False,
) -> str:
    """Draw a line of text; with a halo it stays readable where it crosses a line."""
    attributes = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}" fill="{fill}"'
    attributes += "" if anchor == "start" else f' text-anchor="{anchor}"'
    attributes += "" if weight == 400 else f' font-weight="{weight}"'
    if halo:
        attributes += f' stroke="{PAPER}" stroke-width="3.5" stroke-linejoin="round" paint-order="stroke"'
    return f"<text {attributes}>{escape(words)}</text>"


def flag(x: float, y: float) -> str:
    """Draw a flag with its pole at x and its foot at y; drawn, since few fonts have one."""
    return (
        f'<path d="M{number(x)} {number(y)}v-11" stroke="{GOLD}" stroke-width="1.6" fill="none"/>'
        f'<path d="M{number(x)} {number(y - 11)}h8l-2.2 2.9l2.2 2.9h-8z" fill="{GOLD}"/>'
    )


def tooltip(words: str) -> str:
    """Return the tooltip of the group that this begins."""
    return f"<title>{escape(words)}</title>"


def sessions_text(count: int) -> str:
    """Return a number of sessions as text."""
    return "1 session" if count == 1 else f"{count:,} sessions"


def left_text(count: int) -> str:
    """Return the text for sessions that ended without success."""
    return f"{count:,} left"


def start_text(count: int) -> str:
    """Return the text for sessions that began elsewhere than most."""
    return f"{count:,} start"


def percent_text(share: float) -> str:
    """Return a share as a whole percentage; what is more than nothing never reads 0%."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def duration_text(ms: int) -> str:
    """Return a time of `ms` milliseconds in the unit that suits it."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


_SIZE = 11.5
_LINES = (
    ("most common path", BLUE),
    ("other", GREY),
    ("mostly error", RED),
    ("mostly abandoned", AMBER),
    ("back in a loop", VIOLET),
)
_REQUIRED = "required for success"
_SIZES = "width = share of sessions · number under a node = sessions"


def legend(x: float, y: float) -> str:
    """Draw the legend from `x` on, its first line centred at height `y`."""
    made, left = "", x
    for meaning, colour in _LINES:
        made += f'<path d="M{number(x)} {number(y)}h9" stroke="{colour}" stroke-width="2.6"/>'
        made += draw_text_line(meaning, x + 13, y + 4, size=_SIZE, fill=INK)
        x += 31 + text_width(meaning, _SIZE)
    made += f'<circle cx="{number(x + 4)}" cy="{number(y)}" r="4.5" fill="{GREEN}"/>'
    made += draw_text_line("success", x + 13, y + 4, size=_SIZE, fill=INK)
    x += 31 + text_width("success", _SIZE)
    ring = f'fill="{PAPER}" stroke="{INK}" stroke-width="2"'
    made += f'<circle cx="{number(x + 4)}" cy="{number(y)}" r="4.5" {ring}/>'
    made += draw_text_line(_REQUIRED, x + 15, y + 4, size=_SIZE, fill=INK)
    x += 33 + text_width(_REQUIRED, _SIZE)
    made += flag(x, y + 6) + draw_text_line("recovery point", x + 13, y + 4, size=_SIZE, fill=INK)
    return made + draw_text_line(_SIZES, left, y + 24, size=_SIZE, fill=MUTED)


LABEL_SIZE, FIGURE_SIZE = 12.0, 10.5
LINE_HEIGHT = 14.0
STUB_LENGTH = 30.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that something takes up."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Return whether the two share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True, slots=True)
class Spot:
    """A node in its place."""

    node: ViewNode
    x: float
    y: float
    radius: float
    lines: tuple[str, ...]
    #: Place on the common path; None beside it.
    column: int | None
    #: Sessions that begin here and are not shown otherwise.
    entries: int
    is_recovery: bool
    is_new: bool
    is_required: bool
    has_loop: bool
    #: Whether those that left are told below the node, since the path goes on to its right.
    is_left_below: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes below the number of sessions on the common path."""
        if self.column is None:
            return ()
        entries = (start_text(self.entries),) if self.entries else ()
        return (*entries, left_text(self.node.left)) if self._has_left_note else entries

    @property
    def _has_left_note(self) -> bool:
        return self.is_left_below and self.node.left > 0

    def boxes(self) -> tuple[Box, ...]:
        """Return its boxes: the circle with all around it, the text below, the stubs at its sides."""
        circle, (left, right) = self.circle_box, self._stub_lengths
        return Box(circle.left - left, circle.top, circle.right + right, circle.bottom), self._text_box

    @property
    def round_box(self) -> Box:
        """The box of the circle alone."""
        return Box(self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius)

    @property
    def circle_box(self) -> Box:
        """The box of the circle and the marks above it."""
        reach = self.radius + 5
        top = reach + (40 if self.has_loop else 24 if self.is_new else 18 if self.is_recovery else 0)
        return Box(self.x - reach, self.y - top, self.x + reach, self.y + reach)

    def word_boxes(self) -> tuple[Box, ...]:
        """Return the boxes of its words: the label and the notes below it, the notes beside it, the badge."""
        reach, (left, right) = self.radius + 5, self._stub_lengths
        made = [self._text_box]
        if left:
            made.append(Box(self.x - reach - left, self.y - 7, self.x - reach, self.y + 7))
        if right:
            made.append(Box(self.x + reach, self.y - 7, self.x + reach + right, self.y + 7))
        if self.is_new:
            made.append(Box(self.x - 16, self.y - self.radius - 22, self.x + 16, self.y - self.radius - 6))
        return tuple(made)

    @property
    def _text_box(self) -> Box:
        reach = self.radius + 5
        below = len(self.lines) * LINE_HEIGHT + (1 + len(self.notes)) * (LINE_HEIGHT - 1) + 6
        width = max(text_width(line, LABEL_SIZE) for line in self.lines) / 2 + 3
        width = max(width, *(text_width(note, FIGURE_SIZE) / 2 + 14 for note in self.notes), reach)
        return Box(self.x - width, self.y + reach - 4, self.x + width, self.y + reach + below)

    @property
    def _stub_lengths(self) -> tuple[float, float]:
        """Lengths of the stubs at its left and right, with their notes."""
        left = right = 0.0
        if self.node.left and not self.is_left_below:
            right = STUB_LENGTH + 8 + text_width(left_text(self.node.left), FIGURE_SIZE)
        if self.entries and self.column is None:
            left = STUB_LENGTH + 8 + text_width(start_text(self.entries), FIGURE_SIZE)
        return left, right


@dataclass(slots=True)
class Layout:
    """A view cut to what is shown, and the places of its nodes by id."""

    view: GraphView
    spots: dict[str, Spot]
    #: Heights of the arcs above the line, by source and target.
    arcs: dict[tuple[str, str], float] = field(default_factory=dict)
