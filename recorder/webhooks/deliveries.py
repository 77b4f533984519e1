"""Delivery records: reading, redelivery, test events and retention. Spec §2.4, §4.4; contract §6."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, case, delete, exists, select
from sqlmodel import Session as DbSession
from sqlmodel import col, insert

from recorder import clock, limits
from recorder.audit.log import Action, Origin, record_audit_entry
from recorder.errors import NotFound
from recorder.ids import first_id_at, is_id
from recorder.models.operations import OutboxRow
from recorder.models.webhook import Delivery, DeliveryRow, WebhookRow
from recorder.storage.database import Database
from recorder.storage.list_pages import FetchedPage, fetch_list_page, stream_rows
from recorder.tenant import Tenant
from recorder.webhooks.catalogue import TEST_EVENT
from recorder.webhooks.deleted_subjects import make_deleted_subject_condition
from recorder.webhooks.outbox import add_outbox_event, encode_outbox_event, make_outbox_attempt
from recorder.webhooks.subscriptions import find_webhook

#: Records that one page reads at most.
SCANNED_RECORDS = 2_000
_AS_STORED = set(Delivery.model_fields) - {"request", "next_attempt_at"}


def find_delivery(db: DbSession, tenant: Tenant, webhook_id: str, delivery_id: str) -> Delivery:
    """Return a delivery of a webhook.

    Raises:
        NotFound: if there is no such webhook or record.
    """
    webhook = find_webhook(db, tenant, webhook_id)
    return _read_delivery(db, webhook, delivery_id)


def list_deliveries(
    db: DbSession, tenant: Tenant, webhook_id: str, *, before_id: str | None, limit: int
) -> FetchedPage[Delivery, str]:
    """Return a page of the deliveries of a webhook, newest first, those older than `before_id`.

    Records about deleted sessions are left out; after many of them a page ends early.

    Raises:
        NotFound: if there is no such webhook.
    """
    webhook = find_webhook(db, tenant, webhook_id)
    statement = _select_delivery_records(webhook)
    if before_id is not None:
        statement = statement.where(col(DeliveryRow.id) < before_id)
    statement = statement.order_by(col(DeliveryRow.id).desc()).limit(SCANNED_RECORDS)
    scanned, last_id = 0, ""

    def read_visible(_: int) -> Iterator[Row[*tuple[Any, ...]]]:
        nonlocal scanned, last_id
        for row in stream_rows(db, statement):
            scanned, last_id = scanned + 1, row.id
            if row.body is not None:
                yield row

    page = fetch_list_page(read_visible, limit=limit, position_of=lambda row: str(row.id))
    if page.position is None and scanned == SCANNED_RECORDS:
        page = FetchedPage(page.items, last_id)
    return page.convert(lambda row: _delivery_to_wire(row, webhook))


def redeliver(db: DbSession, tenant: Tenant, origin: Origin, webhook_id: str, delivery_id: str) -> Delivery:
    """Send the payload of a delivery again, under a fresh delivery id and on the same schedule.

    Raises:
        NotFound: if there is no such webhook or record.
    """
    webhook = find_webhook(db, tenant, webhook_id)
    again = _read_delivery(db, webhook, delivery_id)
    # A purge that removes the event waits for the answer, which shows it, and removes that too.
    locked = select(col(OutboxRow.id)).where(col(OutboxRow.id) == again.event_id).with_for_update(read=True)
    if db.connection().execute(locked).first() is None:
        raise NotFound("delivery")
    attempt = make_outbox_attempt(
        webhook.id,
        event_id=again.event_id,
        event_type=again.event_type,
        trigger="manual",
        redelivery_of=again.id,
    )
    details = {"delivery": again.id, "redelivery": attempt["id"]}
    _record_delivery_action(db, origin, "webhook.redeliver", webhook, details)
    return _store_delivery_record(db, webhook, attempt)


def send_test_delivery(db: DbSession, tenant: Tenant, origin: Origin, webhook_id: str) -> Delivery:
    """Send a test event to one webhook.

    Raises:
        NotFound: if there is no such webhook.
    """
    webhook = find_webhook(db, tenant, webhook_id)
    event = add_outbox_event(
        db,
        tenant=tenant,
        type=TEST_EVENT,
        subject_id=webhook.id,
        data={"webhook": {"id": webhook.id, "url": webhook.url}},
    )
    event.dispatched_at, event.body = clock.now(), encode_outbox_event(event)
    db.flush()
    attempt = make_outbox_attempt(webhook.id, event_id=event.id, event_type=event.type, trigger="manual")
    _record_delivery_action(db, origin, "webhook.test", webhook, {"delivery": attempt["id"]})
    return _store_delivery_record(db, webhook, attempt)


def _select_delivery_records(webhook: WebhookRow) -> Any:
    """Return a statement for the records of a webhook with their bodies, null where a session is deleted."""
    stored = (getattr(DeliveryRow, name) for name in sorted(_AS_STORED))
    more = (
        DeliveryRow.request_url,
        DeliveryRow.request_headers,
        DeliveryRow.due_ms,
        DeliveryRow.begun_ms,
        DeliveryRow.next_attempt_at,
    )
    return (
        select(
            *stored,
            *map(col, more),
            case((make_deleted_subject_condition(), None), else_=col(OutboxRow.body)).label("body"),
        )
        .join(OutboxRow, col(OutboxRow.id) == col(DeliveryRow.event_id))
        .where(col(DeliveryRow.webhook_id) == webhook.id)
    )


def _read_delivery(db: DbSession, webhook: WebhookRow, delivery_id: str) -> Delivery:
    row = None
    if is_id(delivery_id, "dlv"):
        statement = _select_delivery_records(webhook).where(col(DeliveryRow.id) == delivery_id)
        row = db.connection().execute(statement).one_or_none()
    if row is None or row.body is None:
        raise NotFound("delivery")
    return _delivery_to_wire(row, webhook)


def _store_delivery_record(db: DbSession, webhook: WebhookRow, attempt: dict[str, Any]) -> Delivery:
    db.connection().execute(insert(DeliveryRow), [attempt])
    return _read_delivery(db, webhook, attempt["id"])


def _delivery_to_wire(row: Row[*tuple[Any, ...]], webhook: WebhookRow) -> Delivery:
    stored = {name: getattr(row, name) for name in _AS_STORED}
    waits = row.status == "pending" and row.begun_ms is None
    request = {
        # Attempts of earlier releases have no URL of their own.
        "url": row.request_url or webhook.url,
        "headers": row.request_headers or {},
        "body": bytes(row.body).decode(),
    }
    next_attempt_at = clock.from_ms(row.due_ms) if waits else row.next_attempt_at
    return Delivery.model_validate({**stored, "request": request, "next_attempt_at": next_attempt_at})


def _record_delivery_action(
    db: DbSession, origin: Origin, action: Action, webhook: WebhookRow, details: dict[str, Any]
) -> None:
    record_audit_entry(db, origin, action, resource_type="webhook", resource_id=webhook.id, details=details)


#: Seconds between two removals.
EVERY_S = 600.0
# Rows that one transaction removes, since others wait for it.
_ROWS = 500
# Attempts under way at the deletion of a webhook have ended after so long.
_SETTLED = timedelta(minutes=10)


class DeliveryCleanup:
    """Removal of old records in small steps between other work."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._due = time.monotonic()

    def step(self) -> None:
        """Remove some old records, if a removal is due."""
        if time.monotonic() < self._due:
            return
        with self._database.transaction(write=True) as db:
            has_more = remove_old_deliveries(db, now=clock.now())
        if not has_more:
            self._due = time.monotonic() + EVERY_S


def remove_old_deliveries(
    db: DbSession, *, now: datetime, workspace_id: str | None = None, most: int = _ROWS
) -> bool:
    """Remove some records past thirty days, records of deleted webhooks, and bodies that no record needs.

    Attempts that wait to be sent are kept, however old.

    Args:
        db: a write transaction.
        now: time of the removal.
        workspace_id: workspace of the records; None is any.
        most: rows of each kind to remove.

    Returns:
        Whether more may be left.
    """
    limit = now - timedelta(days=limits.DELIVERY_DAYS)
    is_old = (col(DeliveryRow.id) < first_id_at("dlv", limit)) & (col(DeliveryRow.status) != "pending")
    is_needed = exists().where(col(DeliveryRow.event_id) == col(OutboxRow.id))
    is_done = col(OutboxRow.dispatched_at).is_not(None) & (col(OutboxRow.id) < first_id_at("evt", limit))
    is_deleted = col(WebhookRow.deleted_at) < now - _SETTLED
    if workspace_id is not None:
        of_workspace = select(col(WebhookRow.id)).where(col(WebhookRow.workspace_id) == workspace_id)
        is_old &= col(DeliveryRow.webhook_id).in_(of_workspace)
        is_done &= col(OutboxRow.workspace_id) == workspace_id
        is_deleted &= col(WebhookRow.workspace_id) == workspace_id
    deleted = select(col(WebhookRow.id)).where(is_deleted)
    has_record = exists().where(col(DeliveryRow.webhook_id) == col(WebhookRow.id))
    removed = [
        _remove_delivery_rows(db, DeliveryRow, is_old, most),
        _remove_delivery_rows(db, DeliveryRow, col(DeliveryRow.webhook_id).in_(deleted), most),
        _remove_delivery_rows(db, OutboxRow, is_done & ~is_needed, most),
        _remove_delivery_rows(db, WebhookRow, is_deleted & ~has_record, most),
    ]
    return most in removed


def _remove_delivery_rows(
    db: DbSession, table: type[DeliveryRow | OutboxRow | WebhookRow], condition: Any, most: int
) -> int:
    # What another transaction holds is left to the next removal: deliveries of all workspaces wait for this.
    some = select(col(table.id)).where(condition).limit(most).with_for_update(skip_locked=True)
    return db.connection().execute(delete(table).where(col(table.id).in_(some))).rowcount
