"""What webhooks carry: the payload of every event type, and the catalogue. Spec §6.1, §6.2; contract §6."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import Field as WireField

from recorder.models.drift import DriftBaseline, DriftNode, DriftPath, DriftWindow
from recorder.models.export import Export
from recorder.models.session import Session
from recorder.models.tag import Tag
from recorder.models.wire import WireOutput, WireTime
from recorder.models.workspace import Quota

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
    """The tag or event that says so."""

    source: Literal["tag", "event"]
    name: str
    id: str
    t_ms: int


class ErrorData(WireOutput):
    """What made the session an error."""

    session: Session
    error: ErrorMark


class ExportData(WireOutput):
    """The export as it was then."""

    export: Export


class QuotaData(WireOutput):
    """Which quota is used up so far; once for each metric and period."""

    quota: Quota
    metric: Literal["captured_minutes", "exported_rows"]
    used: int
    limit: int


class ReplayData(WireOutput):
    """The replay as it was then."""

    replay: dict[str, Any]


class RecoveryData(WireOutput):
    """The recovery as it was then."""

    recovery: dict[str, Any]


class NewNodeData(WireOutput):
    """A cluster that the baseline lacks."""

    workflow: str
    node: DriftNode
    window: DriftWindow
    baseline: DriftBaseline
    graph_version: int


class PathDisappearedData(WireOutput):
    """A path that the window lacks."""

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


class EventTypes(WireOutput):
    """Answer of `GET /v1/event_types`."""

    data: list[EventType]
