"""The work of masking is proportional to the masked text, whatever a client sends. Contract §3 (masking)."""

import re
from collections.abc import Iterator, Sequence
from typing import overload

from hypothesis import given
from hypothesis import strategies as st

from recorder.masking.detectors import CARD, Span
from recorder.masking.masker import _is_within_masked_span, replace_json_strings


class _CountedKey(str):
    """A masked key that counts how often a number is tried on it."""

    tries = 0

    def __format__(self, form: str) -> str:
        self.tries += 1
        return super().__format__(form)


class _CountedSpans(Sequence[Span]):
    """Spans that count how often one of them is read."""

    def __init__(self, spans: list[Span]) -> None:
        self.spans, self.looks = spans, 0

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | Sequence[Span]:
        self.looks += 1
        return self.spans[index]

    def __len__(self) -> int:
        return len(self.spans)


def test_a_number_is_tried_once_for_each_key_that_becomes_the_same() -> None:
    masked = _CountedKey("masked")
    keys = [f"key {n}" for n in range(500)]
    # One name in two is taken already.
    taken = [f"masked {n}" for n in range(2, 1000, 2)]
    result = replace_json_strings(dict.fromkeys([*taken, *keys]), dict.fromkeys(keys, masked))
    assert len(result) == len(taken) + len(keys)
    assert masked.tries <= len(result)


_names = st.sampled_from(["a", "b", "a 2", "a 3", "a 2 2", "b 2", "c", "d", "e", "f", "g"])


@given(keys=st.lists(_names, unique=True), changed=st.dictionaries(_names, _names))
def test_keys_get_the_lowest_number_that_is_free(keys: list[str], changed: dict[str, str]) -> None:
    expected: list[str] = []
    for key in (changed.get(key, key) for key in keys):
        numbered = (f"{key} {number}" for number in range(2, len(keys) + 3))
        expected.append(next(name for name in (key, *numbered) if name not in expected))
    assert list(replace_json_strings(dict.fromkeys(keys), changed)) == expected


def test_few_of_many_tokens_are_looked_at_for_a_hit() -> None:
    tokens = _CountedSpans([(start, start + 5) for start in range(0, 100_000, 10)])
    assert _is_within_masked_span((99_991, 99_995), tokens)
    assert not _is_within_masked_span((99_996, 99_998), tokens)
    assert tokens.looks < 50


@given(cuts=st.sets(st.integers(0, 30)), start=st.integers(0, 30), length=st.integers(1, 10))
def test_a_span_lies_in_a_token_that_holds_all_of_it(cuts: set[int], start: int, length: int) -> None:
    edges = sorted(cuts)
    tokens = list(zip(edges[::2], edges[1::2], strict=False))
    expected = any(first <= start and start + length <= end for first, end in tokens)
    assert _is_within_masked_span((start, start + length), tokens) == expected


_FIRST = "[2-6]"
_GAP = "[ \\-\u00a0\u2007\u2009\u2010-\u2013\u202f]"
_SHAPES = [
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}{_GAP}[0-9]{{3}}",
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{5}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4}}",
    rf"{_FIRST}[0-9]{{12,18}}",
]


def _passes_luhn(number: str) -> bool:
    """Return whether a number passes the check of ISO/IEC 7812, computed digit by digit from the right."""
    total = 0
    for index, digit in enumerate(int(letter) for letter in reversed(number) if letter.isdigit()):
        value = digit * 2 if index % 2 else digit
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _cards_place_by_place(text: str) -> Iterator[Span]:
    """Return the card numbers of a text by trying every offset in turn."""
    start = 0
    while start < len(text):
        before, end = text[:start], start
        if not re.search(r"[0-9A-Za-z]\Z|[0-9]\.\Z", before):
            matches = (re.compile(shape).match(text, start) for shape in _SHAPES)
            result = (
                match.end() for match in matches if match and not re.match("[0-9A-Za-z]", text[match.end() :])
            )
            end = next((end for end in result if _passes_luhn(text[start:end])), start)
        if end > start:
            yield len(before.encode()), len(text[:end].encode())
        start = max(end, start + 1)


_PARTS = [
    "4111111111111111",
    "4111 1111 1111 1111",
    "3782 822463 10005",
    "5555-5555-5555-4444",
    "6011",
    "4444",
]
_PARTS += [*"0123456789", "44444444444444444444", " ", "-", "\u00a0", "\u2013", "\u2014", ".", "x", "é"]


@given(text=st.lists(st.sampled_from(_PARTS), max_size=12).map("".join))
def test_no_card_is_lost_by_passing_over_digits(text: str) -> None:
    assert list(CARD.find(text.encode())) == list(_cards_place_by_place(text))
