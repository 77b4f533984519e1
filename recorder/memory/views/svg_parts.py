"""SVG parts of the graph's picture: colours, lines of text, counts as text, legend."""

from html import escape

from recorder.memory.views.label_lines import estimate_text_width

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


def draw_flag(x: float, y: float) -> str:
    """Draw a flag with its pole at x and its foot at y; drawn, since few fonts have one."""
    return (
        f'<path d="M{number(x)} {number(y)}v-11" stroke="{GOLD}" stroke-width="1.6" fill="none"/>'
        f'<path d="M{number(x)} {number(y - 11)}h8l-2.2 2.9l2.2 2.9h-8z" fill="{GOLD}"/>'
    )


def draw_tooltip(words: str) -> str:
    """Return the tooltip of the group that this begins."""
    return f"<title>{escape(words)}</title>"


def format_svg_session_count(count: int) -> str:
    """Return a number of sessions as text."""
    return "1 session" if count == 1 else f"{count:,} sessions"


def format_ended_count(count: int) -> str:
    """Return the text for sessions that ended without success."""
    return f"{count:,} left"


def format_started_count(count: int) -> str:
    """Return the text for sessions that began elsewhere than most."""
    return f"{count:,} start"


def format_percent(share: float) -> str:
    """Return a share as a whole percentage; what is more than nothing never reads 0%."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


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


def draw_legend(x: float, y: float) -> str:
    """Draw the legend from `x` on, its first line centred at height `y`."""
    made, left = "", x
    for meaning, colour in _LINES:
        made += f'<path d="M{number(x)} {number(y)}h9" stroke="{colour}" stroke-width="2.6"/>'
        made += draw_text_line(meaning, x + 13, y + 4, size=_SIZE, fill=INK)
        x += 31 + estimate_text_width(meaning, _SIZE)
    made += f'<circle cx="{number(x + 4)}" cy="{number(y)}" r="4.5" fill="{GREEN}"/>'
    made += draw_text_line("success", x + 13, y + 4, size=_SIZE, fill=INK)
    x += 31 + estimate_text_width("success", _SIZE)
    ring = f'fill="{PAPER}" stroke="{INK}" stroke-width="2"'
    made += f'<circle cx="{number(x + 4)}" cy="{number(y)}" r="4.5" {ring}/>'
    made += draw_text_line(_REQUIRED, x + 15, y + 4, size=_SIZE, fill=INK)
    x += 33 + estimate_text_width(_REQUIRED, _SIZE)
    made += draw_flag(x, y + 6) + draw_text_line("recovery point", x + 13, y + 4, size=_SIZE, fill=INK)
    return made + draw_text_line(_SIZES, left, y + 24, size=_SIZE, fill=MUTED)
