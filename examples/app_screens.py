"""Screens of an invented application, rendered as pictures, DOM snapshots and event targets."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from recorder.importers.screen_drawing import Colour, ScreenBox, draw_screen, measure_text_width

SIZE = (640, 400)
HOST = "https://ledgerly.example"
Kind = Literal[
    "heading", "text", "alert", "field", "password", "select", "checkbox", "button", "link", "file"
]

_NAVY: Colour = (31, 41, 68, 255)
_BLUE: Colour = (36, 71, 201, 255)
_WHITE: Colour = (255, 255, 255, 255)
_INK: Colour = (28, 30, 38, 255)
_SOFT: Colour = (96, 102, 118, 255)
_LINE: Colour = (176, 182, 196, 255)
_PAPER: Colour = (246, 247, 250, 255)
_RED: Colour = (176, 36, 36, 255)
_PINK: Colour = (253, 233, 233, 255)
_SHADE: Colour = (20, 24, 40, 110)

_TAGS: dict[Kind, str] = {
    "heading": "h1", "text": "p", "alert": "div", "field": "input", "password": "input", "select": "select",
    "checkbox": "input", "button": "button", "link": "a", "file": "input",
}  # fmt: skip
_ROLES: dict[Kind, str] = {
    "heading": "heading", "text": "paragraph", "alert": "alert", "field": "textbox", "password": "textbox",
    "select": "combobox", "checkbox": "checkbox", "button": "button", "link": "link", "file": "button",
}  # fmt: skip
_HEIGHTS: dict[Kind, int] = {
    "heading": 34, "text": 20, "alert": 32, "field": 44, "password": 44, "select": 44, "checkbox": 24,
    "button": 34, "link": 22, "file": 44,
}  # fmt: skip
_LABELLED = ("field", "password", "select", "file")
_LEFT, _TOP, _WIDTH = 40, 58, 300


@dataclass(frozen=True)
class Widget:
    """One element of a screen."""

    kind: Kind
    name: str
    value: str = ""
    is_checked: bool = False
    #: Id in the page, if the name varies with the data.
    key: str = ""

    @property
    def id(self) -> str:
        """Return the element's id attribute."""
        plain = re.sub(r"[^a-z]+", "-", self.name.lower()).strip("-")
        return self.key or (plain if self.is_operable else f"{plain}-{self.kind}")

    @property
    def is_operable(self) -> bool:
        """Return whether a person can act on it."""
        return self.kind not in ("heading", "text", "alert")


@dataclass(frozen=True)
class Screen:
    """Content of the application's window at one moment; `dialog` covers the rest."""

    key: str
    title: str
    path: str
    widgets: tuple[Widget, ...]
    dialog: tuple[Widget, ...] = ()

    @property
    def url(self) -> str:
        """Return the address of the screen."""
        return HOST + self.path

    def with_widget(self, name: str, *, value: str = "", is_checked: bool = False) -> "Screen":
        """Return the screen after a value was entered."""
        widgets = tuple(
            Widget(widget.kind, widget.name, value, is_checked, widget.key)
            if widget.name == name and widget.is_operable
            else widget
            for widget in self.widgets
        )
        return Screen(self.key, self.title, self.path, widgets, self.dialog)


@dataclass(frozen=True)
class Placed:
    """Widget with its rectangle in pixels."""

    widget: Widget
    left: int
    top: int
    width: int
    height: int


@lru_cache(maxsize=4096)
def picture(screen: Screen) -> bytes:
    """Return the screen as a WebP file; equal screens are drawn once."""
    boxes = [
        ScreenBox(0, 0, SIZE[0], 40, fill=_NAVY),
        ScreenBox(16, 8, 200, 24, text="Ledgerly", ink=_WHITE, type_px=16),
    ]
    boxes.append(ScreenBox(400, 12, 224, 16, text=screen.title, ink=_LINE, type_px=12))
    boxes += [
        box for placed in layout(screen) if placed.widget not in screen.dialog for box in _boxes(placed)
    ]
    if screen.dialog:
        boxes += [
            ScreenBox(0, 0, *SIZE, fill=_SHADE),
            ScreenBox(150, 110, 340, 190, fill=_WHITE, border=_LINE),
        ]
        boxes += [
            box for placed in layout(screen) if placed.widget in screen.dialog for box in _boxes(placed)
        ]
    return draw_screen(tuple(boxes), SIZE, _PAPER)


@lru_cache(maxsize=4096)
def snapshot(screen: Screen) -> dict[str, Any]:
    """Return the screen as a DOM snapshot; it is shared, so callers must not change it."""
    main: list[Any] = ["main", {"id": screen.key}, *(_node(widget) for widget in screen.widgets)]
    body: list[Any] = ["body", {}, ["header", {}, "Ledgerly"], main]
    if screen.dialog:
        body.append(["dialog", {"id": f"{screen.key}-dialog"}, *(_node(widget) for widget in screen.dialog)])
    head = ["head", {}, ["title", {}, screen.title]]
    return {"v": 1, "format": "nodes", "html": ["html", {}, head, body]}


@lru_cache(maxsize=4096)
def target(screen: Screen, name: str) -> dict[str, Any]:
    """Return the widget of this name as an event target; it is shared, so callers must not change it."""
    matching = (
        placed for placed in layout(screen) if placed.widget.name == name and placed.widget.is_operable
    )
    placed = next(matching)
    widget = placed.widget
    role = _ROLES[widget.kind]
    return {
        "role": role,
        "name": widget.name,
        "tag": _TAGS[widget.kind],
        "attrs": {"id": widget.id},
        "rect": [placed.left, placed.top, placed.width, placed.height],
        "selectors": [f'aria/{widget.name}[role="{role}"]', f"#{widget.id}", f"text/{widget.name}"],
    }


@lru_cache(maxsize=4096)
def layout(screen: Screen) -> tuple[Placed, ...]:
    """Return every widget with its rectangle."""
    return (*_column(screen.widgets, _LEFT, _TOP), *_column(screen.dialog, 170, 126))


def _column(widgets: tuple[Widget, ...], left: int, top: int) -> Iterator[Placed]:
    """Yield widgets one below the other; neighbouring buttons share a row."""
    x = left
    for widget, following in zip(widgets, (*widgets[1:], None), strict=False):
        height = _HEIGHTS[widget.kind]
        width = _width(widget)
        labelled = 16 if widget.kind in _LABELLED else 0
        yield Placed(widget, x, top + labelled, width, height - labelled - 6)
        if widget.kind == "button" and following is not None and following.kind == "button":
            x += width + 10
        else:
            x, top = left, top + height


def _width(widget: Widget) -> int:
    if widget.kind == "button":
        return int(measure_text_width(widget.name, 13)) + 32
    if widget.kind == "link":
        return int(measure_text_width(widget.name, 13)) + 4
    return _WIDTH


def _node(widget: Widget) -> list[Any]:
    attributes: dict[str, Any] = {"id": widget.id}
    if widget.kind in ("heading", "text", "button", "link"):
        return [_TAGS[widget.kind], attributes, widget.name]
    if widget.kind == "alert":
        return ["div", {**attributes, "role": "alert"}, widget.name]
    if widget.kind == "checkbox":
        field = ["input", {**attributes, "type": "checkbox", "__c": widget.is_checked}]
        return ["label", {}, field, widget.name]
    attributes["aria-label"] = widget.name
    if widget.kind == "select":
        return ["select", {**attributes, "__v": widget.value}]
    shown = "•" * len(widget.value) if widget.kind == "password" else widget.value
    kind = {"password": "password", "file": "file"}.get(widget.kind, "text")
    return ["input", {**attributes, "type": kind, "__v": shown}]


def _boxes(placed: Placed) -> Iterator[ScreenBox]:
    widget = placed.widget
    rect = (placed.left, placed.top, placed.width, placed.height)
    if widget.kind == "heading":
        yield ScreenBox(*rect, text=widget.name, ink=_INK, type_px=20)
    elif widget.kind == "text":
        yield ScreenBox(*rect, text=widget.name, ink=_SOFT, type_px=13)
    elif widget.kind == "link":
        yield ScreenBox(*rect, text=widget.name, ink=_BLUE, type_px=13)
    elif widget.kind == "alert":
        yield ScreenBox(*rect, fill=_PINK, border=_RED, text=widget.name, ink=_RED, type_px=13)
    elif widget.kind == "button":
        yield ScreenBox(
            *rect, fill=_BLUE, border=_NAVY, text=widget.name, ink=_WHITE, type_px=13, is_centred=True
        )
    elif widget.kind == "checkbox":
        square = (placed.left, placed.top + 2, 14, 14)
        yield ScreenBox(*square, fill=_WHITE, border=_SOFT)
        if widget.is_checked:
            yield ScreenBox(*square, border=_INK, shape="tick")
        yield ScreenBox(placed.left + 22, placed.top, 260, 18, text=widget.name, ink=_INK, type_px=13)
    else:
        shown = "*" * len(widget.value) if widget.kind == "password" else widget.value
        yield ScreenBox(
            placed.left, placed.top - 16, placed.width, 14, text=widget.name, ink=_SOFT, type_px=12
        )
        yield ScreenBox(*rect, fill=_WHITE, border=_LINE, text=shown, ink=_INK, type_px=13)
        if widget.kind == "select":
            yield ScreenBox(
                placed.left + placed.width - 20, placed.top, 16, placed.height, text="v", ink=_SOFT
            )
