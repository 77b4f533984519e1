"""Targets of captured actions: description and selectors of an element of a snapshot.

Everything comes from the snapshot, so what the page script masked is in no target either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.css import UnusableSelector
from recorder.replays.dom import (
    DomDocument,
    DomElement,
    find_dom_element_role,
    find_shadow_root,
    read_dom_element_text,
    walk_ancestors,
)
from recorder.replays.selectors import find_single_element_by_selector, make_selectors
from recorder.replays.target_resolution import RESOLVE_VISITS

_NAME_CHARACTERS, _TEXT_CHARACTERS, _ATTRIBUTE_CHARACTERS = 120, 80, 200
_MAX_ATTRIBUTES = 20
_SECRET_NAME_CHARACTERS = 64
_LEFT_OUT = frozenset(("style", "value"))
#: Elements that say what an element belongs to.
_SURROUNDINGS = frozenset(("td", "li", "p", "form", "div", "section"))
_FRAMES = frozenset(("iframe", "frame"))
#: Ids with such a part differ from load to load.
_GENERATED = re.compile(r"\d{4}|(?=[a-f]*\d)[0-9a-f]{8}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TargetPath:
    """Path to an element of a live page, for Playwright's `frame_locator` and `locator`."""

    #: CSS paths of the frames around the element, from the outside in.
    frames: tuple[str, ...]
    #: CSS path in its document; it goes through open shadow roots.
    css: str


def describe_captured_target(
    document: DomDocument,
    element: DomElement,
    *,
    rect: Sequence[int] | None = None,
    frame_path: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the `target` of an event on an element.

    Args:
        document: the snapshot before the action.
        element: the element acted on.
        rect: `[x, y, width, height]` in pixels of the frame's picture.
        frame_path: positions of the frames around it.
    """
    name = document.find_name(element)[:_NAME_CHARACTERS].strip()
    text = " ".join(element.own_text.split())[:_TEXT_CHARACTERS].strip()
    near = _read_text_around_target(element)
    attrs = {
        key: str(value)[:_ATTRIBUTE_CHARACTERS]
        for key, value in list(element.attrs.items())[: 2 * _MAX_ATTRIBUTES]
        if key not in _LEFT_OUT and not key.startswith("__")
    }
    target: dict[str, Any] = {
        "role": find_dom_element_role(element),
        "name": name,
        "tag": element.tag,
        "text": text,
    }
    target = {key: value for key, value in target.items() if value}
    if near:
        target["near"] = near
    if attrs:
        target["attrs"] = dict(list(attrs.items())[:_MAX_ATTRIBUTES])
    if rect is not None:
        target["rect"] = list(rect)
    selectors = list_target_selectors(document, element)
    if selectors:
        target["selectors"] = selectors
    if frame_path:
        target["frame_path"] = list(frame_path)
    return target


def list_target_selectors(document: DomDocument, element: DomElement) -> list[str | list[str]]:
    """Return the selectors that match an element alone, in order of cost, in Chrome Recorder's syntax.

    Test id, `aria/`, `#id` unless it is generated, `text/`, CSS path, `xpath/`; arrays for elements in
    shadow roots.
    """
    hosts = _list_target_shadow_hosts(element)
    is_framed = any(node.tag in _FRAMES for node in _list_target_ancestors(element))
    candidates = make_selectors(document, element)
    paths = [_make_target_css_path(element)]
    xpaths = [selector for selector in candidates if selector.startswith("xpath/")]
    candidates = [
        selector
        for selector in candidates
        if not selector.startswith("xpath/")
        and not (selector.startswith("#") and _GENERATED.search(selector))
    ] + paths
    if not hosts and not is_framed:
        candidates += xpaths
    outer = [_make_target_css_path(host) for host in hosts]
    selectors: list[str | list[str]] = []
    for candidate in candidates:
        selector: str | list[str] = [*outer, candidate] if outer else candidate
        try:
            if find_single_element_by_selector(document, selector, Budget(RESOLVE_VISITS)) is element:
                selectors.append(selector)
        except (UnusableSelector, BudgetExceeded):
            continue
    return selectors


def make_target_path(element: DomElement) -> TargetPath:
    """Return the path to the element in the live page that the snapshot was read from."""
    frames: list[str] = []
    parts: list[str] = []
    for node in [element, *_list_target_ancestors(element)]:
        if node.tag in _FRAMES and parts:
            frames.insert(0, " > ".join(parts))
            parts = []
        if not _is_target_shadow_root(node):
            parts.insert(0, _make_captured_css_step(node))
    # What was collected last is the path of the outermost frame, or of the element itself.
    paths = [" > ".join(parts), *frames]
    return TargetPath(tuple(paths[:-1]), paths[-1])


def make_target_secret_name(document: DomDocument, element: DomElement) -> str:
    """Return the name under which a replay's `inputs` give the value of a field."""
    for text in (
        element.read_attribute("name"),
        element.read_attribute("id"),
        document.find_name(element),
        element.read_attribute("type"),
    ):
        name = re.sub(r"\W+", "_", text or "").strip("_")
        if name:
            return name[:_SECRET_NAME_CHARACTERS]
    return "secret"


def is_sign_in_target(element: DomElement) -> bool:
    """Return whether the element belongs to a form with one password, which is filled in."""
    for form in walk_ancestors(element):
        if form.tag == "form":
            stack = form.list_elements()
            filled = []
            while stack:
                node = stack.pop()
                stack.extend(node.list_elements())
                if node.tag == "input" and node.attrs.get("type") == "password":
                    filled.append(bool(node.attrs.get("__v")))
            return filled == [True]
    return False


def _make_target_css_path(element: DomElement) -> str:
    """Return the CSS path of an element in its document or shadow root."""
    parts = [_make_captured_css_step(element)]
    for node in walk_ancestors(element):
        if node.tag in _FRAMES:
            break
        parts.insert(0, _make_captured_css_step(node))
    return " > ".join(parts)


def _make_captured_css_step(element: DomElement) -> str:
    siblings = element.parent.list_elements() if element.parent else [element]
    same = [other for other in siblings if other.tag == element.tag]
    return element.tag if len(same) == 1 else f"{element.tag}:nth-of-type({same.index(element) + 1})"


def _list_target_shadow_hosts(element: DomElement) -> list[DomElement]:
    """Return the hosts of the shadow roots around an element, from the outside in."""
    hosts = [
        node.parent
        for node in _list_target_ancestors(element)
        if _is_target_shadow_root(node) and node.parent is not None
    ]
    return hosts[::-1]


def _list_target_ancestors(element: DomElement) -> list[DomElement]:
    """Return all elements around this one, also outside its shadow root, the nearest first."""
    ancestors = []
    node = element.parent
    while node is not None:
        ancestors.append(node)
        node = node.parent
    return ancestors


def _is_target_shadow_root(element: DomElement) -> bool:
    return element.parent is not None and find_shadow_root(element.parent) is element


def _read_text_around_target(element: DomElement) -> str:
    for node in walk_ancestors(element):
        if node.tag in _SURROUNDINGS and (text := read_dom_element_text(node)):
            return text[:_TEXT_CHARACTERS].strip()
    return ""
