"""Selectors in the syntax of Chrome's Recorder on stored snapshots. Spec §4.6.

CSS, `aria/`, `text/`, `xpath/`, `pierce/`, or an array of them that goes through shadow roots.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from recorder.memory.steps.step_labels import TEST_IDS
from recorder.replays.budget import Budget
from recorder.replays.css import UnusableSelector, find_by_css
from recorder.replays.dom import (
    DomDocument,
    DomElement,
    find_dom_element_role,
    find_shadow_root,
    read_dom_element_text,
)
from recorder.replays.xpath import find_by_xpath

Selector = str | Sequence[str]
SelectorKind = Literal["test_id", "aria", "attribute", "text", "path", "xpath"]
_ARIA_ATTRIBUTE = re.compile(r"""\[\s*(name|role)\s*=\s*(?:"((?:\\.|[^"\\])*+)"|'((?:\\.|[^'\\])*+)')\s*\]""")
_ESCAPED = re.compile(r"\\(.)")
_TEST_ID = re.compile(r"\[\s*(?:" + "|".join(map(re.escape, TEST_IDS)) + r")\s*[~|^$*]?=")
_ATTRIBUTE = re.compile(r"\[[^\[\]]*\]")
_COMBINATORS = re.compile(r"[\s>+~]+")
#: Their texts name other elements, or nothing.
_UNNAMED_ROLES = frozenset(("label", "paragraph"))
_MAX_PARTS = 8
_MAX_CHARACTERS = 1_000


def is_usable_selector(selector: Selector) -> bool:
    """Return whether a selector has few enough parts, each neither empty nor too long."""
    parts = (selector,) if isinstance(selector, str) else selector
    return 1 <= len(parts) <= _MAX_PARTS and all(0 < len(part) <= _MAX_CHARACTERS for part in parts)


def kind_of_selector(selector: Selector) -> SelectorKind:
    """Return the kind of a usable selector, of an array that of its last part."""
    return _find_selector_kind(selector if isinstance(selector, str) else selector[-1])


@lru_cache(maxsize=4_096)
def _find_selector_kind(last: str) -> SelectorKind:
    if last.startswith("aria/"):
        return "aria"
    if last.startswith("text/"):
        return "text"
    if last.startswith("xpath/"):
        return "xpath"
    css = last.removeprefix("pierce/")
    if _TEST_ID.search(css):
        return "test_id"
    # A path from an id to an element without any is a path. Both expressions take linear time.
    last_part = _COMBINATORS.split(_ATTRIBUTE.sub("[]", css).strip())[-1]
    return "attribute" if "#" in last_part or "[" in last_part else "path"


def find_elements_by_selector(
    document: DomDocument, selector: Selector, budget: Budget
) -> Iterator[DomElement]:
    """Yield the visible elements that a selector matches.

    Raises:
        UnusableSelector: if the selector cannot be used on snapshots.
        BudgetExceeded: if the budget ends before.
    """
    if not is_usable_selector(selector):
        raise UnusableSelector
    parts = (selector,) if isinstance(selector, str) else tuple(selector)
    roots: list[DomElement | None] = [None]
    for part in parts[:-1]:
        hosts = [host for root in roots for host in _find_by_selector_part(document, part, root, budget)]
        roots = [find_shadow_root(host) or host for host in hosts]
    seen: set[int] = set()
    for root in roots:
        for element in _find_by_selector_part(document, parts[-1], root, budget):
            if element.visible and element.index not in seen:
                seen.add(element.index)
                yield element


def find_single_element_by_selector(
    document: DomDocument, selector: Selector, budget: Budget
) -> DomElement | None:
    """Return the visible element that a selector matches alone; None if it is absent or not alone.

    Raises:
        UnusableSelector, BudgetExceeded: as `find_elements_by_selector`.
    """
    matches = find_elements_by_selector(document, selector, budget)
    first = next(matches, None)
    return first if first is not None and next(matches, None) is None else None


@lru_cache(maxsize=4_096)
def parse_aria_selector(selector: str) -> tuple[str | None, str | None]:
    """Return name and role of what follows `aria/`."""
    name: str | None = None
    role: str | None = None
    for matches in _ARIA_ATTRIBUTE.finditer(selector):
        value = _ESCAPED.sub(r"\1", matches[2] if matches[2] is not None else matches[3])
        if matches[1] == "role":
            role = value
        else:
            name = value
    rest = " ".join(_ARIA_ATTRIBUTE.sub("", selector).split())
    return (rest or name), role


def _find_by_selector_part(
    document: DomDocument, part: str, root: DomElement | None, budget: Budget
) -> Iterator[DomElement]:
    kind, separator, rest = part.partition("/")
    if not separator or kind not in ("aria", "text", "xpath", "pierce"):
        return find_by_css(document, part, root=root, pierce=False, budget=budget)
    if kind == "pierce":
        return find_by_css(document, rest, root=root, pierce=True, budget=budget)
    if kind == "xpath":
        if root is not None:
            raise UnusableSelector
        return find_by_xpath(document, rest, budget=budget)
    matches = (
        _find_by_aria(document, rest, budget)
        if kind == "aria"
        else _find_by_text_selector(document, rest, budget)
    )
    return (element for element in matches if root is None or root.index < element.index < root.end)


def _find_by_aria(document: DomDocument, wanted: str, budget: Budget) -> Iterator[DomElement]:
    """Yield the elements with the ARIA role and accessible name that a selector wants."""
    name, role = parse_aria_selector(wanted)
    for element in document.list_by_role(role):
        if role is not None or find_dom_element_role(element) not in _UNNAMED_ROLES:
            budget.spend(4)
            if name is None or document.find_name(element) == name:
                yield element


def _find_by_text_selector(document: DomDocument, wanted: str, budget: Budget) -> Iterator[DomElement]:
    """Yield the innermost elements whose text contains the one wanted."""
    words = " ".join(wanted.split())
    if not words:
        raise UnusableSelector
    budget.spend(len(document.elements))
    matches = [element for element in document.elements if words in element.own_text]
    if not matches:
        outer = len(document.elements)
        for element in reversed(document.elements):
            budget.spend(2)
            if element.visible and element.end <= outer and words in read_dom_element_text(element):
                matches.append(element)
                outer = element.index
        matches.reverse()
    yield from matches


def make_selectors(document: DomDocument, element: DomElement) -> list[str]:
    """Return selectors of an element, in order of cost, as a recorder makes them."""
    selectors = []
    for attribute in TEST_IDS:
        value = element.read_attribute(attribute)
        if value:
            selectors.append(f'[{attribute}="{escape_css(value)}"]')
    name, role = document.find_name(element), find_dom_element_role(element)
    if name and role:
        selectors.append(f'aria/{name}[role="{role}"]')
    identity = element.read_attribute("id")
    if (
        identity
        and re.fullmatch(r"[A-Za-z_][\w-]*", identity, re.ASCII)
        and not re.search(r"\d{4}", identity)
    ):
        selectors.append(f"#{identity}")
    text = " ".join(element.own_text.split())[:80]
    if text:
        selectors.append(f"text/{text}")
    selectors.append(f"xpath/{_make_selector_css_path(element)}")
    return selectors


def _make_selector_css_path(element: DomElement) -> str:
    parts = []
    node: DomElement | None = element
    while node is not None:
        same = (
            [other for other in node.parent.list_elements() if other.tag == node.tag]
            if node.parent
            else [node]
        )
        parts.append(node.tag if len(same) == 1 else f"{node.tag}[{same.index(node) + 1}]")
        node = node.parent
    return "/" + "/".join(reversed(parts))


def escape_css(value: str) -> str:
    """Return a value as the inside of a quoted CSS string."""
    return re.sub(r'["\\\n\r\f]', lambda matches: f"\\{ord(matches[0]):x} ", value)
