"""CSS selectors on stored snapshots, right to left, with a budget. Spec §4.6.

cssselect reads the selectors. Its translation to XPath is not used: libxml2 knows no budget.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import cssselect
from cssselect.parser import (
    Attrib,
    Class,
    CombinedSelector,
    Element,
    Function,
    Hash,
    Matching,
    Negation,
    Pseudo,
    Relation,
    SpecificityAdjustment,
    parse_series,
)

from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, DomElement, walk_ancestors

#: Longer or deeper selectors are refused: no recorder writes them.
_MAX_CHARACTERS = 1_000
_MAX_NESTING = 8
_MAX_PARTS = 150


class UnusableSelector(Exception):
    """The selector is malformed, too long, or uses what snapshots cannot answer."""


def find_by_css(
    document: DomDocument, selector: str, *, root: DomElement | None, pierce: bool, budget: Budget
) -> Iterator[DomElement]:
    """Yield the elements that a selector matches, in document order.

    Args:
        document: the snapshot.
        selector: a CSS selector.
        root: element or shadow root to search in; None for the whole document.
        pierce: whether shadow roots are searched too.
        budget: every element that is visited counts.

    Raises:
        UnusableSelector, BudgetExceeded: as their names say.
    """
    trees = parse_css(selector)
    scope = -1 if root is None else _scope_css_below(root)
    seen: set[int] = set()
    for tree in trees:
        for element in _list_css_candidates(document, tree):
            budget.spend()
            if not pierce and element.scope != scope:
                continue
            if root is not None and not root.index < element.index < root.end:
                continue
            if element.index not in seen and _matches_css_selector(element, tree, budget):
                seen.add(element.index)
                yield element


@lru_cache(maxsize=4_096)
def parse_css(selector: str) -> tuple[Any, ...]:
    """Return the parsed alternatives of a selector.

    Raises:
        UnusableSelector: if it cannot be used.
    """
    if len(selector) > _MAX_CHARACTERS or selector.count("(") > _MAX_NESTING:
        raise UnusableSelector
    try:
        parsed = cssselect.parse(selector)
    except (cssselect.SelectorError, ValueError, RecursionError) as error:
        raise UnusableSelector from error
    if any(alternative.pseudo_element is not None for alternative in parsed):
        raise UnusableSelector
    trees = tuple(alternative.parsed_tree for alternative in parsed)
    for tree in trees:
        depth = 0
        while not isinstance(tree, Element):
            tree, depth = tree.selector, depth + 1
        if depth > _MAX_PARTS:
            raise UnusableSelector
    return trees


def _scope_css_below(root: DomElement) -> int:
    """Return the scope of the selectors below an element: its shadow tree if it is a shadow root."""
    return root.index if root.tag == "template" and "shadowrootmode" in root.attrs else root.scope


def _list_css_candidates(document: DomDocument, tree: Any) -> list[DomElement]:
    while isinstance(tree, CombinedSelector):
        tree = tree.subselector
    while not isinstance(tree, Element):
        if isinstance(tree, Hash):
            return document.by_id.get(tree.id, [])
        tree = tree.selector
    return document.by_tag.get(tree.element.lower(), []) if tree.element else document.elements


def _matches_css_selector(element: DomElement, tree: Any, budget: Budget) -> bool:
    budget.spend()
    match tree:
        case Element():
            return tree.element is None or tree.element.lower() == element.tag
        case Hash():
            return element.read_attribute("id") == tree.id and _matches_css_selector(
                element, tree.selector, budget
            )
        case Class():
            classes = _read_counted_css_attribute(element, "class", budget).split()
            return tree.class_name in classes and _matches_css_selector(element, tree.selector, budget)
        case Attrib():
            return _has_css_attribute(element, tree, budget) and _matches_css_selector(
                element, tree.selector, budget
            )
        case CombinedSelector():
            return _matches_css_selector(element, tree.subselector, budget) and any(
                _matches_css_selector(other, tree.selector, budget)
                for other in _list_css_related_elements(element, tree.combinator, budget)
            )
        case Negation():
            return _matches_css_selector(element, tree.selector, budget) and not _matches_css_selector(
                element, tree.subselector, budget
            )
        case Matching() | SpecificityAdjustment():
            return _matches_css_selector(element, tree.selector, budget) and any(
                _matches_css_selector(element, option, budget) for option in tree.selector_list
            )
        case Pseudo():
            return _has_pseudo_class(element, tree.ident.lower(), budget) and _matches_css_selector(
                element, tree.selector, budget
            )
        case Function():
            return _is_nth_sibling(element, tree, budget) and _matches_css_selector(
                element, tree.selector, budget
            )
        case Relation():
            raise UnusableSelector
    raise UnusableSelector


def _list_css_related_elements(element: DomElement, combinator: str, budget: Budget) -> Iterator[DomElement]:
    if combinator in (" ", ">"):
        for ancestor in walk_ancestors(element):
            budget.spend()
            yield ancestor
            if combinator == ">":
                return
    elif combinator in ("+", "~") and element.parent is not None:
        siblings = element.parent.list_elements()
        budget.spend(len(siblings))
        earlier = siblings[: element.position - 1]
        yield from reversed(earlier[-1:] if combinator == "+" else earlier)


def _read_counted_css_attribute(element: DomElement, name: str, budget: Budget) -> str:
    """Return an attribute, or an empty text; a long one, which is searched through, counts as more visits."""
    value = element.read_attribute(name) or ""
    budget.spend(len(value) // 100)
    return value


def _has_css_attribute(element: DomElement, tree: Any, budget: Budget) -> bool:
    if element.read_attribute(tree.attrib) is None:
        return False
    given = _read_counted_css_attribute(element, tree.attrib, budget)
    wanted = tree.value.value if tree.value is not None else ""
    if tree.flag == "i":
        given, wanted = given.lower(), wanted.lower()
    match tree.operator:
        case "exists":
            return True
        case "=":
            return given == wanted
        case "~=":
            return wanted in given.split()
        case "|=":
            return given == wanted or given.startswith(wanted + "-")
        case "^=":
            return bool(wanted) and given.startswith(wanted)
        case "$=":
            return bool(wanted) and given.endswith(wanted)
        case "*=":
            return bool(wanted) and wanted in given
    raise UnusableSelector


def _has_pseudo_class(element: DomElement, name: str, budget: Budget) -> bool:
    match name:
        case "first-child":
            return element.position == 1
        case "last-child":
            return element.position == _count_element_siblings(element)
        case "only-child":
            return _count_element_siblings(element) == 1
        case "first-of-type":
            return _find_position_of_type(element, budget) == 1
        case "checked":
            return bool(element.attrs.get("__c"))
        case "disabled":
            return element.read_attribute("disabled") is not None
        case "enabled":
            return element.read_attribute("disabled") is None
        case "root":
            return element.parent is None
        case "empty":
            return not element.children
    raise UnusableSelector


def _is_nth_sibling(element: DomElement, tree: Any, budget: Budget) -> bool:
    if tree.name not in ("nth-child", "nth-of-type"):
        raise UnusableSelector
    try:
        step, offset = parse_series(tree.arguments)
    except ValueError as error:
        raise UnusableSelector from error
    number = element.position if tree.name == "nth-child" else _find_position_of_type(element, budget)
    if step == 0:
        return bool(number == offset)
    return (number - offset) % step == 0 and (number - offset) // step >= 0


def _count_element_siblings(element: DomElement) -> int:
    if element.parent is None:
        return 1
    return element.parent.size


def _find_position_of_type(element: DomElement, budget: Budget) -> int:
    if element.parent is None:
        return 1
    siblings = element.parent.list_elements()
    budget.spend(len(siblings))
    return sum(1 for other in siblings[: element.position] if other.tag == element.tag)
