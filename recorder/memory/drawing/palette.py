"""Colours and words of the graph's picture, and how they are written in SVG."""

from html import escape

INK, MUTED, PAPER = "#1b1d28", "#6f6d66", "#ffffff"
BLUE, BLUE_LINE = "#2446c8", "#4560d0"
GREY, GREY_LINE = "#8a91a8", "#c9cbd8"
RED, RED_LINE = "#c0332b", "#dd8079"
AMBER, AMBER_INK = "#dba04a", "#a86b0a"
GREEN, GOLD, PINK = "#1f7f4c", "#d69a17", "#d14b93"
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"


def number(value: float) -> str:
    """A coordinate with one decimal, written in one way only."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def text(
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
    """A line of text; with a halo it stays readable where it crosses a line."""
    place = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}" fill="{fill}"'
    place += "" if anchor == "start" else f' text-anchor="{anchor}"'
    place += "" if weight == 400 else f' font-weight="{weight}"'
    if halo:
        place += f' stroke="{PAPER}" stroke-width="3.5" stroke-linejoin="round" paint-order="stroke"'
    return f"<text {place}>{escape(words)}</text>"


def flag(x: float, y: float) -> str:
    """A flag whose pole stands at x, its foot at y; drawn, since few fonts have one."""
    return (
        f'<path d="M{number(x)} {number(y)}v-11" stroke="{GOLD}" stroke-width="1.6" fill="none"/>'
        f'<path d="M{number(x)} {number(y - 11)}h8l-2.2 2.9l2.2 2.9h-8z" fill="{GOLD}"/>'
    )


def tooltip(words: str) -> str:
    """What a reader is told of the group that this begins."""
    return f"<title>{escape(words)}</title>"
