"""Outbox: events for webhooks, written in the transaction of their change, then dispatched. Spec §6.1.

Dispatching makes one pending delivery attempt for each webhook that subscribed to the event. Contract §6.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import bindparam, exists
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, insert, select, update

from recorder import clock
from recorder.ids import new_id, new_timed_id
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, WebhookRow
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


#: Most events of one transaction, and the attempts after which it takes no further event: it must be short.
_EVENTS = 100
_ATTEMPTS = 500


def has_outbox_events(db: DbSession) -> bool:
    """Return whether events wait in the outbox."""
    waiting = select(exists(select(OutboxRow.id).where(col(OutboxRow.dispatched_at).is_(None))))
    return bool(db.exec(waiting).one())


def dispatch_outbox_events(db: DbSession) -> bool:
    """Dispatch waiting events to the webhooks that existed when they happened, oldest first.

    Events without a subscriber are deleted. Needs a write transaction; several workers share the outbox
    without waiting for each other.

    Returns:
        Whether more may be waiting.
    """
    events = _select_outbox_events(db)
    webhooks = _read_webhooks_of_outbox_events(db, {event.workspace_id for event in events})
    now = clock.now()
    attempts: list[dict[str, Any]] = []
    taken: list[dict[str, Any]] = []
    ignored: list[str] = []
    for event in events:
        subscriber_ids = [
            row.id
            for row in webhooks[event.workspace_id, event.mode]
            if _is_outbox_event_subscribed(row, event)
        ]
        attempts += [_make_dispatched_attempt(webhook_id, event) for webhook_id in subscriber_ids]
        if subscriber_ids:
            taken.append({"event_id": event.id, "dispatched_at": now, "body": encode_outbox_event(event)})
        else:
            ignored.append(event.id)
        if len(attempts) >= _ATTEMPTS:
            break
    _store_dispatch(db, attempts, taken, ignored)
    return len(taken) + len(ignored) == _EVENTS or len(attempts) >= _ATTEMPTS


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


def _select_outbox_events(db: DbSession) -> Sequence[OutboxRow]:
    statement = select(OutboxRow).where(col(OutboxRow.dispatched_at).is_(None))
    return db.exec(
        statement.order_by(col(OutboxRow.id)).limit(_EVENTS).with_for_update(skip_locked=True)
    ).all()


def _read_webhooks_of_outbox_events(
    db: DbSession, workspace_ids: set[str]
) -> dict[tuple[str, str], list[WebhookRow]]:
    webhooks: dict[tuple[str, str], list[WebhookRow]] = defaultdict(list)
    living = select(WebhookRow).where(col(WebhookRow.deleted_at).is_(None))
    for row in db.exec(living.where(col(WebhookRow.workspace_id).in_(workspace_ids))):
        webhooks[row.workspace_id, row.mode].append(row)
    return webhooks


def _is_outbox_event_subscribed(webhook: WebhookRow, event: OutboxRow) -> bool:
    return event.type in webhook.events and webhook.created_at <= event.created_at


def _make_dispatched_attempt(webhook_id: str, event: OutboxRow) -> dict[str, Any]:
    # Due since the event happened, so that the oldest event is sent first.
    return make_outbox_attempt(
        webhook_id, event_id=event.id, event_type=event.type, due_ms=clock.to_ms(event.created_at)
    )


def _store_dispatch(
    db: DbSession, attempts: list[dict[str, Any]], taken: list[dict[str, Any]], ignored: list[str]
) -> None:
    # Bulk statements without model objects: ten times as fast for each row.
    connection = db.connection()
    if attempts:
        connection.execute(insert(DeliveryRow), attempts)
    if taken:
        connection.execute(update(OutboxRow).where(col(OutboxRow.id) == bindparam("event_id")), taken)
    if ignored:
        connection.execute(delete(OutboxRow).where(col(OutboxRow.id).in_(ignored)))
