"""Problems of items that msgspec refuses, each with a pointer to its place. Contract §1 (errors), §3."""

import re
from typing import Any

import msgspec

from recorder.errors import Problem, json_pointer
from recorder.models.wire import Part, allowed_members, describe_allowed, shorten, type_at

# A member's name is the client's text: only what stands behind the last backtick but one is a path.
_PATH = re.compile(r" - at `\$([\w.\[\]]*)`\Z")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)


def problem_of(error: msgspec.ValidationError, kind: Any, value: Any, *, at: str = "") -> Problem:
    """Return the problem that an error describes: msgspec names types and limits, never values.

    Args:
        error: raised by msgspec.
        kind: the type that was decoded.
        value: the same JSON, parsed; finds the keys that msgspec does not name.
        at: pointer to what was decoded.
    """
    text = str(error)
    match = _PATH.search(text)
    reason = text[: match.start()] if match else text
    path: list[Part] = []
    for name, index, key in _STEP.findall(match[1]) if match else []:
        path.append(name or (_find_wrong_key(kind, value, path) if key else int(index)))
    missing, unknown = _MISSING.match(reason), _UNKNOWN.match(reason)
    if missing:
        return Problem("body", at + json_pointer(*path, missing[1]), "missing", "This member is required.")
    if unknown:
        message = f"Unknown member. {describe_allowed(allowed_members(kind, path, value))}"
        return Problem("body", at + json_pointer(*path, shorten(unknown[1])), "unknown_field", message)
    return Problem("body", at + json_pointer(*path), "invalid_value", reason)


def _find_wrong_key(kind: Any, value: Any, path: list[Part]) -> str:
    """Return the first key of an object whose value is not of the type that its values have."""
    annotation, held = type_at(kind, [*path, ""], value)[0], type_at(kind, path, value)[1]
    for key, member in held.items() if isinstance(held, dict) else []:
        try:
            msgspec.convert(member, annotation)
        except msgspec.ValidationError:
            return shorten(str(key))
    return "*"
