"""XPath on stored snapshots: the part that recorders write, with a budget. Spec §4.6.

Location paths with the axes `child`, `descendant`, `self`, `parent`, `ancestor`, `following-sibling` and
`preceding-sibling`; predicates with positions, `last()`, attributes, `text()`, `.`, `contains()`,
`starts-with()`, `normalize-space()`, `not()`, `and`, `or`, `=`. Anything else is refused: libxml2, which
knows all of XPath, can run for hours on 60 characters and cannot be stopped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from recorder.replays.budget import Budget
from recorder.replays.css import UnusableSelector
from recorder.replays.dom import DomDocument, DomElement

_MAX_CHARACTERS = 1_000
_MAX_NESTING = 8
_TOKENS = re.compile(
    r"\s*(?:(?P<text>\"[^\"]*\"|'[^']*')|(?P<number>\d{1,9})|(?P<name>[A-Za-z_][\w.\-]*)"
    r"|(?P<mark>//|::|\.\.|[/.@*\[\]()=,]))\s*"
)
_FUNCTIONS = {"contains": 2, "starts-with": 2, "normalize-space": 1, "not": 1}
_AXES = frozenset(
    ("child", "descendant", "descendant-or-self", "self", "parent", "ancestor", "following-sibling",
     "preceding-sibling")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _PathStep:
    axis: str
    #: Tag, or `*`.
    tag: str
    #: Parsed expressions, as nested tuples `(operator, *operands)`.
    predicates: tuple[tuple[Any, ...], ...]


def find_by_xpath(document: DomDocument, expression: str, *, budget: Budget) -> Iterator[DomElement]:
    """Yield the elements outside shadow roots that an expression matches, in document order.

    Raises:
        UnusableSelector: if the expression is malformed or of a part of XPath that is not read.
        BudgetExceeded: if the budget ends before.
    """
    matches: list[DomElement] | None = None
    for step in _parse_xpath(expression):
        selected: dict[int, DomElement] = {}
        for context in [None] if matches is None else matches:
            candidates = _list_axis_elements(document, context, step, budget)
            for predicate in step.predicates:
                size = len(candidates)
                budget.spend(size)
                candidates = [
                    element
                    for number, element in enumerate(candidates, start=1)
                    if _holds_predicate(element, predicate, number, size, budget)
                ]
            for element in candidates:
                selected[element.index] = element
        matches = [selected[index] for index in sorted(selected)]
    yield from matches or ()


def _list_axis_elements(
    document: DomDocument, context: DomElement | None, step: _PathStep, budget: Budget
) -> list[DomElement]:
    """Return the elements on an axis, the nearest first; without context from the document itself."""
    if context is None:
        nodes = document.elements[:1] if step.axis == "child" else document.elements
    else:
        match step.axis:
            case "child":
                nodes = context.list_elements()
            case "descendant":
                nodes = document.elements[context.index + 1 : context.end]
            case "descendant-or-self":
                nodes = document.elements[context.index : context.end]
            case "self":
                nodes = [context]
            case "parent":
                nodes = [context.parent] if context.parent else []
            case "ancestor":
                nodes = []
                parent = context.parent
                while parent is not None:
                    nodes.append(parent)
                    parent = parent.parent
            case _:
                siblings = context.parent.list_elements() if context.parent else [context]
                is_later = step.axis == "following-sibling"
                nodes = siblings[context.position :] if is_later else siblings[: context.position - 1][::-1]
    budget.spend(len(nodes) + 1)
    return [node for node in nodes if node.scope == -1 and step.tag in ("*", node.tag)]


def _holds_predicate(
    element: DomElement, expression: tuple[Any, ...], number: int, size: int, budget: Budget
) -> bool:
    """Return whether an element holds an XPath predicate, as number `number` of `size` found ones."""
    match expression:
        case ("number", wanted_number):
            return bool(number == wanted_number)
        case ("last",):
            return number == size
        case ("and", left, right):
            return _holds_predicate(element, left, number, size, budget) and _holds_predicate(
                element, right, number, size, budget
            )
        case ("or", left, right):
            return _holds_predicate(element, left, number, size, budget) or _holds_predicate(
                element, right, number, size, budget
            )
        case ("not", inner):
            return not _holds_predicate(element, inner, number, size, budget)
        case ("=", ("position",), ("number", wanted_number)):
            return bool(number == wanted_number)
        case ("=", ("position",), ("last",)):
            return number == size
        case ("=", left, right):
            wanted = _evaluate_xpath_texts(element, right, budget)
            return any(text in wanted for text in _evaluate_xpath_texts(element, left, budget))
        case ("contains", whole, part):
            return any(
                text in given
                for given in _evaluate_xpath_texts(element, whole, budget)[:1]
                for text in _evaluate_xpath_texts(element, part, budget)[:1]
            )
        case ("starts-with", whole, part):
            return any(
                given.startswith(text)
                for given in _evaluate_xpath_texts(element, whole, budget)[:1]
                for text in _evaluate_xpath_texts(element, part, budget)[:1]
            )
    return any(_evaluate_xpath_texts(element, expression, budget))


def _evaluate_xpath_texts(element: DomElement, expression: tuple[Any, ...], budget: Budget) -> list[str]:
    """Return the texts that an expression selects."""
    match expression:
        case ("text", value):
            return [value]
        case ("attribute", name):
            value = element.read_attribute(name)
            return [] if value is None else _count_xpath_texts([value], budget)
        case ("own",):
            budget.spend(len(element.children))
            return _count_xpath_texts([child for child in element.children if isinstance(child, str)], budget)
        case (".",):
            return [_read_xpath_element_text(element, budget)]
        case ("normalize-space", inner):
            return [" ".join(text.split()) for text in _evaluate_xpath_texts(element, inner, budget)[:1]]
    raise UnusableSelector


def _count_xpath_texts(texts: list[str], budget: Budget) -> list[str]:
    """Return texts that are searched through; long ones count as more visits."""
    budget.spend(sum(len(text) // 100 for text in texts))
    return texts


def _read_xpath_element_text(element: DomElement, budget: Budget) -> str:
    texts: list[str] = []
    stack: list[DomElement | str] = [element]
    while stack:
        budget.spend()
        node = stack.pop()
        if isinstance(node, str):
            budget.spend(len(node) // 100)
            texts.append(node)
        else:
            stack.extend(reversed(node.children))
    return "".join(texts)


@lru_cache(maxsize=4_096)
def _parse_xpath(expression: str) -> tuple[_PathStep, ...]:
    if len(expression) > _MAX_CHARACTERS or expression.count("[") > 200:
        raise UnusableSelector
    return _XPathParser(expression).parse()


class _XPathParser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        end = 0
        while end < len(expression):
            matches = _TOKENS.match(expression, end)
            if matches is None:
                raise UnusableSelector
            self._tokens.append((str(matches.lastgroup), str(matches[matches.lastgroup or 0])))
            end = matches.end()
        self._next = 0
        self._nesting = 0

    def parse(self) -> tuple[_PathStep, ...]:
        """Return the steps of a location path."""
        steps: list[_PathStep] = []
        if self._peek_symbol() not in ("/", "//"):
            raise UnusableSelector
        while self._next < len(self._tokens):
            separator = self._take_symbol()
            if separator not in ("/", "//"):
                raise UnusableSelector
            steps.extend(self._parse_step(is_deep=separator == "//"))
        return tuple(steps)

    def _parse_step(self, *, is_deep: bool) -> list[_PathStep]:
        axis = "child"
        symbol = self._take_symbol()
        if symbol in ("..", "."):
            if is_deep:
                raise UnusableSelector
            return [_PathStep("parent" if symbol == ".." else "self", "*", ())]
        if self._peek_symbol() == "::":
            axis, symbol = symbol, self._take_symbol() and self._take_symbol()
            if axis not in _AXES:
                raise UnusableSelector
        if symbol != "*" and self._tokens[self._next - 1][0] != "name":
            raise UnusableSelector
        predicates = []
        while self._peek_symbol() == "[":
            self._take_symbol()
            predicates.append(self._parse_or())
            self._expect_symbol("]")
        step = _PathStep(axis, symbol.lower(), tuple(predicates))
        if not is_deep:
            return [step]
        # Positions in `//a[2]` count within each parent, unlike those of the descendant axis.
        if axis == "child" and not any(map(_is_positional_predicate, predicates)):
            return [_PathStep("descendant", step.tag, step.predicates)]
        return [_PathStep("descendant-or-self", "*", ()), step]

    def _parse_or(self) -> tuple[Any, ...]:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise UnusableSelector
        left = self._parse_and()
        while self._peek_symbol() == "or":
            self._take_symbol()
            left = ("or", left, self._parse_and())
        self._nesting -= 1
        return left

    def _parse_and(self) -> tuple[Any, ...]:
        left = self._parse_comparison()
        while self._peek_symbol() == "and":
            self._take_symbol()
            left = ("and", left, self._parse_comparison())
        return left

    def _parse_comparison(self) -> tuple[Any, ...]:
        left = self._parse_value()
        if self._peek_symbol() != "=":
            return left
        self._take_symbol()
        return ("=", left, self._parse_value())

    def _parse_value(self) -> tuple[Any, ...]:
        kind, symbol = self._tokens[self._next] if self._next < len(self._tokens) else ("", "")
        self._next += 1
        if kind == "text":
            return ("text", symbol[1:-1])
        if kind == "number":
            return ("number", int(symbol))
        if symbol == ".":
            return (".",)
        if symbol == "@":
            name_kind, name = self._tokens[self._next] if self._next < len(self._tokens) else ("", "")
            self._next += 1
            if name_kind != "name":
                raise UnusableSelector
            return ("attribute", name)
        if symbol == "(":
            inner = self._parse_or()
            self._expect_symbol(")")
            return inner
        if kind != "name" or self._peek_symbol() != "(":
            raise UnusableSelector
        self._take_symbol()
        return self._parse_call(symbol)

    def _parse_call(self, name: str) -> tuple[Any, ...]:
        if name in ("last", "position", "text"):
            self._expect_symbol(")")
            return ("own",) if name == "text" else (name,)
        count = _FUNCTIONS.get(name)
        if count is None:
            raise UnusableSelector
        if name == "normalize-space" and self._peek_symbol() == ")":
            self._take_symbol()
            return (name, (".",))
        values = [self._parse_or()]
        while self._peek_symbol() == ",":
            self._take_symbol()
            values.append(self._parse_or())
        self._expect_symbol(")")
        if len(values) != count:
            raise UnusableSelector
        return (name, *values)

    def _peek_symbol(self) -> str:
        if self._next >= len(self._tokens):
            return ""
        kind, symbol = self._tokens[self._next]
        return "" if kind == "text" else symbol

    def _take_symbol(self) -> str:
        symbol = self._peek_symbol()
        if not symbol:
            raise UnusableSelector
        self._next += 1
        return symbol

    def _expect_symbol(self, symbol: str) -> None:
        if self._take_symbol() != symbol:
            raise UnusableSelector


def _is_positional_predicate(expression: tuple[Any, ...]) -> bool:
    if expression[0] in ("number", "last", "position"):
        return True
    return any(isinstance(part, tuple) and _is_positional_predicate(part) for part in expression[1:])
