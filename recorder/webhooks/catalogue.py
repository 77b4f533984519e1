"""The event types that webhooks carry, in one table. Spec §6.1, contract §6."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from recorder.models.webhook import (
    ErrorData,
    EventType,
    EventTypes,
    ExportData,
    NewNodeData,
    Notification,
    PathDisappearedData,
    QuotaData,
    RecoveryData,
    ReplayData,
    SessionData,
    TaggedData,
    WebhookData,
)
from recorder.models.wire import WireOutput

#: Sent on request to one webhook; it cannot be subscribed to.
TEST_EVENT = "webhook.test"


@dataclass(frozen=True)
class WebhookEventKind:
    """Event type: its description and the model of its payload's `data`."""

    description: str
    data: type[WireOutput]
    #: Whether this release emits it.
    is_emitted: bool = True


EVENT_TYPES: dict[str, WebhookEventKind] = {
    "session.created": WebhookEventKind("A session was created; it has not started.", SessionData),
    "session.started": WebhookEventKind("A session began to record.", SessionData),
    "session.stopped": WebhookEventKind("A session was stopped.", SessionData),
    "session.sealed": WebhookEventKind("A session was sealed and indexed.", SessionData),
    "session.error": WebhookEventKind(
        "A session ended with an error tag or event, or could not be sealed.", ErrorData
    ),
    "session.tagged": WebhookEventKind("A tag was added to a session.", TaggedData),
    "replay.queued": WebhookEventKind("A replay waits to run.", ReplayData),
    "replay.running": WebhookEventKind("A replay runs.", ReplayData),
    "replay.completed": WebhookEventKind("A replay matched its recording.", ReplayData),
    "replay.diverged": WebhookEventKind("The world no longer matches the recording.", ReplayData),
    "replay.failed": WebhookEventKind("A replay could not run.", ReplayData),
    "recovery.started": WebhookEventKind("A recovery began.", RecoveryData),
    "recovery.succeeded": WebhookEventKind("A recovery reached success.", RecoveryData),
    "recovery.failed": WebhookEventKind("A recovery ended without success.", RecoveryData),
    "export.queued": WebhookEventKind("An export was requested.", ExportData),
    "export.completed": WebhookEventKind("An export is complete: its manifest is written.", ExportData),
    "export.failed": WebhookEventKind("An export ended without a dataset.", ExportData),
    "memory.drift.new_node": WebhookEventKind(
        "A path, node or edge appeared in a workflow's graph, or grew.", NewNodeData
    ),
    "memory.drift.path_disappeared": WebhookEventKind(
        "A common path, node or edge stopped or became rarer.", PathDisappearedData
    ),
    "quota.warning": WebhookEventKind("80 % of a monthly quota is used up.", QuotaData),
    "quota.exhausted": WebhookEventKind("A monthly quota is used up.", QuotaData),
}
_TEST = WebhookEventKind("A test was requested.", WebhookData)


@cache  # the schemas of 21 types take 0.2 s
def list_webhook_event_types() -> EventTypes:
    """Return the catalogue: every type with its description and the schema of its payload."""
    return EventTypes(
        data=[
            EventType(
                type=type,
                description=kind.description,
                available=kind.is_emitted,
                payload_schema=payload_schema(type),
            )
            for type, kind in EVENT_TYPES.items()
        ],
        next_cursor=None,
        has_more=False,
    )


def payload_schema(type: str) -> dict[str, Any]:
    """Return the JSON Schema of a type's whole payload."""
    kind = _TEST if type == TEST_EVENT else EVENT_TYPES[type]
    model = Notification[kind.data]  # type: ignore[name-defined]  # the type is data here
    schema: dict[str, Any] = model.model_json_schema(mode="serialization")
    schema["title"] = type
    schema["properties"]["type"] = {"const": type}
    _allow_further_event_members(schema)
    return schema


def _allow_further_event_members(schema: Any) -> None:
    """Let objects have further members, so that receivers that validate do not break when one is added."""
    if isinstance(schema, dict):
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
        for part in schema.values():
            _allow_further_event_members(part)
    elif isinstance(schema, list):
        for part in schema:
            _allow_further_event_members(part)
