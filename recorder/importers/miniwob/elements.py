"""MiniWoB page elements as snapshot, drawing boxes, names, selectors and event targets.

Contract §3 (event item).
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from recorder.importers.miniwob.format import PageElement
from recorder.importers.screen_drawing import BLACK, CLEAR, Colour, ScreenBox, parse_screen_colour

#: The task's own area; pages without the task frame are drawn whole, up to a limit.
AREA = (160, 210)
_LARGEST = (1024, 4096)
_GREY: Colour = (118, 118, 118, 255)
_PALE: Colour = (208, 208, 208, 255)
_FOCUS: Colour = (16, 110, 220, 255)
_FIELDS = ("INPUT_text", "INPUT_password", "INPUT_number", "TEXTAREA", "SELECT")
_BUTTONS = ("BUTTON", "INPUT_submit", "INPUT_button", "INPUT_reset")
_OUTLINED = ("rect", "path", "IMG", "TD", "TH")
_ROLES = {
    "A": "link", "BUTTON": "button", "INPUT_submit": "button", "INPUT_button": "button",
    "INPUT_reset": "button", "INPUT_text": "textbox", "INPUT_password": "textbox", "TEXTAREA": "textbox",
    "INPUT_number": "spinbutton",
    "INPUT_checkbox": "checkbox", "INPUT_radio": "radio", "SELECT": "combobox", "OPTION": "option",
    "LI": "listitem", "UL": "list", "OL": "list", "IMG": "img", "TABLE": "table", "TR": "row", "TD": "cell",
    "TH": "columnheader", "FORM": "form", "P": "paragraph",
    "H1": "heading", "H2": "heading", "H3": "heading", "H4": "heading", "H5": "heading", "H6": "heading",
}  # fmt: skip
_LONG_NUMBER = re.compile(r"[0-9]{4}")
_PLAIN_ID = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_QUOTES = str.maketrans('"', "'")


def take_miniwob_target_elements(dom: PageElement) -> list[PageElement]:
    """Return the elements from the root to the one acted on; empty without one.

    The mark is taken off, so that pages which differ in it alone are equal.
    """
    if dom.is_target:
        dom.is_target = False
        return [dom]
    for child in dom.children or ():
        path = take_miniwob_target_elements(child)
        if path:
            return [dom, *path]
    return []


def make_miniwob_snapshot(dom: PageElement) -> dict[str, Any]:
    """Return the page as a DOM snapshot: nested `[tag, {attributes}, …children]`, without boxes."""
    return {"v": 1, "format": "nodes", "html": _make_miniwob_element_snapshot(dom)}


def compute_canvas_size(dom: PageElement) -> tuple[int, int]:
    """Return width and height of the picture: the task's area, or the whole page without a task frame."""
    if any(node.id == "wrap" for node, _ in _walk_elements(dom)):
        return AREA
    width, height = (
        min(round(side), most) for side, most in zip((dom.width, dom.height), _LARGEST, strict=True)
    )
    return max(width, AREA[0]), max(height, AREA[1])


def list_miniwob_element_boxes(dom: PageElement) -> tuple[ScreenBox, ...]:
    """Return the boxes to draw, in the order of the document."""
    return tuple(box for node, ink in _walk_elements(dom) for box in _make_boxes(node, ink))


def make_event_target(path: list[PageElement]) -> dict[str, Any]:
    """Return the last element of `path` as the target of an event, with selectors, the best first."""
    node = path[-1]
    kind, _, sort = node.tag.partition("_")
    name = _find_miniwob_accessible_name(path)
    text = _read_miniwob_own_text(node)
    attrs = {
        key: value[:200]
        for key, value in (
            ("id", _read_miniwob_text_or_empty(node.id)),
            ("class", _read_miniwob_text_or_empty(node.classes)),
        )
        if value
    }
    if sort:
        attrs["type"] = sort
    members = {
        "role": _ROLES.get(node.tag),
        "name": name[:120],
        "tag": kind.lower(),
        "text": text[:80],
        "near": "" if name else _read_miniwob_field_label(path)[:80],
    }
    return {
        **{key: value for key, value in members.items() if value},
        **({"attrs": attrs} if attrs else {}),
        "rect": [round(side, 2) for side in (node.left, node.top, node.width, node.height)],
        "selectors": _make_miniwob_selectors(path, name, text),
    }


def _make_miniwob_element_snapshot(node: PageElement) -> list[Any]:
    kind, _, sort = node.tag.partition("_")
    attributes: dict[str, Any] = {
        key: value
        for key, value in (
            ("id", _read_miniwob_text_or_empty(node.id)),
            ("class", _read_miniwob_text_or_empty(node.classes)),
        )
        if value
    }
    if sort:
        attributes["type"] = sort
    if isinstance(node.value, bool):
        attributes["__c"] = node.value
    elif node.value is not None:
        value = str(node.value)
        attributes["__v"] = "•" * len(value) if sort == "password" else value
    inner: list[Any] = [node.text] if node.text else []
    inner += [
        child.text or "" if child.tag == "t" else _make_miniwob_element_snapshot(child)
        for child in node.children or ()
    ]
    return [kind.lower(), attributes, *inner]


def _walk_elements(root: PageElement) -> Iterator[tuple[PageElement, Colour]]:
    """Yield every element with the colour its text has; text nodes take that of the element around them."""
    stack = [(root, BLACK)]
    while stack:
        node, ink = stack.pop()
        colour = parse_screen_colour(node.fg) if node.fg else ink
        yield node, colour
        stack += [(child, colour) for child in reversed(node.children or ())]


def _make_boxes(node: PageElement, ink: Colour) -> Iterator[ScreenBox]:
    """Yield the boxes that show an element in a drawn screen: itself, its mark and its focus."""
    if node.width <= 0 or node.height <= 0:
        return
    bounds = (node.left, node.top, node.width, node.height)
    yield ScreenBox(
        *bounds, parse_screen_colour(node.bg), _choose_border_colour(node), _read_miniwob_shown_text(node),
        ink, _estimate_type_px(node), is_centred=node.tag in _BUTTONS, shape=_choose_box_shape(node.tag),
    )  # fmt: skip
    if node.value is True:
        yield ScreenBox(*bounds, border=BLACK, shape="dot" if node.tag == "INPUT_radio" else "tick")
    if node.focused and node.tag != "BODY":
        yield ScreenBox(node.left - 1, node.top - 1, node.width + 2, node.height + 2, border=_FOCUS)


def _choose_border_colour(node: PageElement) -> Colour:
    if node.tag in _FIELDS or node.tag in _BUTTONS or node.tag in ("INPUT_checkbox", "INPUT_radio"):
        return _GREY
    if node.tag in ("circle", "polygon", "ellipse"):
        return BLACK
    return _PALE if node.tag in _OUTLINED else CLEAR


def _choose_box_shape(tag: str) -> Any:
    return {"circle": "ellipse", "ellipse": "ellipse", "INPUT_radio": "ellipse", "polygon": "triangle"}.get(
        tag, "box"
    )


def _read_miniwob_shown_text(node: PageElement) -> str:
    if node.tag == "INPUT_password":
        return "*" * len(str(node.value or ""))  # the built-in type has no bullet
    if node.tag.startswith(("INPUT_", "TEXTAREA")) and isinstance(node.value, str):
        return node.value
    return node.text or ""


def _estimate_type_px(node: PageElement) -> int:
    """Estimate the type's height from the box: headings are larger, a line of text fills its box."""
    if node.tag in ("H1", "H2"):
        return 14
    return min(12, max(8, round(node.height * 0.9))) if node.height < 20 else 11 if node.height > 26 else 10


def _read_miniwob_text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read_miniwob_own_text(node: PageElement) -> str:
    """Return the element's text, its text nodes and inline labels included; spaces made single."""
    text = node.text or (node.value if node.tag in _BUTTONS and isinstance(node.value, str) else "")
    parts = [text, *(child.text or "" for child in node.children or ())]
    return " ".join(" ".join(parts).split())


def _find_miniwob_accessible_name(path: list[PageElement]) -> str:
    """Return the accessible name that the file has: an enclosing label, else the element's text."""
    node = path[-1]
    if node.tag.startswith(("INPUT_", "SELECT", "TEXTAREA")) and node.tag not in _BUTTONS:
        label = next((parent for parent in reversed(path[:-1]) if parent.tag == "LABEL"), None)
        return _read_miniwob_own_text(label) if label else ""
    return _read_miniwob_own_text(node)


def _read_miniwob_field_label(path: list[PageElement]) -> str:
    """Return the text of the closest element around a form field that holds no other field."""
    node = path[-1]
    if node.tag not in _FIELDS:
        return ""
    for around in reversed(path[:-1]):
        inside = [element for element, _ in _walk_elements(around) if element is not node]
        if any(element.tag in _FIELDS for element in inside):
            return ""
        texts = (element.text or "" for element in inside if element.tag not in _BUTTONS)
        label = " ".join(" ".join(texts).split())
        if label:
            return label
    return ""


def _make_miniwob_selectors(path: list[PageElement], name: str, text: str) -> list[str]:
    """Return selectors in the syntax of the Chrome Recorder: by role and name, id, text and position."""
    node, selectors = path[-1], []
    role = _ROLES.get(node.tag)
    if role and name:
        selectors.append(f'aria/{name[:120].translate(_QUOTES)}[role="{role}"]')
    plain = _read_miniwob_text_or_empty(node.id)
    if _PLAIN_ID.fullmatch(plain) and not _LONG_NUMBER.search(plain):
        selectors.append(f"#{plain}")
    if text:
        selectors.append(f"text/{text[:80]}")
    return [*selectors, f"xpath//{_make_miniwob_xpath(path)}"]


def _make_miniwob_xpath(path: list[PageElement]) -> str:
    steps = [f"/{_make_miniwob_xpath_step(path[0])}"]
    for parent, node in pairwise(path):
        alike = [
            child
            for child in parent.children or ()
            if _make_miniwob_xpath_step(child) == _make_miniwob_xpath_step(node)
        ]
        number = next(n for n, child in enumerate(alike, start=1) if child is node)
        steps.append(f"{_make_miniwob_xpath_step(node)}[{number}]")
    return "/".join(steps)


def _make_miniwob_xpath_step(node: PageElement) -> str:
    return node.tag.partition("_")[0].lower()
