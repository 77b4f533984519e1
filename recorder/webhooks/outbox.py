"""Outbox: events for webhooks, written in the transaction of their change. Spec §6.1.

The dispatcher makes one pending delivery attempt for each webhook that subscribed to the event. Contract §6.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from sqlmodel import Session as DbSession
from sqlmodel import insert

from recorder import clock
from recorder.ids import new_id, new_timed_id
from recorder.models.operations import OutboxRow
from recorder.request_context import current_request_id
from recorder.tenant import Tenant


def add_outbox_event(
    db: DbSession, *, tenant: Tenant, type: str, subject_id: str, data: dict[str, Any]
) -> OutboxRow:
    """Queue an event, with the id of the current request, for every webhook that subscribed to its type.

    Args:
        db: the transaction of the change.
        tenant: workspace and mode of the change.
        type: one of spec §6.1, such as `session.sealed`.
        subject_id: id of the session, export or other object of the event.
        data: the payload's `data`, in JSON types, as contract §6 gives it.
    """
    row = make_outbox_event(tenant=tenant, type=type, subject_id=subject_id, data=data)
    db.add(row)
    return row


def add_outbox_events(db: DbSession, events: Sequence[dict[str, Any]]) -> None:
    """Queue events that `describe_outbox_event` returned, with one statement."""
    if events:
        db.connection().execute(insert(OutboxRow), events)


def make_outbox_event(*, tenant: Tenant, type: str, subject_id: str, data: dict[str, Any]) -> OutboxRow:
    """Return the row that `add_outbox_event` adds, for the ingest writer, which inserts it itself."""
    return OutboxRow(**describe_outbox_event(tenant=tenant, type=type, subject_id=subject_id, data=data))


def describe_outbox_event(
    *, tenant: Tenant, type: str, subject_id: str, data: dict[str, Any]
) -> dict[str, Any]:
    """Return the columns of an event, with the id of the current request."""
    return {
        "id": new_id("evt"),
        "workspace_id": tenant.workspace_id,
        "mode": tenant.mode,
        "type": type,
        "subject_id": subject_id,
        "data": data,
        "created_at": clock.now(),
        "request_id": current_request_id(),
    }


def encode_outbox_event(row: OutboxRow) -> bytes:
    """Return the JSON that receivers get: id, type, time and data of an event. Spec §6.2."""
    return orjson.dumps(
        {"id": row.id, "type": row.type, "created_at": clock.to_iso(row.created_at), "data": row.data}
    )


def make_outbox_attempt(
    webhook_id: str, *, event_id: str, event_type: str, due_ms: int | None = None, **members: Any
) -> dict[str, Any]:
    """Return the columns of an attempt to be made; it is due at once by default."""
    delivery_id, now = new_timed_id("dlv")
    return {
        "id": delivery_id,
        "webhook_id": webhook_id,
        "event_id": event_id,
        "event_type": event_type,
        "attempt": 1,
        "trigger": "automatic",
        "redelivery_of": None,
        "status": "pending",
        "due_ms": clock.to_ms(now) if due_ms is None else due_ms,
        "created_at": now,
        **members,
    }
