"""Bases of wire objects: strict coming in, complete going out. Contract §1."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from recorder import clock
from recorder.errors import InvalidTime

Mode = Literal["live", "test"]
ActorKind = Literal["human", "model", "script"]
Outcome = Literal["success", "error", "abandoned"]


class WireInput(BaseModel):
    """What a client sends: unknown members and near-miss types are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class WireOutput(BaseModel):
    """What the service answers: every member is always present (no defaults)."""

    model_config = ConfigDict(extra="forbid")


def _read_time(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return clock.parse_time(value, name="time")
    except InvalidTime as error:
        raise ValueError("takes an ISO 8601 time with a zone") from error


#: A time on the wire: ISO 8601 UTC with milliseconds and `Z`.
WireTime = Annotated[
    datetime, BeforeValidator(_read_time), PlainSerializer(clock.to_iso, return_type=str, when_used="json")
]


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
