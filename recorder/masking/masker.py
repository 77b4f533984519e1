"""Masker: compiled rules of a policy, applied to texts and to the strings of JSON values. Contract §3, §8."""

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
    DetectorRule,
    Span,
    compute_token_digest,
    format_mask_token,
)
from recorder.masking.expressions import UNION_BYTES, compile_expression

#: Text in which masking replaces each key by its value.
Changes = dict[str, str]

_BUILTINS: dict[str, DetectorRule] = {"email": EMAIL, "card": CARD, "token": ACCESS_TOKEN}


@dataclass(frozen=True)
class CompiledRules:
    """Compiled rules, and one expression over all of them."""

    rules: tuple[DetectorRule, ...]
    #: Matches at least wherever a rule finds a span.
    hint: Any


@dataclass(frozen=True)
class Masker:
    """Compiled masking rules that replace the values that they find by tokens."""

    rules: CompiledRules
    #: Key of the workspace's tokens.
    key: bytes

    def may_change(self, text: bytes) -> bool:
        """Return whether masking may change a string of a JSON text; False is certain."""
        lines = split_json_strings_to_mask(text)
        return lines is None or self.rules.hint.search(lines) is not None

    def find_changes(self, documents: Sequence[bytes]) -> dict[int, Changes]:
        """Return the texts that masking changes in JSON documents, by the document's index."""
        suspects = (index for index, text in enumerate(documents) if self.may_change(text))
        changes = (
            (index, self.changes(list_texts_to_mask(orjson.loads(documents[index])))) for index in suspects
        )
        return {index: changed for index, changed in changes if changed}

    def changes(self, texts: Iterable[str]) -> dict[str, str]:
        """Return the texts that masking changes, each with its masked form."""
        pairs = ((text, self.mask_text(text)) for text in self._find_suspects(list(dict.fromkeys(texts))))
        return {text: masked for text, masked in pairs if masked != text}

    def mask_value(self, value: Any) -> Any:
        """Return a JSON value with masked strings and keys of objects."""
        changed = self.changes(list_texts_to_mask(value))
        return replace_json_strings(value, changed) if changed else value

    def mask_text(self, text: str) -> str:
        """Return a text with all values masked."""
        encoded = text.encode()
        pieces, end = [], 0
        for start, stop, rule in self._find_spans(encoded):
            value = rule.plain(encoded[start:stop].decode())
            pieces += [encoded[end:start].decode(), rule.replacement]
            pieces.append(format_mask_token(rule.name, compute_token_digest(self.key, value)))
            end = stop
        return "".join((*pieces, encoded[end:].decode()))

    def _find_suspects(self, texts: list[str]) -> Iterator[str]:
        """Yield the texts that rules may change, found by one scan, since each scan takes a microsecond."""
        lines = [text.encode() for text in texts]
        ends = list(accumulate(len(line) + 1 for line in lines))
        unseen = 0
        hits = list(islice(self.rules.hint.finditer(b"\n".join(lines)), limits.MASKING_HITS + 1))
        for hit in hits:
            first, last = (bisect_right(ends, offset) for offset in hit.span())
            yield from texts[max(first, unseen) : last + 1]
            unseen = max(last + 1, unseen)
        if len(hits) > limits.MASKING_HITS:
            yield from texts[unseen:]

    def _find_spans(self, text: bytes) -> list[tuple[int, int, DetectorRule]]:
        """Return the spans to mask, sorted and disjoint; overlapping spans become one of the first rule."""
        token_spans = [match.span() for match in MASK_TOKEN.finditer(text)]
        candidates: list[tuple[int, int, DetectorRule]] = []
        for rule in self.rules.rules:
            spans = list(islice(rule.find(text), limits.MASKING_HITS + 1))
            if len(spans) > limits.MASKING_HITS:
                return [(0, len(text), rule)]
            candidates += [
                (*span, rule)
                for span in spans
                if span[0] < span[1] and not _is_within_masked_span(span, token_spans)
            ]
        # Sorting keeps the order of rules among equal spans.
        candidates.sort(key=lambda span: (span[0], -span[1]))
        disjoint: list[tuple[int, int, DetectorRule]] = []
        for start, end, rule in candidates:
            if not disjoint or start >= disjoint[-1][1]:
                disjoint.append((start, end, rule))
            elif end > disjoint[-1][1]:
                disjoint[-1] = (disjoint[-1][0], end, disjoint[-1][2])
        return disjoint


@lru_cache(maxsize=16)
def compile_masker_rules(described: tuple[str, ...]) -> CompiledRules:
    """Return the rules of one or more policies, each as JSON; patterns come before built-in kinds."""
    policies = [orjson.loads(text) for text in described]
    patterns = [DetectorRule.of(pattern) for policy in policies for pattern in policy.get("patterns") or ()]
    named = {name for policy in policies for name in policy.get("builtins") or ()}
    rules = (*patterns, *(rule for name, rule in _BUILTINS.items() if name in named))
    hint = compile_expression("|".join(f"(?:{rule.hint})" for rule in rules), max_bytes=UNION_BYTES)
    return CompiledRules(rules, hint)


def _is_within_masked_span(span: Span, others: Sequence[Span]) -> bool:
    """Return whether one of the other spans, which are sorted and disjoint, contains a span."""
    index = bisect_right(others, span[0], key=itemgetter(0))
    return index > 0 and span[1] <= others[index - 1][1]


_QUOTES_TO_LINES = bytes.maketrans(b'"', b"\n")
#: Characters by the letter after the backslash; a quote was replaced by a line end before.
_ESCAPES = {
    b"\n": b'"',
    b"/": b"/",
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"b": b"\b",
    b"f": b"\f",
}
# Each takes a fifth of a microsecond; with more of them, parsing the text is faster.
_MAX_ESCAPES = 5_000


def split_json_strings_to_mask(text: bytes) -> bytes | None:
    """Return a JSON text with each string on a line of its own and no character escaped.

    An expression that matches in a string matches in this text too, also at its ends and across escapes.

    Returns:
        None if the text is no JSON, escapes control characters, or has too many escapes.
    """
    lines = text.translate(_QUOTES_TO_LINES)
    if b"\\" not in lines:
        return lines
    return _unescape_text_to_mask(lines) or _normalize_escapes_to_mask(text)


def _normalize_escapes_to_mask(text: bytes) -> bytes | None:
    try:
        plain = orjson.dumps(orjson.loads(text))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    # orjson escapes as little as JSON allows: a code point that remains is a control character.
    return _unescape_text_to_mask(plain.translate(_QUOTES_TO_LINES))


def _unescape_text_to_mask(lines: bytes) -> bytes | None:
    """Return the text without escapes; None if an escape is a code point or not one of JSON's."""
    parts = lines.split(b"\\")
    if len(parts) > _MAX_ESCAPES:
        return None
    following = iter(parts)
    pieces = [next(following)]
    for part in following:
        if not part:  # two backslashes in a row are one escaped backslash
            pieces += (b"\\", next(following, b""))
            continue
        letter = _ESCAPES.get(part[:1])
        if letter is None:
            return None
        pieces += (letter, part[1:])
    return b"".join(pieces)


def list_texts_to_mask(value: Any) -> Iterator[str]:
    """Yield every string of a value, keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for member in value.values():
            yield from list_texts_to_mask(member)
    elif isinstance(value, list):
        for member in value:
            yield from list_texts_to_mask(member)


def replace_json_strings(value: Any, changed: Mapping[str, str]) -> Any:
    """Return the value with changed texts replaced; keys that become equal get a number."""
    if isinstance(value, str):
        return changed.get(value, value)
    if isinstance(value, list):
        return [replace_json_strings(member, changed) for member in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for key, member in value.items():
        result[_make_key_unique(changed.get(key, key), result, numbers)] = replace_json_strings(
            member, changed
        )
    return result


def _make_key_unique(key: str, taken: Mapping[str, Any], numbers: dict[str, int]) -> str:
    """Return the key, or the key with the lowest free number; `numbers` has the next number of each key."""
    if key not in taken:
        return key
    # The count continues, since keys that were taken stay taken.
    number = numbers.get(key, 2)
    while (free := f"{key} {number}") in taken:
        number += 1
    numbers[key] = number + 1
    return free
