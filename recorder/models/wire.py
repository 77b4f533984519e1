"""Bases of wire objects: strict coming in, complete going out. Contract §1."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from recorder import clock
from recorder.errors import InvalidTime

Mode = Literal["live", "test"]
ActorKind = Literal["human", "model", "script"]
Outcome = Literal["success", "error", "abandoned"]


class WireInput(BaseModel):
    """What a client sends: unknown members and near-miss types are refused, optional members may be null."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Take null for an optional member as if the member were absent."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        required = {field.alias or name for name, field in cls.model_fields.items() if field.is_required()}
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {
            name: member
            for name, member in value.items()
            if member is not None or name in required or name not in known
        }


class WireOutput(BaseModel):
    """What the service answers: every member is always present (no defaults)."""

    model_config = ConfigDict(extra="forbid")


def _read_time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    try:
        return clock.parse_time(value if isinstance(value, str) else "", name="time")
    except InvalidTime as error:
        raise PydanticCustomError("invalid_time", "Send an ISO 8601 time with a zone.") from error


def _read_bound(value: Any) -> Any:
    if isinstance(value, str):
        return value
    text = "Send an ISO 8601 time with a zone, or a duration such as 90s, 15m, 1h, 30d, 2w."
    raise PydanticCustomError("invalid_time", text)


#: A time on the wire: ISO 8601 UTC with milliseconds and `Z`.
WireTime = Annotated[
    datetime, BeforeValidator(_read_time), PlainSerializer(clock.to_iso, return_type=str, when_used="json")
]


#: A time or a duration back from now, as it was sent; `clock.resolve_time` reads it.
TimeBound = Annotated[str, BeforeValidator(_read_bound)]


class _ShownOnce:
    """Marks a member that is left out of the copies of an answer."""


#: A secret of an answer: shown in this answer alone, null where the answer is given again.
ShownOnce = Annotated[str | None, _ShownOnce()]


def members_shown_once(model: Any) -> frozenset[str]:
    """The members of a wire object that hold secrets."""
    fields = getattr(model, "model_fields", {})
    marked = (
        name for name, field in fields.items() if any(isinstance(one, _ShownOnce) for one in field.metadata)
    )
    return frozenset(marked)


def left_out() -> Any:
    """Default of a member that a PATCH may leave out: `exclude_unset` tells it from one that was sent."""


Item = TypeVar("Item")


class Page(WireOutput, Generic[Item]):
    """One page of a list: `next_cursor` is null exactly when `has_more` is false."""

    data: list[Item]
    next_cursor: str | None
    has_more: bool
