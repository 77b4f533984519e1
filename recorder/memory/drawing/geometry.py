"""The places of a drawn graph: nodes with the room that they, their labels and their stubs take up."""

from dataclasses import dataclass, field

from recorder.memory.drawing.style import left_text, start_text
from recorder.memory.views.graph_view import GraphView, ViewNode
from recorder.memory.views.labels import text_width

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
        """Whether the two share more than an edge."""
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
    has_loop: bool
    #: Whether those that left are told below the node, since the path goes on to its right.
    is_left_below: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands below the number of sessions on the common path."""
        if self.column is None:
            return ()
        entries = (start_text(self.entries),) if self.entries else ()
        return (*entries, left_text(self.node.left)) if self._has_left_note else entries

    @property
    def _has_left_note(self) -> bool:
        return self.is_left_below and self.node.left > 0

    def boxes(self) -> tuple[Box, ...]:
        """What it takes up: the circle with all around it, the text below, the stubs at its sides."""
        reach = self.radius + 5
        top = reach + (40 if self.has_loop else 24 if self.is_new else 18 if self.is_recovery else 0)
        below = len(self.lines) * LINE_HEIGHT + (1 + len(self.notes)) * (LINE_HEIGHT - 1) + 6
        width = max(text_width(line, LABEL_SIZE) for line in self.lines) / 2 + 3
        width = max(width, *(text_width(note, FIGURE_SIZE) / 2 + 14 for note in self.notes), reach)
        right = left = reach
        if self.node.left and not self.is_left_below:
            right += STUB_LENGTH + 8 + text_width(left_text(self.node.left), FIGURE_SIZE)
        if self.entries and self.column is None:
            left += STUB_LENGTH + text_width(start_text(self.entries), FIGURE_SIZE)
        circle = Box(self.x - left, self.y - top, self.x + right, self.y + reach)
        text = Box(self.x - width, self.y + reach - 4, self.x + width, self.y + reach + below)
        return circle, text


@dataclass(slots=True)
class Layout:
    """A view cut to what is shown, and the places of its nodes by id."""

    view: GraphView
    spots: dict[str, Spot]
    #: Heights of the arcs above the line, by source and target.
    arcs: dict[tuple[str, str], float] = field(default_factory=dict)
