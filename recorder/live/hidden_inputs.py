"""Inputs of a live replay, replaced wherever the page shows them. Spec §4.6, contract §8."""

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from recorder.lazy_property import lazy_property

HIDDEN_TEXT = "•••"
#: Shorter values are parts of too many words; they are hidden only as the value of a field.
_LEAST_CHARACTERS = 4
_MASK_TOKEN = re.compile("‹[^‹›]{1,200}›")
_TOKENS = re.compile(
    r"(?P<encoded>(?:%(?:25){0,2}[0-9A-Fa-f]{2})+)|(?P<skipped>[\s+]+)|(?P<plain>[^\s+%]+|%)"
)
_ENCODED_BYTE = re.compile("%(?:25){0,2}([0-9A-Fa-f]{2})")
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
class _HiddenInput:
    """Value of an input, and the text shown instead."""

    text: str = field(repr=False)
    shown: str

    @lazy_property
    def reduced(self) -> str:
        return _reduce_input_text(self.text).text


class _Reduced(NamedTuple):
    """A text without spaces, case and URL encoding."""

    text: str
    #: For each character where what it stands for begins and ends in the original.
    starts: "array[int]"
    ends: "array[int]"


class _Span(NamedTuple):
    """Position of an input in a text, and what is shown instead."""

    start: int
    stop: int
    shown: str


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
        values = (
            _HiddenInput(text, _choose_text_for_hidden_input(text, mask)) for text in set(inputs.values())
        )
        # A value that contains another one is replaced first.
        self._values = sorted(values, key=lambda value: (-len(value.reduced), value.text))
        self._shown_by_text = {value.text: value.shown for value in self._values}
        self._long = [value for value in self._values if len(value.reduced) >= _LEAST_CHARACTERS]

    def __bool__(self) -> bool:
        """Return whether there are inputs."""
        return bool(self._values)

    def hide_text(self, text: str) -> str:
        """Return a text without the inputs."""
        return _replace_hidden_input_spans(text, self._find_hidden_input_spans(text))

    def hide_page(self, html: list[Any]) -> HiddenPage:
        """Replace the inputs in the nodes of a snapshot, in place; also those that several nodes share."""
        if not self._values:
            return HiddenPage(html, (), ())
        parts = _list_page_parts_with_inputs(html)
        shown = {parts.texts[number][2] for number in self._hide_texts(parts.texts, "")}
        attributes = [(attrs, name, index) for attrs, index in parts.attributes for name in attrs]
        for attrs, name, index in attributes:
            if name == "__v" and (hidden := self._hide_field(attrs[name])) != attrs[name]:
                attrs[name] = hidden
                shown.add(index)
        # A page has thousands: they are searched together, apart from each other.
        texts = [entry for entry in attributes if type(entry[0][entry[1]]) is str]
        changed = self._hide_texts(texts, "\0")
        shown.update(texts[number][2] for number in changed if texts[number][1] in _SHOWN_ATTRIBUTES)
        return HiddenPage(html, tuple(sorted(shown)), tuple(parts.unread))

    def _find_hidden_input_spans(self, text: str) -> list[_Span]:
        """Return the spans of the inputs in a text, in order; those that overlap are one.

        No expression is made of the values: a page could let it take exponential time.
        """
        if not self._long:
            return []
        reduced = _reduce_input_text(text)
        overlapping: list[_Span] = []
        for value in self._long:
            at = reduced.text.find(value.reduced)
            while at >= 0:
                end = at + len(value.reduced)
                overlapping.append(_Span(reduced.starts[at], reduced.ends[end - 1], value.shown))
                at = reduced.text.find(value.reduced, end)
        spans: list[_Span] = []
        for span in sorted(overlapping, key=lambda span: span.start):
            if spans and span.start < spans[-1].stop:
                spans[-1] = spans[-1]._replace(stop=max(spans[-1].stop, span.stop))
            else:
                spans.append(span)
        return spans

    def _hide_texts(self, texts: Sequence[_Place], between: str) -> list[int]:
        """Replace inputs in texts that follow each other; return the numbers of those that held some.

        Args:
            texts: positions of the texts.
            between: what separates two texts; an input may begin in one and end in the next if it is empty.
        """
        pieces = [holder[at] for holder, at, _ in texts]
        ends = list(accumulate(len(piece) + len(between) for piece in pieces))
        by_text: defaultdict[int, list[_Span]] = defaultdict(list)
        for start, stop, shown in self._find_hidden_input_spans(between.join([*pieces, ""])):
            for number in range(bisect_right(ends, start), bisect_right(ends, stop - 1) + 1):
                offset = ends[number] - len(between) - len(pieces[number])
                begin, end = max(0, start - offset), min(stop, ends[number]) - offset
                by_text[number].append(_Span(begin, end, shown if start >= offset else ""))
        for number, spans in by_text.items():
            holder, at, _ = texts[number]
            holder[at] = _replace_hidden_input_spans(pieces[number], spans)
        return list(by_text)

    def _hide_field(self, text: object) -> object:
        """Return the shown text of a hidden input in place of its value; any other value unchanged."""
        return self._shown_by_text.get(text, text) if isinstance(text, str) else text


def _replace_hidden_input_spans(text: str, spans: Sequence[_Span]) -> str:
    ends = [0, *(span.stop for span in spans)]
    kept = (text[end : span.start] + span.shown for end, span in zip(ends, spans, strict=False))
    return "".join(kept) + text[ends[-1] :]


def _list_page_parts_with_inputs(html: list[Any]) -> _Parts:
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


def _choose_text_for_hidden_input(text: str, mask: Callable[[Any], Any]) -> str:
    masked = mask({"value": text})["value"]
    return masked if masked != text and _MASK_TOKEN.fullmatch(masked) else HIDDEN_TEXT


def _reduce_input_text(text: str) -> _Reduced:
    """Return a text without case, spaces and URL encoding, with the position of each character."""
    characters: list[str] = []
    reduced = _Reduced("", array("l"), array("l"))
    for token in _TOKENS.finditer(text):
        if token.lastgroup == "plain":
            _add_plain_input_text(reduced, characters, token[0], token.start())
        elif token.lastgroup == "encoded":
            units = list(_ENCODED_BYTE.finditer(text, *token.span()))
            number = 0
            # Each byte that is no UTF-8 becomes one character, so that the positions stay known.
            for character in bytes(int(unit[1], 16) for unit in units).decode(errors="surrogateescape"):
                size = 1 if "\udc80" <= character <= "\udcff" else len(character.encode())
                if not character.isspace() and character != "+":
                    folded = character.casefold()
                    characters.append(folded)
                    reduced.starts.extend([units[number].start()] * len(folded))
                    reduced.ends.extend([units[number + size - 1].end()] * len(folded))
                number += size
    return reduced._replace(text="".join(characters))


def _add_plain_input_text(reduced: _Reduced, characters: list[str], text: str, start: int) -> None:
    folded = text.casefold()
    if len(folded) == len(text):
        lengths: Iterable[int] = ()
        reduced.starts.extend(range(start, start + len(text)))
        reduced.ends.extend(range(start + 1, start + len(text) + 1))
    else:
        lengths = (len(character.casefold()) for character in text)
    for offset, length in enumerate(lengths, start):
        reduced.starts.extend([offset] * length)
        reduced.ends.extend([offset + 1] * length)
    characters.append(folded)
