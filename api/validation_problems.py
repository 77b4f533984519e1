"""Conversion of pydantic's validation errors to the problems that an answer lists. Contract §1 (errors)."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from recorder import errors
from recorder.errors import Problem, json_pointer
from recorder.models.field_messages import make_field_message
from recorder.models.wire import (
    allowed_wire_members,
    describe_allowed_wire_names,
    describe_missing_wire_member,
    shorten_wire_name,
)

# A body may hold a hundred thousand wrong members; the error for each takes 50 µs.
_DESCRIBED_PROBLEMS = 100
# pydantic appends this step to the path of a member whose name is invalid.
_KEY_STEP = "[key]"
_ITEM_CODES = {"extra_forbidden": "unknown_field", "missing": "missing", "invalid_time": "invalid_time"}


def convert_validation_details(
    details: Sequence[Mapping[str, Any]], model: Any = None, body: Any = None
) -> errors.Invalid:
    """Return pydantic's errors as one error: `invalid_time` if all of them concern times.

    Args:
        details: the errors as pydantic lists them; `loc` begins with the part of the request, such as `body`.
            Their `input` values are left out, so nothing is echoed. Repeated ones are listed once.
        model: the type of the body, whose members are listed where a body has an unknown one.
        body: the parsed body.
    """

    @cache  # of one body: the members of an object are listed once for all its unknown ones
    def describe_members(*path: Any) -> str:
        return describe_allowed_wire_names(allowed_wire_members(model, path, body))

    @cache
    def describe_missing(*path: Any) -> str:
        return describe_missing_wire_member(model, path, body)

    items = (
        _make_problem_item(detail, describe_members, describe_missing)
        for detail in details[:_DESCRIBED_PROBLEMS]
    )
    problems = list(dict.fromkeys(items))
    if problems and all(problem.code == errors.InvalidTime.code for problem in problems):
        return errors.InvalidTime.of(problems)
    return errors.ValidationFailed(problems)


def _make_problem_item(
    detail: Mapping[str, Any],
    describe_members: Callable[..., str],
    describe_missing: Callable[..., str],
) -> Problem:
    where, *path = detail["loc"]
    code, message = _ITEM_CODES.get(detail["type"], "invalid_value"), make_field_message(detail)
    if where != "body":
        # A parameter that repeats is named without the number of the value.
        name = str(path[0]) if path else ""
        return Problem(where, name, code, message.replace("This member", "This parameter"))
    if len(path) > 1 and path[-1] == _KEY_STEP and detail.get("input", path[-2]) == path[-2]:
        pointer = json_pointer(*path[:-2], shorten_wire_name(str(path[-2])))
        return Problem(where, pointer, code, f"The member's name {message[:1].lower()}{message[1:]}")
    if code == "missing":
        return Problem(where, json_pointer(*path), code, describe_missing(*path))
    if code != "unknown_field":
        return Problem(where, json_pointer(*path), code, message)
    message = f"Unknown member. {describe_members(*path[:-1])}"
    return Problem(where, json_pointer(*path[:-1], shorten_wire_name(str(path[-1]))), code, message)
