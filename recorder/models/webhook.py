"""Webhooks: payloads of all event types, endpoints, deliveries. Spec §2.4, §6.1, §6.2; contract §6."""

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger, Index, LargeBinary, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.drift import DriftBaseline, DriftNode, DriftPath, DriftWindow
from recorder.models.export import Export
from recorder.models.recovery import Recovery
from recorder.models.replay import Replay
from recorder.models.session import Session, Tag
from recorder.models.wire import Page, ShownOnce, WireInput, WireOutput, WireTime
from recorder.models.workspace import Quota


class WebhookCreate(WireInput):
    """Body of `POST /v1/webhooks`."""

    url: str = WireField(min_length=1)
    events: list[str] = WireField(min_length=1, max_length=limits.WEBHOOK_EVENTS)
    description: str | None = WireField(default=None, max_length=limits.DESCRIPTION_CHARACTERS)


class WebhookUpdate(WireInput):
    """Body of `PATCH /v1/webhooks/{webhook_id}`; members left out stay as they are."""

    url: str | None = WireField(default=None, min_length=1)
    events: list[str] | None = WireField(default=None, min_length=1, max_length=limits.WEBHOOK_EVENTS)
    description: str | None = WireField(default=None, max_length=limits.DESCRIPTION_CHARACTERS)


class SkippedEvents(WireOutput):
    """Events that a webhook did not get, since it had too many pending attempts."""

    count: int
    first_at: WireTime
    last_at: WireTime


class Webhook(WireOutput):
    """An endpoint that events are sent to, as it is read back."""

    id: str
    url: str
    events: list[str]
    description: str | None
    #: None if there were none in the last thirty days.
    skipped_events: SkippedEvents | None
    created_at: WireTime


class WebhookCreated(WireOutput):
    """Answer of `POST /v1/webhooks`; the secret is shown this once."""

    id: str
    url: str
    events: list[str]
    secret: ShownOnce


class RotatedSecret(WireOutput):
    """Answer of `POST /v1/webhooks/{webhook_id}/secret`; the secret is shown this once."""

    id: str
    secret: ShownOnce


class WebhookRow(SQLModel, table=True):
    """An endpoint of one workspace and mode."""

    __tablename__ = "webhooks"

    id: str = Field(primary_key=True)
    workspace_id: str = Field(index=True)
    mode: str
    url: str
    events: list[str] = Field(sa_type=JSON)
    description: str | None = None
    created_at: datetime
    #: Since when it is gone for everybody; the row stays until its records are swept.
    deleted_at: datetime | None = None
    #: Events that it did not get, and when the first and the last of them happened.
    skipped_count: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": "0"})
    skipped_first_at: datetime | None = None
    skipped_last_at: datetime | None = None


class WebhookSecretRow(SQLModel, table=True):
    """A signing secret, encrypted under a key of the deployment."""

    __tablename__ = "webhook_secrets"

    webhook_id: str = Field(primary_key=True)
    #: 1 at creation; each rotation takes the next.
    number: int = Field(primary_key=True)
    #: Which key encrypted it.
    key_id: str
    ciphertext: bytes = Field(sa_type=LargeBinary)
    created_at: datetime
    #: When it signs no more; None for the newest.
    expires_at: datetime | None = None


DeliveryStatus = Literal["pending", "succeeded", "failed", "exhausted"]
DeliveryTrigger = Literal["automatic", "manual"]
DeliveryError = Literal["timeout", "dns", "tls", "connection", "blocked_address", "redirect"]


class DeliveryRequest(WireOutput):
    """Request of a delivery attempt; until it begins the URL is the webhook's, and the headers are empty."""

    url: str
    headers: dict[str, str]
    body: str


class DeliveryResponse(WireOutput):
    """Response of the receiver; the body holds its first 4 KB."""

    status: int
    headers: dict[str, str]
    body: str
    body_truncated: bool


class Delivery(WireOutput):
    """One attempt to send an event; its id is the `Service-Delivery-Id`."""

    id: str
    webhook_id: str
    event_id: str
    event_type: str
    attempt: int
    trigger: DeliveryTrigger
    redelivery_of: str | None
    status: DeliveryStatus
    request: DeliveryRequest
    response: DeliveryResponse | None
    error: DeliveryError | None
    duration_ms: int | None
    created_at: WireTime
    next_attempt_at: WireTime | None


class DeliveryRow(SQLModel, table=True):
    """An attempt: due, under way, or done. The body it sends is that of its event."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_list", "webhook_id", "id"),
        # The queue: for each webhook what is due, oldest first.
        Index(
            "ix_webhook_deliveries_pending",
            "webhook_id",
            "due_ms",
            "id",
            sqlite_where=text("status = 'pending'"),
            postgresql_where=text("status = 'pending'"),
        ),
        Index("ix_webhook_deliveries_event", "event_id"),
    )

    id: str = Field(primary_key=True)
    webhook_id: str
    event_id: str
    event_type: str
    attempt: int = 1
    trigger: str = "automatic"
    #: The record that a redelivery and its retries repeat.
    redelivery_of: str | None = None
    status: str = "pending"
    #: When a pending attempt may begin; once begun, when its worker is taken for dead.
    due_ms: int = Field(sa_type=BigInteger)
    #: When a worker began it; what ends it must name the same instant.
    begun_ms: int | None = Field(default=None, sa_type=BigInteger)
    #: URL and headers that it was sent with; None until it begins.
    request_url: str | None = None
    request_headers: dict[str, str] | None = Field(default=None, sa_type=JSON)
    response: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    error: str | None = None
    duration_ms: int | None = Field(default=None, sa_type=BigInteger)
    #: When the attempt after a failed one is due.
    next_attempt_at: datetime | None = None
    created_at: datetime


Data = TypeVar("Data")


class Notification(WireOutput, Generic[Data]):
    """The body of a delivery; `id` is the same on every attempt."""

    id: str = WireField(pattern="^evt_")
    type: str
    created_at: WireTime
    data: Data


class SessionData(WireOutput):
    """The session as it was then."""

    session: Session


class TaggedData(WireOutput):
    """The tag that was added, and its session."""

    session: Session
    tag: Tag


class ErrorMark(WireOutput):
    """The tag or event that marks the session's error, or the code of a session that cannot be sealed."""

    source: Literal["tag", "event", "seal"]
    name: str
    #: Null of a session that cannot be sealed, as is its time.
    id: str | None
    t_ms: int | None


class ErrorData(WireOutput):
    """Cause of the session's error."""

    session: Session
    error: ErrorMark


class ExportData(WireOutput):
    """The export as it was then."""

    export: Export


class QuotaData(WireOutput):
    """Quota that is nearly or fully used; sent once for each metric and period."""

    quota: Quota
    metric: Literal["captured_minutes", "exported_rows"]
    used: int
    limit: int


class ReplayData(WireOutput):
    """The replay as it was then."""

    replay: Replay


class RecoveryData(WireOutput):
    """The recovery as it was then."""

    recovery: Recovery


class NewNodeData(WireOutput):
    """A path, node or edge that the baseline lacks, or hardly has."""

    workflow: str
    node: DriftNode
    window: DriftWindow
    baseline: DriftBaseline
    graph_version: int


class PathDisappearedData(WireOutput):
    """A path, node or edge that the window lacks, or has less often."""

    workflow: str
    path: DriftPath
    last_seen_at: WireTime
    baseline_frequency: float
    window: DriftWindow


class WebhookData(WireOutput):
    """The webhook that a test event was asked for."""

    webhook: dict[str, str]


class EventType(WireOutput):
    """An item of the catalogue."""

    type: str
    description: str
    #: Whether this release emits it; others may be subscribed to ahead.
    available: bool
    #: JSON Schema of the whole payload.
    payload_schema: dict[str, Any] = WireField(serialization_alias="schema")


class EventTypes(Page[EventType]):
    """Answer of `GET /v1/event_types`: the whole catalogue, in the form of other lists."""
