"""Members that a wire object takes at a place of a body, for error messages. Contract §1 (errors)."""

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel

Part = str | int

_SHOWN_CHARACTERS = 100


def allowed_members(annotation: Any, path: Sequence[Part], value: Any = None) -> list[str]:
    """Return the names of the members that the object at a place may have, sorted.

    Args:
        annotation: the type of the whole body: a pydantic model, a msgspec struct, or a type made of them.
        path: the steps from the body to the object.
        value: the body; chooses among several models by the members that hold one of a few values (`kind`).

    Returns:
        An empty list if no such object stands there.
    """
    found, at = type_at(annotation, path, value)
    kinds = [kind for kind in _classes(found) if _fits(kind, at)]
    return sorted({name for kind in kinds for name in _members(kind)})


def type_at(annotation: Any, path: Sequence[Part], value: Any = None) -> tuple[Any, Any]:
    """Return the type and the value at a place of a body; None where the types name no such place."""
    for part in path:
        annotation = _step(annotation, part, value)
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
    return annotation, value


def shorten(name: str) -> str:
    """Return a name that a client chose, cut to a length that fits into an error message."""
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"


def describe_allowed(names: Sequence[str]) -> str:
    """Return the sentence of an error message that lists the names that are allowed."""
    return f"Allowed here: {', '.join(names)}." if names else "No member is allowed here."


def _step(annotation: Any, part: Part, value: Any) -> Any:
    for option in _options(annotation):
        arguments = get_args(option)
        if get_origin(option) is list and arguments:
            return arguments[0]
        if get_origin(option) is dict and arguments:
            return arguments[1]
        if isinstance(option, type) and _fits(option, value) and part in (members := _members(option)):
            return members[str(part)]
    return None


def _classes(annotation: Any) -> list[type]:
    return [option for option in _options(annotation) if isinstance(option, type) and _members(option)]


def _options(annotation: Any) -> list[Any]:
    """Return the types that a type is made of, without their metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [found for option in get_args(annotation) for found in _options(option)]
    return [annotation]


def _members(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return {}


def _fits(kind: Any, value: Any) -> bool:
    """Return whether no member that takes one of a few values holds another one."""
    if not isinstance(value, dict):
        return True
    return all(
        value[name] in get_args(annotation)
        for name, annotation in _members(kind).items()
        if get_origin(annotation) is Literal and isinstance(value.get(name), str)
    )
