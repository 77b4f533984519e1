"""Admission of patterns: each is compiled, measured and timed before it is saved. Contract §3 (masking)."""

import base64
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice
from statistics import median
from typing import Any

import orjson

from recorder import limits
from recorder.masking.detectors import DetectorRule
from recorder.masking.expressions import ExpressionSize, measure_expression_size
from recorder.masking.masker import compile_masker_rules

_MB = 1_000_000
# A short text is enough to refuse what is very slow, before a longer one takes seconds.
_FIRST_BYTES, _FIRST_FACTOR = 2_000, 6
_BYTES = 10_000
_RUNS = 3
#: So many patterns add texts of their own to those on which all patterns are timed together.
_PATTERNS_TOGETHER = 8


@dataclass(frozen=True)
class PatternRefusal:
    """Reason why patterns are not saved."""

    #: Index of the pattern; None for all patterns together.
    index: int | None
    code: str
    message: str


def find_refusals(patterns: Sequence[Mapping[str, str]]) -> list[PatternRefusal]:
    """Return the reasons why patterns may not be saved; empty if they may.

    Runs in a scan process, which is killed if patterns take too long; ordinary ones take milliseconds.
    """
    sizes: list[ExpressionSize] = []
    refused: list[PatternRefusal] = []
    for index, pattern in enumerate(patterns):
        try:
            sizes.append(measure_expression_size(pattern["pattern"]))
        except ValueError as error:
            refused.append(PatternRefusal(index, "invalid_value", _describe_pattern_error(error)))
    if refused:
        return refused
    if sum(size.states for size in sizes) > limits.MASKING_STATES:
        return [_make_joint_refusal("too many states; use fewer patterns, or smaller counts of repetitions")]
    if sum(size.instructions for size in sizes) > limits.MASKING_INSTRUCTIONS:
        return [_make_joint_refusal("too large once compiled; use fewer Unicode classes")]
    return list(_find_slow(patterns))


def describe_slowness(ms_per_mb: float | None, allowed_ms: int) -> str:
    """Return the sentence that refuses a pattern for the CPU time it takes.

    Args:
        ms_per_mb: The measured time; None if the measurement took too long and was stopped.
        allowed_ms: The time that is allowed.
    """
    needs = "takes too long to be measured" if ms_per_mb is None else f"needs {ms_per_mb:,.0f} ms per MB"
    return (
        f"This {needs}, at most {allowed_ms} ms per MB is allowed; "
        "shorten its counted repetitions, let it begin with \\b, or use fewer patterns."
    )


def measure_pattern_slowness(rules: Any, texts: Sequence[Sequence[str]]) -> float:
    """Return the CPU milliseconds per megabyte of the slowest kind of text.

    Args:
        rules: An object with `hint` and `rules`, as `compile_masker_rules` returns.
        texts: The texts of each run, of the same kinds in the same order.
    """
    encoded = [[text.encode() for text in run] for run in texts]
    for text in encoded[0]:  # fills RE2's caches, as they are when bodies are scanned
        _scan_pattern_text(rules, text)
    # The median of several texts of a kind: neither a busy machine nor one odd text refuses a pattern.
    kinds = zip(*encoded, strict=True)
    return (
        max(median(_time_pattern_scan_s(rules, text) / len(text) for text in kind) for kind in kinds)
        * 1e3
        * _MB
    )


def _find_slow(patterns: Sequence[Mapping[str, str]]) -> Iterator[PatternRefusal]:
    """Yield the patterns that are too slow, alone or all together, on short texts and then on longer ones."""
    for size, allowed in ((_FIRST_BYTES, _FIRST_FACTOR), (_BYTES, 1)):
        slow = False
        for index, pattern in enumerate(patterns):
            needed = _measure_lone_pattern_slowness(pattern["pattern"], size)
            if needed > limits.MASKING_MS_PER_MB * allowed:
                slow = True
                yield PatternRefusal(
                    index, "limit_reached", describe_slowness(needed, limits.MASKING_MS_PER_MB)
                )
        if slow:
            return
    if len(patterns) > 1:
        needed = measure_pattern_slowness(
            compile_masker_rules((_encode_policy_of_patterns(patterns),)),
            _build_pattern_texts(patterns, _BYTES),
        )
        if needed > limits.MASKING_MS_PER_MB_TOGETHER:
            text = describe_slowness(needed, limits.MASKING_MS_PER_MB_TOGETHER)
            yield PatternRefusal(None, "limit_reached", text)


# Cached, since a request that changes one pattern contains the others again.
@lru_cache(maxsize=1_000)
def _measure_lone_pattern_slowness(pattern: str, size: int) -> float:
    alone = {"name": "alone", "pattern": pattern}
    return measure_pattern_slowness(
        compile_masker_rules((_encode_policy_of_patterns([alone]),)), _build_pattern_texts([alone], size)
    )


def _build_pattern_texts(patterns: Sequence[Mapping[str, str]], size: int) -> list[list[str]]:
    chosen = patterns[:: max(1, len(patterns) // _PATTERNS_TOGETHER)]
    return [
        [
            *ordinary_texts(size, run),
            *(text for pattern in chosen for text in slow_texts(pattern["pattern"], size, run)),
        ]
        for run in range(_RUNS)
    ]


def _scan_pattern_text(rules: Any, text: bytes) -> None:
    """Scan a text as masking does: once with all expressions, then with each."""
    rules.hint.search(text)
    for rule in rules.rules:
        _exhaust_matches(rule, text)


def _exhaust_matches(rule: DetectorRule, text: bytes) -> None:
    """Run a masking pattern over a text up to the limit on matches, to measure its time."""
    for _ in islice(rule.find(text), limits.MASKING_HITS + 1):
        pass


def _time_pattern_scan_s(rules: Any, text: bytes) -> float:
    began = time.thread_time()
    _scan_pattern_text(rules, text)
    return time.thread_time() - began


def _encode_policy_of_patterns(patterns: Sequence[Mapping[str, str]]) -> str:
    return orjson.dumps({"builtins": [], "patterns": list(patterns)}).decode()


def _make_joint_refusal(text: str) -> PatternRefusal:
    """Return the refusal of patterns that are too slow together, though none is alone."""
    return PatternRefusal(None, "invalid_value", text[0].upper() + text[1:] + ".")


def _describe_pattern_error(error: ValueError) -> str:
    text = str(error)
    return text[0].upper() + text[1:] + "."


_PROSE = (
    "order invoice customer Zürich naïve façade 東京 заказ Ελλάδα 2026-03-14 10:15:00 aria-label Open "
    "{id} [x] https://shop.example/a?b=c ada.lovelace@example.com +44 20 7946 0958 DE89370400440532013000 "
    "#ref-8841 4111 1111 1111 1111 total: 1,299.00 EUR; see /var/log/app.log, line 88 (main) ACC-204816"
)
_WORDS = _PROSE.split()
_CLASSES = {
    "d": "0189",
    "w": "ab0_",
    "s": " \t",
    "D": "ab -",
    "W": " -.,",
    "S": "ab0.",
    "p": "aéя東0",
    "P": "aé 0-",
    "b": "a -",
}
_ESCAPE = re.compile(r"\\(x\{[0-9A-Fa-f]{1,6}\}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
# Counts and names of groups are not characters that a pattern matches.
_SYNTAX = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}|\(\?P<\w+>|\(\?[a-zA-Z-]+[:)]|\(\?:|\[\[:\^?\w+:\]\]|\^?\$")
_MAX_CHARACTERS = 12
_PAIRS = 6


@lru_cache(maxsize=16)
def ordinary_texts(size: int, seed: int) -> tuple[str, ...]:
    """Return texts like recorded ones: prose, JSON, digits, base64, spaces, lines."""
    return tuple(_yield_ordinary_pattern_texts(size, seed))


def _yield_ordinary_pattern_texts(size: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)  # noqa: S311  (the same texts each time, no secret)
    words = rng.choices(_WORDS, k=size // 6 + 1)
    yield " ".join(words)[:size]
    members = (f'{{"{word}":"{word} {number}","n":{number}}},' for number, word in enumerate(words))
    yield "".join(members)[:size]
    yield "".join(rng.choices("0123456789", k=size))
    yield base64.b64encode(rng.randbytes(size)).decode()[:size]
    yield "\n".join(words)[:size]
    yield " " * size
    yield "".join(rng.choices("éяΩ東京語", k=size // 3))


def slow_texts(pattern: str, size: int, seed: int) -> Iterator[str]:
    """Yield texts that are hard for an expression: repetitions and random texts of its own characters."""
    rng = random.Random(seed)  # noqa: S311
    alphabet = list_pattern_characters(pattern)
    for letters in (alphabet, alphabet[:2], alphabet[-2:], *_choose_pattern_character_pairs(alphabet, rng)):
        yield _make_random_pattern_text(letters, size, rng)
    for first, second in combinations(alphabet[:3], 2):
        yield (first + second) * (size // 2)
    for letter in alphabet[:3]:
        yield letter * size
    literal = re.sub(r"[^0-9A-Za-z]+", "", _SYNTAX.sub("", pattern))[:40]
    if literal:
        yield (literal * (size // len(literal) + 1))[:size]


def list_pattern_characters(pattern: str) -> Sequence[str]:
    """Return up to 12 characters that an expression distinguishes, in order of occurrence."""
    bare = _SYNTAX.sub("", pattern)
    characters: list[str] = []
    end = 0
    for escape in _ESCAPE.finditer(bare):
        characters += bare[end : escape.start()]
        characters += _list_escape_characters(escape.group(1))
        end = escape.end()
    characters += bare[end:]
    letters = [letter for letter in dict.fromkeys(characters) if letter not in "()[]{}|*+?^$"]
    # A character that the expression names nowhere, such as those that `.` and `[^a]` match.
    letters = letters[: _MAX_CHARACTERS - 2] + [letter for letter in "xa~" if letter not in letters][:2]
    return letters


def _list_escape_characters(escape: str) -> str:
    if escape[0] == "x" and len(escape) > 1:
        code = int(escape[1:].strip("{}"), 16)
        return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else ""
    return _CLASSES.get(escape, {"n": "\n", "t": "\t", "r": "\r"}.get(escape, escape))


def _make_random_pattern_text(letters: Sequence[str], size: int, rng: random.Random) -> str:
    """Draw characters; a table over random bytes takes a tenth of the time of `random.choices`."""
    drawn = rng.randbytes(size)
    chosen = [letters[byte % len(letters)] for byte in range(256)]
    if "".join(letters).isascii():
        return drawn.translate("".join(chosen).encode()).decode()
    return drawn.decode("latin-1").translate(dict(enumerate(chosen)))


def _choose_pattern_character_pairs(alphabet: Sequence[str], rng: random.Random) -> list[tuple[str, ...]]:
    """Draw pairs of characters: an expression is slowest between two that it distinguishes."""
    pairs = list(combinations(alphabet, 2))
    return rng.sample(pairs, min(_PAIRS, len(pairs)))
