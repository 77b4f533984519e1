"""Events: the item a client sends, and the hot rows that hold batches of them. Contract §3."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import BigInteger, Index, LargeBinary, String
from sqlmodel import Field, SQLModel

from recorder import limits

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Elapsed = Annotated[int, Meta(ge=0, le=limits.T_MS_MAX)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Number = int | float
ElementRect = Annotated[list[Number], Meta(min_length=4, max_length=4)]
ScreenPoint = Annotated[list[Number], Meta(min_length=2, max_length=2)]


# SQLite compares the bytes of texts by itself.
BYTEWISE: Any = String().with_variant(String(collation="C"), "postgresql")


class _Strict(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Structure whose members stay absent where not sent; without cycles, so the collector skips it."""


class App(_Strict):
    """The program the event happened in."""

    name: str | UnsetType | None = UNSET
    window: str | UnsetType | None = UNSET
    page: str | UnsetType | None = UNSET


class Target(_Strict):
    """The element acted on."""

    role: str | UnsetType | None = UNSET
    name: Annotated[str, Meta(max_length=120)] | UnsetType | None = UNSET
    tag: str | UnsetType | None = UNSET
    text: Annotated[str, Meta(max_length=80)] | UnsetType | None = UNSET
    attrs: dict[str, Annotated[str, Meta(max_length=200)]] | UnsetType | None = UNSET
    rect: ElementRect | UnsetType | None = UNSET
    selectors: list[str | list[str]] | UnsetType | None = UNSET
    near: Annotated[str, Meta(max_length=80)] | UnsetType | None = UNSET
    frame_path: list[Count] | UnsetType | None = UNSET


class Input(_Strict):
    """Input of an event: text typed, key pressed, option chosen, item dragged."""

    value: str | list[str] | UnsetType | None = UNSET
    masked: bool | UnsetType | None = UNSET
    secret_ref: str | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    button: Whole | UnsetType | None = UNSET
    point: ScreenPoint | UnsetType | None = UNSET
    modifiers: Count | UnsetType | None = UNSET
    delta: ScreenPoint | UnsetType | None = UNSET
    to: ScreenPoint | UnsetType | None = UNSET
    files: list[str] | UnsetType | None = UNSET


class Trace(_Strict):
    """Ids of the trace this event belongs to."""

    trace_id: str | UnsetType | None = UNSET
    span_id: str | UnsetType | None = UNSET


#: Checked by `recorder.recording`, like the pattern of types.
ClientEventId = Annotated[str, Meta(extra_json_schema={"pattern": limits.CLIENT_EVENT_ID_PATTERN})]


class EventItem(_Strict):
    """One event as a client sends it; only `type` and `t_ms` are required."""

    t_ms: Elapsed
    #: Its pattern is checked once per distinct type of a batch: a regex per item would double the decoding.
    type: Annotated[str, Meta(extra_json_schema={"pattern": limits.EVENT_TYPE_PATTERN})]
    id: ClientEventId | UnsetType | None = UNSET
    target: Target | UnsetType | None = UNSET
    input: Input | UnsetType | None = UNSET
    url: str | UnsetType | None = UNSET
    title: str | UnsetType | None = UNSET
    app: App | UnsetType | None = UNSET
    signals: list[dict[str, Any]] | UnsetType | None = UNSET
    frame_id: str | UnsetType | None = UNSET
    parent_id: str | UnsetType | None = UNSET
    state_key: str | UnsetType | None = UNSET
    trace: Trace | UnsetType | None = UNSET
    data: dict[str, Any] | UnsetType | None = UNSET


class EventBatchBody(Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/sessions/{id}/events`: the items stay raw until each is checked."""

    events: list[msgspec.Raw]


class EventBatchRow(SQLModel, table=True):
    """One POSTed batch of events, compressed; the sweep after sealing deletes it."""

    __tablename__ = "event_batches"
    __table_args__ = (
        Index("ix_event_batches_first_id", "session_id", "first_id"),
        {"sqlite_with_rowid": False},
    )

    session_id: str = Field(primary_key=True)
    first_position: int = Field(primary_key=True, sa_type=BigInteger)
    n: int
    t_min: int = Field(sa_type=BigInteger)
    t_max: int = Field(sa_type=BigInteger)
    #: Id of the first item that came without one; the others follow it in order.
    first_id: str = Field(sa_type=BYTEWISE)
    received_ms: int = Field(sa_type=BigInteger)
    #: zstd of a JSON array of the items as they were sent.
    payload: bytes = Field(sa_type=LargeBinary)


class EventKeyRow(SQLModel, table=True):
    """An event id that a client chose, with time and digest of its item: finds what was sent before."""

    __tablename__ = "event_keys"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)
    event_id: str = Field(primary_key=True)
    t_ms: int = Field(sa_type=BigInteger)
    digest: bytes = Field(sa_type=LargeBinary)


class BatchKeyRow(SQLModel, table=True):
    """A batch id (`Idempotency-Key` on events and frames) and its answer; it stays as long as its batch."""

    __tablename__ = "batch_keys"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)  # events | frames
    batch_key: str = Field(primary_key=True)
    body_digest: bytes = Field(sa_type=LargeBinary)
    answer: bytes = Field(sa_type=LargeBinary)
