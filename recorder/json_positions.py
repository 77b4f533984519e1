"""Line and column of faults in JSON texts, for error messages. Contract §1."""

import json
import re
from collections.abc import Callable

#: Longer texts are not searched a second time: it takes twice as long as the first reading.
_SEARCHED_CHARACTERS = 65_536
_STRING = r'"(?:[^"\\]|\\.)*+"'
_NON_NUMBER = re.compile(rf"{_STRING}|(NaN|-?Infinity)", re.DOTALL)
#: Numbers that may have too many digits, or lie outside of 64 bits or of what a float holds.
_LARGE_NUMBER = re.compile(rf"{_STRING}|(-?[0-9][0-9.]*[eE][+-]?[0-9]+|-?[0-9]{{19,}}[0-9.]*)", re.DOTALL)
_KEY_OR_BRACE = re.compile(rf"({_STRING})([ \t\r\n]*:)?|[{{}}]", re.DOTALL)
#: A string that is not terminated reaches to the end of the text.
_BRACKET = re.compile(rf"{_STRING}?|([\[{{])|([\]}}])", re.DOTALL)
#: All text before the first half of a surrogate pair.
_BEFORE_SURROGATE = re.compile(
    r"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)*+",
    re.DOTALL,
)


def describe_json_position(text: str, position: int) -> str:
    """Return line and column of a position, both counted from 1."""
    return (
        f"line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"
    )


def describe_undecodable(body: bytes, position: int) -> str:
    """Return line and column of the first byte that is not UTF-8."""
    text = body[:position].decode("utf-8")
    return describe_json_position(text, len(text))


def locate_constant(text: str) -> str:
    """Return the position of the first NaN or Infinity in parentheses; nothing for a long text."""
    return _locate_json_fault(text, _make_match_finder(_NON_NUMBER, lambda _: True))


def locate_number(text: str, is_wrong: Callable[[str], bool]) -> str:
    """Return the position of the first large number that is wrong in parentheses; nothing for a long text."""
    return _locate_json_fault(text, _make_match_finder(_LARGE_NUMBER, is_wrong))


def locate_repeated_key(text: str) -> str:
    """Return the position of the first key that is repeated, in parentheses; nothing for a long text.

    Args:
        text: valid JSON up to the end of that object.
    """
    return _locate_json_fault(text, _find_repeated_key)


def locate_depth(body: bytes, levels: int) -> str:
    """Return the position of the first bracket that is too deep in parentheses; nothing for a long text.

    Args:
        body: any bytes; those that are not UTF-8 count as one character each.
        levels: the number of levels that a text may have.
    """
    if len(body) > _SEARCHED_CHARACTERS:
        return ""
    return _locate_json_fault(body.decode("utf-8", "replace"), lambda text: _find_deep_bracket(text, levels))


def locate_surrogate(text: str) -> str:
    """Return the position of the first half of a surrogate pair in parentheses; nothing for a long text.

    Args:
        text: valid JSON.
    """
    return _locate_json_fault(text, _find_surrogate)


def _locate_json_fault(text: str, find: Callable[[str], int | None]) -> str:
    position = find(text) if len(text) <= _SEARCHED_CHARACTERS else None
    return "" if position is None else f" ({describe_json_position(text, position)})"


def _make_match_finder(
    pattern: re.Pattern[str], is_wrong: Callable[[str], bool]
) -> Callable[[str], int | None]:
    """Return a function that finds the position of the first wrong match of a pattern."""

    def find(text: str) -> int | None:
        matches = (match for match in pattern.finditer(text) if match[1] is not None and is_wrong(match[1]))
        return next((match.start() for match in matches), None)

    return find


def _find_deep_bracket(text: str, levels: int) -> int | None:
    depth = 0
    for match in _BRACKET.finditer(text):
        opening, closing = match.groups()
        depth += (opening is not None) - (closing is not None)
        if depth > levels:
            return match.start()
    return None


def _find_surrogate(text: str) -> int | None:
    before = _BEFORE_SURROGATE.match(text)
    return before.end() if before and before.end() < len(text) else None


def _find_repeated_key(text: str) -> int | None:
    objects: list[set[str]] = []
    for match in _KEY_OR_BRACE.finditer(text):
        key, colon = match.groups()
        if key is None and match[0] == "{":
            objects.append(set())
        elif key is None:
            objects.pop()
        elif colon is not None:
            name = json.loads(key) if "\\" in key else key[1:-1]
            if name in objects[-1]:
                return match.start()
            objects[-1].add(name)
    return None
