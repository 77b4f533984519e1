"""Geometry of a graph's picture: boxes, nodes with their positions, and the boxes of their texts."""

from dataclasses import dataclass, field

from recorder.memory.views.graph_view import GraphView, ViewNode
from recorder.memory.views.label_lines import estimate_text_width
from recorder.memory.views.svg_parts import format_ended_count, format_started_count

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
class DrawnNode:
    """A node at its position."""

    node: ViewNode
    x: float
    y: float
    radius: float
    lines: tuple[str, ...]
    #: Position on the common path; None beside it.
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
        entries = (format_started_count(self.entries),) if self.entries else ()
        return (*entries, format_ended_count(self.node.left)) if self._has_left_note else entries

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
        width = max(estimate_text_width(line, LABEL_SIZE) for line in self.lines) / 2 + 3
        width = max(width, *(estimate_text_width(note, FIGURE_SIZE) / 2 + 14 for note in self.notes), reach)
        return Box(self.x - width, self.y + reach - 4, self.x + width, self.y + reach + below)

    @property
    def _stub_lengths(self) -> tuple[float, float]:
        """Lengths of the stubs at its left and right, with their notes."""
        left = right = 0.0
        if self.node.left and not self.is_left_below:
            right = STUB_LENGTH + 8 + estimate_text_width(format_ended_count(self.node.left), FIGURE_SIZE)
        if self.entries and self.column is None:
            left = STUB_LENGTH + 8 + estimate_text_width(format_started_count(self.entries), FIGURE_SIZE)
        return left, right


@dataclass(slots=True)
class PictureGeometry:
    """A view cut to what is shown, and the positions of its nodes by id."""

    view: GraphView
    drawn_nodes: dict[str, DrawnNode]
    #: Heights of the arcs above the line, by source and target.
    arcs: dict[tuple[str, str], float] = field(default_factory=dict)
