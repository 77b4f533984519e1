"""The strings of a JSON text as they read, each on a line: what one expression can scan. Contract §3."""

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
