"""Fixed texts on which patterns are timed before they are saved. Contract §3 (masking)."""

import base64
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

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
# Neither counts nor names of groups are characters that a pattern matches.
_SYNTAX = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}|\(\?P<\w+>|\(\?[a-zA-Z-]+[:)]|\(\?:|\[\[:\^?\w+:\]\]|\^?\$")
_MOST = 12
_PAIRS = 6


@lru_cache(maxsize=16)
def ordinary_texts(size: int, seed: int) -> tuple[str, ...]:
    """Return texts as they are recorded: prose, JSON, digits, base64, spaces, lines."""
    return tuple(_draw_ordinary(size, seed))


def _draw_ordinary(size: int, seed: int) -> Iterator[str]:
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
    alphabet = characters_of(pattern)
    for letters in (alphabet, alphabet[:2], alphabet[-2:], *_draw_pairs(alphabet, rng)):
        yield _draw_text(letters, size, rng)
    for first, second in combinations(alphabet[:3], 2):
        yield (first + second) * (size // 2)
    for letter in alphabet[:3]:
        yield letter * size
    literal = re.sub(r"[^0-9A-Za-z]+", "", _SYNTAX.sub("", pattern))[:40]
    if literal:
        yield (literal * (size // len(literal) + 1))[:size]


def characters_of(pattern: str) -> Sequence[str]:
    """Return up to 12 characters that an expression distinguishes, those that occur first in it first."""
    bare = _SYNTAX.sub("", pattern)
    found: list[str] = []
    end = 0
    for escape in _ESCAPE.finditer(bare):
        found += bare[end : escape.start()]
        found += _characters_of_escape(escape.group(1))
        end = escape.end()
    found += bare[end:]
    letters = [letter for letter in dict.fromkeys(found) if letter not in "()[]{}|*+?^$"]
    # A character that the expression names nowhere, such as those that `.` and `[^a]` match.
    letters = letters[: _MOST - 2] + [letter for letter in "xa~" if letter not in letters][:2]
    return letters


def _characters_of_escape(escape: str) -> str:
    if escape[0] == "x" and len(escape) > 1:
        code = int(escape[1:].strip("{}"), 16)
        return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else ""
    return _CLASSES.get(escape, {"n": "\n", "t": "\t", "r": "\r"}.get(escape, escape))


def _draw_text(letters: Sequence[str], size: int, rng: random.Random) -> str:
    """Draw characters; a table over random bytes takes a tenth of the time of `random.choices`."""
    drawn = rng.randbytes(size)
    chosen = [letters[byte % len(letters)] for byte in range(256)]
    if "".join(letters).isascii():
        return drawn.translate("".join(chosen).encode()).decode()
    return drawn.decode("latin-1").translate(dict(enumerate(chosen)))


def _draw_pairs(alphabet: Sequence[str], rng: random.Random) -> list[tuple[str, ...]]:
    """Draw pairs of characters: between two that it tells apart, an expression is slowest."""
    pairs = list(combinations(alphabet, 2))
    return rng.sample(pairs, min(_PAIRS, len(pairs)))
