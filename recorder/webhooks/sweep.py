"""Delivery records go after thirty days, and the bodies that none of them needs any more. Contract §6."""

import time
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, exists, select
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock, limits
from recorder.ids import first_id_at
from recorder.models.delivery import DeliveryRow
from recorder.models.outbox import OutboxRow
from recorder.models.webhook import WebhookRow
from recorder.storage.database import Database

#: Seconds between two looks for what is to go.
EVERY_S = 600.0
# Rows that one transaction removes: others wait for it.
_ROWS = 500
# What was under way when a webhook was deleted is written down by then.
_SETTLED = timedelta(minutes=10)


class Sweep:
    """Removes old records bit by bit, from within a loop that has other things to do."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._due = time.monotonic()

    def step(self) -> None:
        """Remove some of what is to go, if a look is due."""
        if time.monotonic() < self._due:
            return
        with self._database.transaction(write=True) as db:
            has_more = remove_old(db, now=clock.now())
        if not has_more:
            self._due = time.monotonic() + EVERY_S


def remove_old(db: DbSession, *, now: datetime) -> bool:
    """Remove some records past thirty days, records of deleted webhooks, and bodies that no record needs.

    What still waits to be sent stays, however old.

    Returns:
        Whether more of them may be there.
    """
    limit = now - timedelta(days=limits.DELIVERY_DAYS)
    is_old = (col(DeliveryRow.id) < first_id_at("dlv", limit)) & (col(DeliveryRow.status) != "pending")
    is_needed = exists().where(col(DeliveryRow.event_id) == col(OutboxRow.id))
    is_done = col(OutboxRow.dispatched_at).is_not(None) & (col(OutboxRow.id) < first_id_at("evt", limit))
    removed = [
        _remove(db, DeliveryRow, is_old),
        _remove(db, DeliveryRow, col(DeliveryRow.webhook_id).in_(_deleted(now))),
        _remove(db, OutboxRow, is_done & ~is_needed),
    ]
    if removed[1] == 0:
        db.connection().execute(delete(WebhookRow).where(col(WebhookRow.id).in_(_deleted(now))))
    return _ROWS in removed


def _deleted(now: datetime) -> Select[str]:
    """Webhooks that nobody can be at work for any more."""
    return select(col(WebhookRow.id)).where(col(WebhookRow.deleted_at) < now - _SETTLED)


def _remove(db: DbSession, table: type[DeliveryRow] | type[OutboxRow], condition: Any) -> int:
    some = select(col(table.id)).where(condition).limit(_ROWS)
    return db.connection().execute(delete(table).where(col(table.id).in_(some))).rowcount
