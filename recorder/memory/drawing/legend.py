"""The line above the graph's picture that says what its colours and sizes mean."""

from recorder.memory.drawing.palette import AMBER, BLUE, GREEN, GREY, INK, MUTED, RED, flag, number, text
from recorder.memory.views.labels import text_width

_SIZE = 11.5
_LINES = (
    ("most common path", BLUE),
    ("other", GREY),
    ("mostly error", RED),
    ("mostly abandoned", AMBER),
)
_SIZES = "width = share of sessions · number under a node = sessions"


def legend(x: float, y: float) -> str:
    """The legend from `x` on, centred at height `y`."""
    made = ""
    for told, colour in _LINES:
        made += f'<path d="M{number(x)} {number(y)}h9" stroke="{colour}" stroke-width="2.6"/>'
        made += text(told, x + 13, y + 4, size=_SIZE, fill=INK)
        x += 31 + text_width(told, _SIZE)
    made += f'<circle cx="{number(x + 4)}" cy="{number(y)}" r="4.5" fill="{GREEN}"/>'
    made += text("success", x + 13, y + 4, size=_SIZE, fill=INK)
    x += 31 + text_width("success", _SIZE)
    made += flag(x, y + 6) + text("recovery point", x + 13, y + 4, size=_SIZE, fill=INK)
    x += 31 + text_width("recovery point", _SIZE)
    return made + text(_SIZES, x, y + 4, size=_SIZE, fill=MUTED)
