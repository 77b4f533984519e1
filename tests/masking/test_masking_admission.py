"""Patterns are compiled, sized and timed before they are saved. Contract §3 (masking)."""

import random
import re
from typing import Any

import orjson
import pytest

from recorder import limits
from recorder.masking.expressions import compile_expression
from recorder.masking.pattern_admission import (
    PatternRefusal,
    find_refusals,
    list_pattern_characters,
    ordinary_texts,
    slow_texts,
)
from tests.support.masking import pattern

WRONG = {
    "open group": "(secret",
    "look-ahead": "secret(?=x)",
    "back-reference": r"(secret)\1",
    "open quotation": r"\Qsecret",
    "groups that close each other": "secret)|(?:x",
    "needs too much memory": r"(?:secret\pL{100}){10}",
    "matches nothing at all": "(?:secret)*",
    "matches an edge": r"\b",
    "beginning of the text": r"\Asecret",
    "end of the text": r"secret\z",
    "line ends switched off": "(?i-m)secret$",
    "single byte": r"secret\C",
}
#: Each takes seconds a megabyte on a text that the corpus has or that is close to one of its texts.
SLOW = {
    "all places at once": "(?:[ab]*a[ab]{300}c)",
    "a short one": "[ab]*a[ab]{20}c",
    "any character": "secret.*a.{100}b|.*a.{100}b",
    "words": r"(?:\w{1,50}x){5}",
    "optional characters": "(?:.{0,50}a){10}",
    "a repetition that falls back to the slow automaton": "[ab]{900}",
    "two kinds of places": "(?:x[xy]{200}z|y[xy]{150}z)",
    "Unicode": "[éя]*é[éя]{200}z",
}
HARMLESS = [
    r"\Qa(b\E+",
    r"\\Az",
    "(?P<n>x)|(?P<n>y)",
    r"(?i)\bemp-[0-9]{6}\b",
    r"\pL{2}[0-9]+",
    r"[y-\x{4E00}]",
    "[一-龥é]+",
    r"\b[A-Z]{2}[0-9]{2}(?: ?[0-9A-Z]{4}){3,7}\b",
    r"\+[0-9]{1,3}[ -]?[0-9]{2,4}(?:[ -]?[0-9]{2,4}){2,4}",
    "(?i)wintermute|tessier|ashpool|straylight",
    r"https?://[^\s\"]+",
    r"\d{1,5} (?:\w+ ){1,3}(?:Street|St|Road|Rd|Avenue|Ave)\b",
    r"\b\p{Lu}\p{Ll}+ \p{Lu}\p{Ll}+\b",
    "[0-9a-f]{64}",
    "4[0-9]{15}",
    "5[1-5][0-9]{14}",
    r"(?:\+49|0)[0-9]{9,13}",
    "a.*b",
    "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=1000)),
]


@pytest.mark.parametrize("expression", WRONG.values(), ids=WRONG)
def test_an_expression_is_refused_without_being_repeated(expression: str, capfd: Any) -> None:
    (refusal,) = find_refusals([pattern("good", "x"), pattern("bad", expression)])
    assert (refusal.index, refusal.code) == (1, "invalid_value")
    assert "secret" not in refusal.message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("expression", SLOW.values(), ids=SLOW)
def test_a_slow_pattern_is_refused_with_its_time(expression: str) -> None:
    (refusal,) = find_refusals([pattern("good", "x"), pattern("slow", expression)])
    assert (refusal.index, refusal.code) == (1, "limit_reached")
    figure = re.fullmatch(
        r"This needs ([0-9,]+) ms per MB, at most 250 ms per MB is allowed; shorten .*\.", refusal.message
    )
    assert figure is not None
    # The margin is wide on both sides, so that no machine takes the one kind for the other.
    assert int(figure[1].replace(",", "")) > 1.5 * limits.MASKING_MS_PER_MB


@pytest.mark.parametrize("expression", HARMLESS)
def test_a_harmless_pattern_is_taken(expression: str) -> None:
    assert find_refusals([pattern("fine", expression)]) == []


def test_fifty_ordinary_patterns_are_taken_together() -> None:
    some = HARMLESS[:-1]
    many = [pattern(f"n{n}", rf"\b{n}(?:{some[n % len(some)]})") for n in range(limits.MASKING_PATTERNS)]
    small = [item for item in many if "\\p" not in item["pattern"]]
    assert find_refusals(small) == []


@pytest.mark.parametrize(
    ("expressions", "word"),
    [([r"\pL+"] * 20, "too large"), (["x" + "[0-9a-f]" * 400] * 6, "too many states")],
    ids=["instructions", "states"],
)
def test_patterns_are_refused_for_their_size_together(expressions: list[str], word: str) -> None:
    (refusal,) = find_refusals([pattern(f"n{n}", expression) for n, expression in enumerate(expressions)])
    assert (refusal.index, refusal.code) == (None, "invalid_value")
    assert word in refusal.message.lower()


def test_patterns_that_are_slow_only_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # No pattern takes nothing, and none of these a second: the limits are moved, not the measuring.
    monkeypatch.setattr(limits, "MASKING_MS_PER_MB", 1_000_000)
    monkeypatch.setattr(limits, "MASKING_MS_PER_MB_TOGETHER", 0)
    assert find_refusals([pattern("one", "x")]) == []
    (refusal,) = find_refusals([pattern("one", "x"), pattern("two", "y")])
    assert isinstance(refusal, PatternRefusal)
    assert (refusal.index, refusal.code) == (None, "limit_reached")


def test_the_corpus_is_the_same_each_time() -> None:
    for texts in (ordinary_texts, lambda size, seed: slow_texts("[ab]*a[ab]{9}", size, seed)):
        assert list(texts(1_000, 1)) == list(texts(1_000, 1)) != list(texts(1_000, 2))
    assert all(0 < len(text.encode()) <= 1_100 for text in ordinary_texts(1_000, 1))


@pytest.mark.parametrize(
    ("expression", "first"),
    [("[ab]*a[ab]{300}c", "abc"), (r"\d{2}x", "0189x"), (r"\x{e9}я", "éя"), (r"(?P<name>q)\.", "q.")],
)
def test_the_characters_of_an_expression_make_its_texts(expression: str, first: str) -> None:
    assert "".join(list_pattern_characters(expression)).startswith(first)


def test_a_scan_keeps_groups_only_where_it_is_told_to() -> None:
    assert compile_expression("(a)").search("a").groups() == ()
    assert compile_expression("(a)", keeps_groups=True).search("a").groups() == ("a",)


def test_refusals_travel_as_json() -> None:
    assert orjson.loads(orjson.dumps(find_refusals([pattern("bad", "(")]))) != []
