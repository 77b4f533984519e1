"""Sentences for values that pydantic and msgspec refuse, in words of JSON. Contract §1 (errors)."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from recorder.models.text_patterns import TEXT_FORMS
from recorder.number_formats import format_count

_Context = Mapping[str, Any]
#: Kinds of JSON values by pydantic's names of errors.
_KINDS: Final = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "an array",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
}
_BOUNDS: Final[dict[str, Callable[[_Context], str]]] = {
    "greater_than": lambda context: f"a number above {_write_field_message_number(context['gt'])}",
    "greater_than_equal": lambda context: f"a number of {_write_field_message_number(context['ge'])} or more",
    "less_than": lambda context: f"a number below {_write_field_message_number(context['lt'])}",
    "less_than_equal": lambda context: f"a number of {_write_field_message_number(context['le'])} or less",
    "literal_error": lambda context: _write_literals_as_json(str(context["expected"])),
    "string_pattern_mismatch": lambda context: TEXT_FORMS.get(
        context["pattern"], f"text of the form {context['pattern']}"
    ),
    "string_too_long": lambda context: f"at most {format_count(context['max_length'], 'character')}",
    "string_too_short": lambda context: f"at least {format_count(context['min_length'], 'character')}",
    "too_long": lambda context: f"at most {format_count(context['max_length'], 'item')}",
    "too_short": lambda context: f"at least {format_count(context['min_length'], 'item')}",
}
#: Kinds of JSON values by msgspec's names of types; null, which means absent, is left out.
_TYPES: Final = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}
_ITEMS: Final = {"array": "item", "object": "member", "str": "character"}
_EXPECTED: Final = re.compile(r"Expected `([a-z |]+)`(?: (of length )?(>=|<=|>|<)? ?(-?[0-9.]+))?")
#: A text, which stays, or a constant of Python.
_LITERAL: Final = re.compile(r"'[^']*'|\b(?:True|False|None)\b")
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}
_VALUE_ERROR = "Value error, "


def make_field_message(detail: Mapping[str, Any]) -> str:
    """Return the sentence for one error that pydantic lists.

    Args:
        detail: an item of `ValidationError.errors()`; its `input` is never shown.
    """
    kind, message = str(detail["type"]), str(detail["msg"])
    if kind == "missing":
        return "This member is required."
    if kind in _KINDS:
        return f"Takes {_KINDS[kind]}."
    if kind in _BOUNDS:
        return f"Takes {_BOUNDS[kind](detail['ctx'])}."
    text = message.removeprefix(_VALUE_ERROR)
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def describe_field_type(reason: str) -> str:
    """Return the sentence for what msgspec says of a type or a bound; other texts stay.

    Args:
        reason: the error's text without its path, such as "Expected `int`, got `str`".
    """
    match = _EXPECTED.match(reason)
    if match is None:
        return reason
    names, is_length, comparison, bound = match.groups()
    types = set(names.split(" | ")) - {"null"}
    if not types <= set(_TYPES):
        return reason
    if {"int", "float"} <= types:
        types.remove("int")
    if is_length:
        most = {">=": "at least ", "<=": "at most "}.get(comparison, "exactly ")
        return f"Takes {most}{format_count(int(bound), _ITEMS[names])}."
    taken = " or ".join(sorted(_TYPES[name] for name in types))
    if bound is None:
        return f"Takes {taken}."
    number = bound if "." in bound else f"{int(bound):,}"
    return {
        ">=": f"Takes {taken} of {number} or more.",
        "<=": f"Takes {taken} of {number} or less.",
        ">": f"Takes {taken} above {number}.",
    }.get(comparison, f"Takes {taken} below {number}.")


def _write_literals_as_json(expected: str) -> str:
    """Return pydantic's list of allowed values, such as `True or 'auto'`, with the constants of JSON."""
    return _LITERAL.sub(lambda match: _CONSTANTS.get(match[0], match[0]), expected)


def _write_field_message_number(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)
