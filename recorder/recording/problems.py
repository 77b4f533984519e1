"""What msgspec finds wrong with an item, as a problem with a pointer. Contract §1 (errors), §3."""

import re

import msgspec

from recorder.errors import Problem

_PATH = re.compile(r" - at `\$(.*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = "Object contains unknown field"


def problem_of(error: msgspec.ValidationError, *, at: str = "") -> Problem:
    """The problem that an error tells of: msgspec names types and limits, never values.

    Args:
        at: pointer to what was decoded.
    """
    text = str(error)
    match = _PATH.search(text)
    path = match[1] if match else ""
    pointer = at + path.replace("[...]", "/*").replace("[", "/").replace("]", "").replace(".", "/")
    missing = _MISSING.match(text)
    if missing:
        return Problem("body", f"{pointer}/{missing[1]}", "missing", "This member is required.")
    if text.startswith(_UNKNOWN):
        # Its name is the client's text, so it is not repeated.
        return Problem("body", pointer, "unknown_field", "An unknown member stands here; remove it.")
    return Problem("body", pointer, "invalid_value", text[: match.start()] if match else text)
