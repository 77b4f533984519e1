"""Inputs of a live replay, replaced wherever the page shows them. Spec §4.6, contract §8."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

HIDDEN_TEXT = "•••"
#: Shorter values are parts of too many words; they are hidden only as the value of a field.
_LEAST_CHARACTERS = 4
#: Characters at both ends of a value that are compared one by one, and those that one may become.
_END_CHARACTERS, _MOST_ENCODED = 100, 20
_MASK_TOKEN = re.compile("‹[^‹›]{1,200}›")
_SEPARATORS = r"(?:[\s+]|%(?:25){0,2}(?:20|2b|0a|0d|09))*"
#: Attributes whose text a picture shows.
_SHOWN_ATTRIBUTES = frozenset(("__v", "alt", "label", "placeholder", "value"))
#: Elements whose text a snapshot does not hold.
_UNREAD = frozenset(("canvas", "frame", "iframe", "svg", "video"))


@dataclass(frozen=True)
class HiddenPage:
    """Nodes of a page without the inputs."""

    html: list[Any]
    #: Positions, in document order, of the elements that show an input.
    shows_input: tuple[int, ...]
    #: Positions of the elements whose text is unknown.
    unread: tuple[int, ...]


@dataclass(frozen=True)
class _Value:
    """Value of an input, and the text shown instead."""

    text: str = field(repr=False)
    shown: str

    @cached_property
    def reduced(self) -> str:
        return _reduce(self.text)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Expression for the value in any case and spacing, each character as it is or URL-encoded."""
        characters = [character for character in self.text if not character.isspace() and character != "+"]
        head, tail = characters[:_END_CHARACTERS], characters[_END_CHARACTERS:][-_END_CHARACTERS:]
        between = len(characters) - len(head) - len(tail)
        expression = _SEPARATORS.join(map(_match_character, head))
        if tail:
            # An expression of thousands of characters takes seconds to compile.
            expression += rf"[\s\S]{{{between},{between * _MOST_ENCODED}}}?" if between else _SEPARATORS
            expression += _SEPARATORS.join(map(_match_character, tail))
        return re.compile(expression, re.IGNORECASE)


#: A text: what holds it, under which key, and the position of its element.
_Place = tuple[Any, Any, int]


@dataclass
class _Parts:
    """Texts, attributes and unread elements of a snapshot."""

    texts: list[_Place] = field(default_factory=list)
    attributes: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)


class HiddenInputs:
    """The inputs of one replay; texts are without them, in whatever case, spacing or URL encoding."""

    def __init__(self, inputs: Mapping[str, str], mask: Callable[[Any], Any] = lambda value: value) -> None:
        """Set the values.

        Args:
            inputs: values by name.
            mask: masks the texts of a value; an input that it replaces as a whole is shown as its token.
        """
        values = (_Value(text, _choose_shown(text, mask)) for text in set(inputs.values()))
        # A value that contains another one is replaced first.
        self._values = sorted(values, key=lambda value: (-len(value.reduced), value.text))
        self._long = [value for value in self._values if len(value.reduced) >= _LEAST_CHARACTERS]

    def __bool__(self) -> bool:
        """Return whether there are inputs."""
        return bool(self._values)

    def hide_text(self, text: str) -> str:
        """Return a text without the inputs."""
        reduced = _reduce(text)
        for value in self._long:
            if value.reduced in reduced:
                text, count = value.pattern.subn(value.shown.replace("\\", r"\\"), text)
                if not count:
                    return HIDDEN_TEXT
                reduced = _reduce(text)
        return text

    def hide_page(self, html: list[Any]) -> HiddenPage:
        """Replace the inputs in the nodes of a snapshot, in place; also those that several nodes share."""
        if not self._values:
            return HiddenPage(html, (), ())
        parts = _list_parts(html)
        shown = {
            index for value in self._find_shown(parts.texts) for index in _hide_texts(parts.texts, value)
        }
        attributes = [(attrs, name, index) for attrs, index in parts.attributes for name in attrs]
        may_show = bool(self._find_shown(attributes))
        for attrs, name, index in attributes:
            text = attrs[name]
            hidden = self._hide_field(text) if name == "__v" else text
            if hidden == text and may_show and type(text) is str:
                hidden = self.hide_text(text)
            if hidden != text:
                attrs[name] = hidden
                if name in _SHOWN_ATTRIBUTES:
                    shown.add(index)
        return HiddenPage(html, tuple(sorted(shown)), tuple(parts.unread))

    def _find_shown(self, texts: Sequence[_Place]) -> list[_Value]:
        """Return the values that are in some texts, as if the texts followed each other."""
        whole = _reduce("".join(text for holder, at, _ in texts if type(text := holder[at]) is str))
        return [value for value in self._long if value.reduced in whole]

    def _hide_field(self, text: object) -> object:
        return next((value.shown for value in self._values if text == value.text), text)


def _hide_texts(texts: Sequence[_Place], value: _Value) -> set[int]:
    """Replace a value in texts that follow each other; return the positions of the elements that show it."""
    pieces = [holder[at] for holder, at, _ in texts]
    ends = list(accumulate(map(len, pieces)))
    shown = set()
    # From the end, so that the offsets before stay right.
    for match in reversed(list(value.pattern.finditer("".join(pieces)))):
        start, stop = match.span()
        for number in range(bisect_right(ends, stop - 1), bisect_right(ends, start) - 1, -1):
            holder, at, index = texts[number]
            offset = ends[number] - len(pieces[number])
            begin, end = max(0, start - offset), stop - offset
            is_first = start >= offset
            holder[at] = holder[at][:begin] + (value.shown if is_first else "") + holder[at][end:]
            shown.add(index)
    return shown


def _list_parts(html: list[Any]) -> _Parts:
    """Return the texts and attributes of a snapshot in document order, counted as the page script does."""
    parts, index = _Parts(), -1
    waiting: list[tuple[list[Any], int]] = [([html], 0)]
    holders = [-1]
    while waiting:
        parent, at = waiting.pop()
        holder = holders.pop()
        node = parent[at]
        if type(node) is str:
            parts.texts.append((parent, at, holder))
        elif type(node) is list:
            index += 1
            if len(node) > 1 and type(node[1]) is dict:
                parts.attributes.append((node[1], index))
            if node and node[0] in _UNREAD and not any(type(child) is list for child in node[2:]):
                parts.unread.append(index)
            children = range(len(node) - 1, 1, -1)
            waiting.extend((node, position) for position in children)
            holders.extend(index for _ in children)
    return parts


def _choose_shown(text: str, mask: Callable[[Any], Any]) -> str:
    masked = mask({"value": text})["value"]
    return masked if masked != text and _MASK_TOKEN.fullmatch(masked) else HIDDEN_TEXT


def _reduce(text: str) -> str:
    """Return a text without spaces, case and URL encoding."""
    return "".join(unquote(unquote(text)).replace("+", "").split()).casefold()


def _match_character(character: str) -> str:
    encoded = (f"%(?:25){{0,2}}{byte:02x}" for byte in character.encode(errors="surrogatepass"))
    forms = dict.fromkeys((re.escape(character), re.escape(character.casefold()), "".join(encoded)))
    return f"(?:{'|'.join(forms)})"
