"""Strict JSON reader for request bodies: UTF-8, int64, no NUL, no repeated key, 64 levels. Contract §1."""

import json
import re
from typing import Any, NoReturn

import numpy as np

from recorder.errors import InvalidJson, Problem, ValidationFailed, json_pointer
from recorder.limits import JSON_DEPTH

_INT64 = range(-(2**63), 2**63)
# An unterminated string matches to the end of the text, so that no start is matched twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_AS_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_ESCAPED_NUL = re.compile(rb"\\u0000")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidJson: if the text is empty, malformed, not UTF-8, too deep, repeats a key or holds NaN.
        ValidationFailed: if a string holds NUL or an integer does not fit into 64 bits.
    """
    check_depth(body)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson("The body must be UTF-8.") from error
    if text.startswith("\ufeff"):
        raise InvalidJson("The body must not begin with a byte order mark.")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_int=_parse_int,
            parse_float=_parse_float,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidJson("The body is empty or malformed JSON.") from error
    if _ESCAPED_NUL.search(body) or b"\0" in body or _ESCAPED_SURROGATE.search(body):
        _check_strings(value, "")
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
        raise InvalidJson(f"JSON may be at most {JSON_DEPTH} levels deep.", item="json_too_deep")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise InvalidJson("An object repeats a key; send each key once.", item="duplicate_key")
    return result


def _refuse_constant(_: str) -> NoReturn:
    raise InvalidJson("NaN and Infinity are not JSON; send null or a number.")


def _parse_int(digits: str) -> int:
    if len(digits) > 400:
        raise InvalidJson("A number has too many digits.")
    value = int(digits)
    if value not in _INT64:
        raise ValidationFailed.of("", "invalid_integer", message="Integers must fit into 64 bits.")
    return value


def _parse_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise InvalidJson("A number is too large.")
    return value


def _check_strings(value: Any, pointer: str) -> None:
    """Check strings and keys for NUL and lone surrogates, which only escapes can produce."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValidationFailed([Problem("body", pointer, "invalid_string", "Strings must not hold NUL.")])
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InvalidJson("A string holds half of a surrogate pair.")
    elif isinstance(value, dict):
        for key, member in value.items():
            _check_strings(key, pointer)
            _check_strings(member, pointer + json_pointer(key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _check_strings(member, pointer + json_pointer(index))
