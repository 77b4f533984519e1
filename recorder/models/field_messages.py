"""Sentences for values that pydantic refuses, in words of JSON instead of Python. Contract §1 (errors)."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from recorder import limits
from recorder.plurals import counted

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
#: Patterns that have words.
_FORMS: Final = {
    limits.WORKFLOW_PATTERN: (
        "2 to 64 characters: lower-case letters, digits and underscores, as in approve_invoice"
    )
}
_BOUNDS: Final[dict[str, Callable[[_Context], str]]] = {
    "greater_than": lambda context: f"a number above {_write_number(context['gt'])}",
    "greater_than_equal": lambda context: f"a number of {_write_number(context['ge'])} or more",
    "less_than": lambda context: f"a number below {_write_number(context['lt'])}",
    "less_than_equal": lambda context: f"a number of {_write_number(context['le'])} or less",
    "literal_error": lambda context: str(context["expected"]),
    "string_pattern_mismatch": lambda context: _FORMS.get(
        context["pattern"], f"text of the form {context['pattern']}"
    ),
    "string_too_long": lambda context: f"at most {counted(context['max_length'], 'character')}",
    "string_too_short": lambda context: f"at least {counted(context['min_length'], 'character')}",
    "too_long": lambda context: f"at most {counted(context['max_length'], 'item')}",
    "too_short": lambda context: f"at least {counted(context['min_length'], 'item')}",
}
_VALUE_ERROR = "Value error, "


def describe_refusal(detail: Mapping[str, Any]) -> str:
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


def _write_number(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)
