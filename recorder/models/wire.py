"""Bases of wire objects: strict coming in, complete going out. Contract §1."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    PlainSerializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from recorder import clock
from recorder.errors import InvalidTime, Problem, json_pointer
from recorder.models.field_messages import describe_field_type

Mode = Literal["live", "test"]
ActorKind = Literal["human", "model", "script"]
Outcome = Literal["success", "error", "abandoned"]


#: Of more unknown members no more are described; an error for each takes 3 µs.
_UNKNOWN_MEMBERS = 100


class WireInput(BaseModel):
    """Input of a client: unknown members and near-miss types are refused, optional members may be null."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Take null for an optional member as if the member were absent."""
        if not isinstance(value, dict):
            return value
        if len(value) > len(cls.model_fields) + _UNKNOWN_MEMBERS:
            value = _cut_unknown_members(cls, value)
        if None not in value.values():
            return value
        required = {field.alias or name for name, field in cls.model_fields.items() if field.is_required()}
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {
            name: member
            for name, member in value.items()
            if member is not None or name in required or name not in known
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe optional members of a request as ones that may be null."""
        described = handler(core_schema)
        if handler.mode == "validation":
            schema = handler.resolve_ref_schema(described)
            required = schema.get("required", [])
            for name, member in schema.get("properties", {}).items():
                if name not in required:
                    schema["properties"][name] = _add_null_to_schema(member)
        return described


#: Members of a schema that describe its name rather than its values.
_NOTES = frozenset(("title", "description", "default", "examples", "deprecated"))


def _add_null_to_schema(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a member that takes null too."""
    options = schema.get("anyOf", [])
    if {"type": "null"} in options:
        return schema
    notes = {name: value for name, value in schema.items() if name in _NOTES}
    values = {name: value for name, value in schema.items() if name not in _NOTES}
    return {"anyOf": [*(options if values.keys() == {"anyOf"} else [values]), {"type": "null"}], **notes}


def _cut_unknown_members(model: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the first of its unknown members; it is refused in any case."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    unknown = islice((name for name in value if name not in known), _UNKNOWN_MEMBERS)
    kept = known.union(unknown)
    return {name: member for name, member in value.items() if name in kept}


class WireOutput(BaseModel):
    """Output of the service: every member is always present (no defaults)."""

    model_config = ConfigDict(extra="forbid")


def _read_wire_time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    try:
        return clock.parse_time(value if isinstance(value, str) else "", name="time")
    except InvalidTime as error:
        raise PydanticCustomError("invalid_time", "Send an ISO 8601 time with a zone.") from error


def _read_wire_time_bound(value: Any) -> Any:
    if isinstance(value, str):
        return value
    text = "Send an ISO 8601 time with a zone, or a duration such as 90s, 15m, 1h, 30d, 2w."
    raise PydanticCustomError("invalid_time", text)


#: A time on the wire: ISO 8601 UTC with milliseconds and `Z`.
WireTime = Annotated[
    datetime,
    BeforeValidator(_read_wire_time),
    PlainSerializer(clock.to_iso, return_type=str, when_used="json"),
]


#: A time or a duration back from now, as it was sent; `clock.resolve_time` reads it.
TimeBound = Annotated[str, BeforeValidator(_read_wire_time_bound)]


class _ShownOnce:
    """Mark of a member that is left out of the copies of an answer."""


#: A secret of an answer: shown in this answer alone, null where the answer is given again.
ShownOnce = Annotated[str | None, _ShownOnce()]


def secret_wire_members(model: Any) -> frozenset[str]:
    """Return the members of a wire object that hold secrets."""
    fields = getattr(model, "model_fields", {})
    marked = (
        name for name, field in fields.items() if any(isinstance(mark, _ShownOnce) for mark in field.metadata)
    )
    return frozenset(marked)


def left_out_wire_member() -> Any:
    """Return the default of a member that a PATCH may leave out; `exclude_unset` drops it."""


Item = TypeVar("Item")


class Page(WireOutput, Generic[Item]):
    """One page of a list: `next_cursor` is null exactly when `has_more` is false."""

    data: list[Item]
    next_cursor: str | None
    has_more: bool


Part = str | int

_SHOWN_CHARACTERS = 100


def allowed_wire_members(annotation: Any, path: Sequence[Part], value: Any = None) -> list[str]:
    """Return the names of the members that the object at a position may have, sorted.

    Args:
        annotation: the type of the whole body: a pydantic model, a msgspec struct, or a type made of them.
        path: the steps from the body to the object.
        value: the body; chooses among several models by the members that hold one of a few values (`kind`).

    Returns:
        An empty list if there is no object at that position.
    """
    place_type, place_value = wire_type_at(annotation, path, value)
    kinds = [kind for kind in _list_wire_classes(place_type) if _has_fitting_wire_literals(kind, place_value)]
    return sorted({name for kind in kinds for name in _list_wire_class_members(kind)})


def wire_type_at(annotation: Any, path: Sequence[Part], value: Any = None) -> tuple[Any, Any]:
    """Return the type and the value at a position of a body; None where the types name no such position."""
    for part in path:
        annotation = _find_wire_member_type(annotation, part, value)
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
    return annotation, value


def describe_missing_wire_member(annotation: Any, path: Sequence[Part], value: Any = None) -> str:
    """Return the sentence for a required member that is missing, with its values where it takes one of a few.

    Args:
        annotation: the type of the whole body.
        path: the steps from the body to the member.
        value: the body; see `allowed_wire_members`.
    """
    member_type, _ = wire_type_at(annotation, path, value)
    options = _list_wire_type_options(member_type)
    if not options or any(get_origin(option) is not Literal for option in options):
        return "This member is required."
    values = [f"'{name}'" for option in options for name in get_args(option)]
    return f"This member is required: {' or '.join(filter(None, (', '.join(values[:-1]), values[-1])))}."


def shorten_wire_name(name: str) -> str:
    """Return a name that a client chose, cut to a length that fits into an error message."""
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"


def describe_allowed_wire_names(names: Sequence[str]) -> str:
    """Return the sentence of an error message that lists the names that are allowed."""
    return f"Allowed here: {', '.join(names)}." if names else "No member is allowed here."


def _find_wire_member_type(annotation: Any, part: Part, value: Any) -> Any:
    """Return the type of a member; a tuple of types where the value fits several models that have it."""
    types = []
    for option in _list_wire_type_options(annotation):
        arguments = get_args(option)
        if get_origin(option) is list and arguments:
            return arguments[0]
        if get_origin(option) is dict and arguments:
            return arguments[1]
        if (
            isinstance(option, type)
            and _has_fitting_wire_literals(option, value)
            and part in (members := _list_wire_class_members(option))
        ):
            types.append(members[str(part)])
    return tuple(types) if len(types) > 1 else next(iter(types), None)


def _list_wire_classes(annotation: Any) -> list[type]:
    return [
        option
        for option in _list_wire_type_options(annotation)
        if isinstance(option, type) and _list_wire_class_members(option)
    ]


def _list_wire_type_options(annotation: Any) -> list[Any]:
    """Return the types that a type is made of, without their metadata."""
    if isinstance(annotation, tuple):
        return [part for option in annotation for part in _list_wire_type_options(option)]
    origin = get_origin(annotation)
    if origin is Annotated:
        return _list_wire_type_options(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [part for option in get_args(annotation) for part in _list_wire_type_options(option)]
    return [annotation]


# msgspec resolves the annotations at each call, for 0.1 ms: a refused batch asks for each of its events.
@cache
def _list_wire_class_members(kind: Any) -> Mapping[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return {}


def _has_fitting_wire_literals(kind: Any, value: Any) -> bool:
    """Return whether no member that takes one of a few values holds another one."""
    if not isinstance(value, dict):
        return True
    return all(
        value[name] in values
        for name, values in _list_wire_literals(kind).items()
        if isinstance(value.get(name), str)
    )


@cache
def _list_wire_literals(kind: Any) -> Mapping[str, tuple[Any, ...]]:
    """Return the members of a class that take one of a few values, with the values."""
    members = _list_wire_class_members(kind).items()
    return {name: get_args(annotation) for name, annotation in members if get_origin(annotation) is Literal}


# The path is the text between the last two backticks; a member's name, which a client chose, may hold others.
_PATH = re.compile(r" - at `\$([\w.\[\]]*)`\Z")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)


def make_wire_problem(error: msgspec.ValidationError, kind: Any, value: Any, *, at: str = "") -> Problem:
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
        path.append(name or (_find_wrong_wire_key(kind, value, path) if key else int(index)))
    missing, unknown = _MISSING.match(reason), _UNKNOWN.match(reason)
    if missing:
        message = describe_missing_wire_member(kind, [*path, missing[1]], value)
        return Problem("body", at + json_pointer(*path, missing[1]), "missing", message)
    if unknown:
        message = f"Unknown member. {describe_allowed_wire_names(allowed_wire_members(kind, path, value))}"
        return Problem(
            "body", at + json_pointer(*path, shorten_wire_name(unknown[1])), "unknown_field", message
        )
    return Problem("body", at + json_pointer(*path), "invalid_value", describe_field_type(reason))


def _find_wrong_wire_key(kind: Any, value: Any, path: list[Part]) -> str:
    """Return the first key of an object whose value is not of the type that its values have."""
    annotation, held = wire_type_at(kind, [*path, ""], value)[0], wire_type_at(kind, path, value)[1]
    for key, member in held.items() if isinstance(held, dict) else []:
        try:
            msgspec.convert(member, annotation)
        except msgspec.ValidationError:
            return shorten_wire_name(str(key))
    return "*"
