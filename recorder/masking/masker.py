"""A masker: the rules of a workspace or workflow, applied to texts and to JSON values. Contract §3, §8."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any

import orjson

from recorder import limits
from recorder.masking.detectors import (
    ACCESS_TOKEN,
    CARD,
    EMAIL,
    MASK_TOKEN,
    Rule,
    Span,
    format_token,
    token_digest,
)
from recorder.masking.expressions import UNION_BYTES, compile_expression

#: Text in which masking replaces each key by its value.
Changes = dict[str, str]

_BUILTINS: dict[str, Rule] = {"email": EMAIL, "card": CARD, "token": ACCESS_TOKEN}


@dataclass(frozen=True)
class Rules:
    """What is looked for, and one expression over all of it."""

    rules: tuple[Rule, ...]
    #: Matches wherever a rule finds something, and rather more than less.
    hint: Any


@dataclass(frozen=True)
class Masker:
    """Replaces what its rules find by tokens."""

    rules: Rules
    #: Key of the workspace's tokens.
    key: bytes

    def may_change(self, text: bytes) -> bool:
        """Return whether masking may change a string of a JSON text; never wrong when it returns False."""
        lines = as_lines(text)
        return lines is None or self.rules.hint.search(lines) is not None

    def find_changes(self, documents: Sequence[bytes]) -> dict[int, Changes]:
        """Return the texts that masking changes in JSON documents, by the document's index."""
        suspects = (index for index, text in enumerate(documents) if self.may_change(text))
        found = ((index, self.changes(texts_of(orjson.loads(documents[index])))) for index in suspects)
        return {index: changes for index, changes in found if changes}

    def changes(self, texts: Iterable[str]) -> dict[str, str]:
        """Those of the texts that masking changes, each with what it becomes."""
        masked = ((text, self.mask_text(text)) for text in self._suspects(list(dict.fromkeys(texts))))
        return {text: became for text, became in masked if became != text}

    def mask_value(self, value: Any) -> Any:
        """A JSON value, masked: its strings, and the keys of its objects."""
        changed = self.changes(texts_of(value))
        return with_texts(value, changed) if changed else value

    def mask_text(self, text: str) -> str:
        """One text, masked."""
        encoded = text.encode()
        pieces, end = [], 0
        for start, stop, rule in self._spans(encoded):
            value = rule.plain(encoded[start:stop].decode())
            pieces += [encoded[end:start].decode(), rule.replacement]
            pieces.append(format_token(rule.name, token_digest(self.key, value)))
            end = stop
        return "".join((*pieces, encoded[end:].decode()))

    def _suspects(self, texts: list[str]) -> Iterator[str]:
        """Those in which something may be found: one scan of all of them, an entry takes a microsecond."""
        lines = [text.encode() for text in texts]
        ends = list(accumulate(len(line) + 1 for line in lines))
        unseen = 0
        hits = list(islice(self.rules.hint.finditer(b"\n".join(lines)), limits.MASKING_HITS + 1))
        for hit in hits:
            first, last = (bisect_right(ends, place) for place in hit.span())
            yield from texts[max(first, unseen) : last + 1]
            unseen = max(last + 1, unseen)
        if len(hits) > limits.MASKING_HITS:
            yield from texts[unseen:]

    def _spans(self, text: bytes) -> list[tuple[int, int, Rule]]:
        """What is masked, in order and apart: spans that overlap become one, named by the first."""
        ours = [match.span() for match in MASK_TOKEN.finditer(text)]
        found: list[tuple[int, int, Rule]] = []
        for rule in self.rules.rules:
            spans = list(islice(rule.find(text), limits.MASKING_HITS + 1))
            if len(spans) > limits.MASKING_HITS:
                return [(0, len(text), rule)]
            found += [(*span, rule) for span in spans if span[0] < span[1] and not _lies_in(span, ours)]
        # Sorting keeps the order of rules among equal spans.
        found.sort(key=lambda span: (span[0], -span[1]))
        apart: list[tuple[int, int, Rule]] = []
        for start, end, rule in found:
            if not apart or start >= apart[-1][1]:
                apart.append((start, end, rule))
            elif end > apart[-1][1]:
                apart[-1] = (apart[-1][0], end, apart[-1][2])
        return apart


@lru_cache(maxsize=16)
def compile_rules(described: tuple[str, ...]) -> Rules:
    """Return the rules of one or more policies, each as JSON; patterns come before built-in kinds."""
    policies = [orjson.loads(text) for text in described]
    own = [Rule.of(pattern) for policy in policies for pattern in policy.get("patterns") or ()]
    named = {name for policy in policies for name in policy.get("builtins") or ()}
    rules = (*own, *(rule for name, rule in _BUILTINS.items() if name in named))
    hint = compile_expression("|".join(f"(?:{rule.hint})" for rule in rules), max_bytes=UNION_BYTES)
    return Rules(rules, hint)


def _lies_in(span: Span, others: Sequence[Span]) -> bool:
    """Whether a span lies within one of the others, which are in order and apart."""
    place = bisect_right(others, span[0], key=itemgetter(0))
    return place > 0 and span[1] <= others[place - 1][1]


_QUOTES_TO_LINES = bytes.maketrans(b'"', b"\n")
#: What stands for the character behind a backslash; a quote has become a line end by then.
_ESCAPES = {
    b"\n": b'"',
    b"/": b"/",
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"b": b"\b",
    b"f": b"\f",
}
# A fifth of a microsecond each: with more of them, reading the text at leisure is the better way.
_MAX_ESCAPES = 5_000


def as_lines(text: bytes) -> bytes | None:
    """A JSON text in which every string begins a line and ends it, and no character is escaped.

    So an expression that matches in a string matches here too, also at its ends and across escapes.

    Returns:
        None where that cannot be had so cheaply: the text is no JSON, or escapes control characters, or much.
    """
    lines = text.translate(_QUOTES_TO_LINES)
    if b"\\" not in lines:
        return lines
    return _unescape(lines) or _without_code_points(text)


def _without_code_points(text: bytes) -> bytes | None:
    try:
        plain = orjson.dumps(orjson.loads(text))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    # orjson escapes as little as JSON allows: a code point that is left is a control character.
    return _unescape(plain.translate(_QUOTES_TO_LINES))


def _unescape(lines: bytes) -> bytes | None:
    """The text without escapes; None where one is a code point, or none of JSON's."""
    parts = lines.split(b"\\")
    if len(parts) > _MAX_ESCAPES:
        return None
    following = iter(parts)
    pieces = [next(following)]
    for part in following:
        if not part:  # nothing between two backslashes: they stand for one
            pieces += (b"\\", next(following, b""))
            continue
        letter = _ESCAPES.get(part[:1])
        if letter is None:
            return None
        pieces += (letter, part[1:])
    return b"".join(pieces)


def texts_of(value: Any) -> Iterator[str]:
    """Every string of a value, keys of objects among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for member in value.values():
            yield from texts_of(member)
    elif isinstance(value, list):
        for member in value:
            yield from texts_of(member)


def with_texts(value: Any, changed: Mapping[str, str]) -> Any:
    """The value with these texts in the place of those; keys that become one are kept apart by a number."""
    if isinstance(value, str):
        return changed.get(value, value)
    if isinstance(value, list):
        return [with_texts(member, changed) for member in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for key, member in value.items():
        result[_free_key(changed.get(key, key), result, numbers)] = with_texts(member, changed)
    return result


def _free_key(key: str, taken: Mapping[str, Any], numbers: dict[str, int]) -> str:
    """The key, or the key with the lowest free number; `numbers` holds where the count of each key stands."""
    if key not in taken:
        return key
    # Counting on, not anew: what was taken stays taken.
    number = numbers.get(key, 2)
    while (free := f"{key} {number}") in taken:
        number += 1
    numbers[key] = number + 1
    return free
