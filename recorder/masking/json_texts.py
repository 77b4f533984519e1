"""The strings of a JSON text as they read, each on a line: what one expression can scan. Contract §3."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

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
