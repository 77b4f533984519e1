"""Strict JSON reader for request bodies: UTF-8, int64, no NUL, no repeated key, 64 levels. Contract §1."""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from recorder.errors import InvalidJson, RecorderError, ValidationFailed, json_pointer
from recorder.json_positions import (
    describe_undecodable,
    locate_constant,
    locate_depth,
    locate_number,
    locate_repeated_key,
    locate_surrogate,
)
from recorder.limits import JSON_DEPTH

#: Translation of a text after which runs of digits are found as runs of zeros.
DIGITS_AS_ZEROS = bytes(ord("0") if letter in b"0123456789" else ord(" ") for letter in range(256))
#: A run of fewer digits is an integer of 64 bits.
_LONG_NUMBER = b"0" * 19
_INTEGER_DIGITS = 400
_INT64 = range(-(2**63), 2**63)
# An unterminated string matches to the end of the text, so that no start is matched twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_AS_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_ESCAPED_NUL = re.compile(rb"\\u0000")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(body: bytes, *, part: str | None = None) -> Any:
    """Return the value of a JSON text.

    Args:
        body: the text.
        part: name of the part of a multipart body that holds the text, for the errors.

    Raises:
        InvalidJson: if the text is empty, malformed, not UTF-8, too deep, repeats a key or holds NaN.
        ValidationFailed: if a string holds NUL or an integer does not fit into 64 bits.
    """
    check_depth(body)
    whole = "The body" if part is None else f"The part `{part}`"
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        location = describe_undecodable(body, error.start)
        raise InvalidJson(f"{whole} must be UTF-8; it is not at {location}.") from error
    if text.startswith("\ufeff"):
        raise InvalidJson(f"{whole} must not begin with a byte order mark (line 1, column 1).")
    # A call for each integer takes as long as all else, and only long ones need it.
    has_long_number = _LONG_NUMBER in body.translate(DIGITS_AS_ZEROS)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_make_json_object,
            parse_constant=_refuse_nan_or_infinity,
            parse_int=_parse_json_int if has_long_number else int,
            parse_float=_parse_json_float,
        )
    except json.JSONDecodeError as error:
        if not text.strip():
            raise InvalidJson(f"{whole} is empty; send JSON.") from error
        position = f"at line {error.lineno}, column {error.colno}"
        json_text = "The JSON" if part is None else f"The JSON of the part `{part}`"
        raise InvalidJson(f"{json_text} is malformed {position}.") from error
    except RecursionError as error:
        raise InvalidJson("The JSON is malformed.") from error
    except _WrongToken as error:
        raise error.describe(text) from None
    if _ESCAPED_NUL.search(body) or b"\0" in body or _ESCAPED_SURROGATE.search(body):
        if _find_json_steps(value, _holds_surrogate) is not None:
            raise _describe_lone_surrogate(text)
        steps = _find_json_steps(value, _holds_nul)
        if steps is not None:
            message = "Strings must not hold NUL."
            raise ValidationFailed.of(json_pointer(*steps), "invalid_string", message=message)
    return value


def check_depth(body: bytes) -> None:
    """Check the depth of a text before a parser descends into it.

    Raises:
        InvalidJson: if the text is nested deeper than the limit.
    """
    if body.count(b"[") + body.count(b"{") <= JSON_DEPTH:
        return
    # Strings are removed first, so that brackets inside them do not count; the rest is summed up. If a text
    # closes more brackets than it opened, the sum is too small, but parsers stop at that bracket.
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(_AS_STEPS, _NO_BRACKETS), np.int8)
    if brackets.size and int(np.cumsum(brackets, dtype=np.int32).max()) > JSON_DEPTH:
        location = locate_depth(body, JSON_DEPTH)
        raise InvalidJson(f"JSON may be at most {JSON_DEPTH} levels deep{location}.", item="json_too_deep")


def _make_json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _WrongToken(_describe_repeated_key)
    return result


def _refuse_nan_or_infinity(name: str) -> NoReturn:
    raise _WrongToken(_describe_nan_or_infinity)


def _parse_json_int(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS:
        raise _WrongToken(_describe_too_many_digits)
    value = int(digits)
    if value not in _INT64:
        raise _WrongToken(_describe_too_large_integer)
    return value


def _parse_json_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _WrongToken(_describe_too_large_float)
    return value


class _WrongToken(Exception):
    """A token that the contract refuses; hooks and decoded strings do not know where it is."""

    def __init__(self, describe: Callable[[str], RecorderError]) -> None:
        super().__init__()
        self.describe = describe


def _describe_repeated_key(text: str) -> InvalidJson:
    detail = f"An object repeats a key{locate_repeated_key(text)}; send each key once."
    return InvalidJson(detail, item="duplicate_key")


def _describe_nan_or_infinity(text: str) -> InvalidJson:
    return InvalidJson(f"NaN and Infinity are not JSON{locate_constant(text)}; send null or a number.")


def _describe_too_many_digits(text: str) -> InvalidJson:
    location = locate_number(text, lambda number: _is_integer_text(number) and len(number) > _INTEGER_DIGITS)
    return InvalidJson(f"A number has too many digits{location}.")


def _describe_too_large_integer(text: str) -> ValidationFailed:
    location = locate_number(text, lambda number: _is_integer_text(number) and int(number) not in _INT64)
    message = f"Integers must fit into 64 bits{location}."
    return ValidationFailed.of(_find_integer_pointer(text), "invalid_integer", message=message)


def _find_integer_pointer(text: str) -> str:
    """Return the pointer to the first integer that does not fit into 64 bits.

    It is empty where the text is malformed after that integer.
    """
    try:
        value = json.loads(text, parse_int=lambda digits: int(digits[:_INTEGER_DIGITS]))
    except (ValueError, RecursionError):
        return ""
    return json_pointer(*(_find_json_steps(value, _exceeds_int64) or ()))


def _find_json_steps(value: Any, is_wrong: Callable[[Any], bool]) -> list[str | int] | None:
    """Return the names and indices that lead to the first wrong value; None if there is none.

    Those of a wrong name lead to its object. They are gathered on the way back: pointers to all values of a
    body take quadratic time if its names are long.
    """
    if is_wrong(value):
        return []
    members: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for name, member in members:
        if is_wrong(name):
            return []
        steps = _find_json_steps(member, is_wrong)
        if steps is not None:
            return [name, *steps]
    return None


def _exceeds_int64(value: Any) -> bool:
    return isinstance(value, int) and value not in _INT64


def _holds_nul(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def _holds_surrogate(value: Any) -> bool:
    return isinstance(value, str) and _SURROGATE.search(value) is not None


def _describe_too_large_float(text: str) -> InvalidJson:
    location = locate_number(text, lambda number: not _is_integer_text(number) and math.isinf(float(number)))
    return InvalidJson(f"A number is too large{location}.")


def _describe_lone_surrogate(text: str) -> InvalidJson:
    return InvalidJson(f"A string holds half of a surrogate pair{locate_surrogate(text)}; send both halves.")


def _is_integer_text(number: str) -> bool:
    return number.lstrip("-").isdigit()
