"""What came of attempts, and when the next one is due. Spec §6.3, contract §6."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock
from recorder.models.webhook import DeliveryRow
from recorder.net.client import BODY_BYTES, Exchange
from recorder.webhooks.dispatch import new_attempt
from recorder.webhooks.retry_schedule import Schedule

log = logging.getLogger("recorder.webhooks")

#: What ending an attempt needs to know of it.
COLUMNS: tuple[Any, ...] = tuple(
    col(column)
    for column in (
        DeliveryRow.id,
        DeliveryRow.webhook_id,
        DeliveryRow.event_id,
        DeliveryRow.event_type,
        DeliveryRow.attempt,
        DeliveryRow.trigger,
        DeliveryRow.redelivery_of,
        DeliveryRow.begun_ms,
    )
)
AttemptRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True)
class Outcome:
    """What came of an attempt that a worker claimed."""

    delivery_id: str
    begun_ms: int
    exchange: Exchange


def settle_attempts(db: DbSession, schedule: Schedule, outcomes: Sequence[Outcome], *, now: datetime) -> None:
    """Write down what came of attempts, and plan the ones after those that failed.

    What another worker has taken for dead meanwhile is left as it is. Needs a write transaction.
    """
    by_id = {outcome.delivery_id: outcome for outcome in outcomes}
    statement = select(*COLUMNS).where(
        col(DeliveryRow.id).in_(list(by_id)), col(DeliveryRow.status) == "pending"
    )
    rows = db.connection().execute(statement.order_by(col(DeliveryRow.id)).with_for_update())
    still_ours = [row for row in rows if row.begun_ms == by_id[row.id].begun_ms]
    end_attempts(db, schedule, [(row, by_id[row.id].exchange) for row in still_ours], clock.to_ms(now))


def end_attempts(
    db: DbSession,
    schedule: Schedule,
    ended: Sequence[tuple[AttemptRow, Exchange | None]],
    now_ms: int,
) -> None:
    """Give each attempt its result; None is for one whose worker died and that nobody knows anything of."""
    results, following = [], []
    for row, exchange in ended:
        is_success = exchange is not None and exchange.is_success
        due_ms = None
        if not is_success:
            share = secrets.randbelow(1_001) / 1_000
            due_ms = schedule.next_due_ms(row.attempt, failed_ms=now_ms, share=share)
        results.append(_result(row, exchange, is_success=is_success, due_ms=due_ms))
        if due_ms is not None:
            following.append(_following(row, due_ms))
        elif not is_success:
            names = {"webhook_id": row.webhook_id, "event_id": row.event_id, "attempts": row.attempt}
            log.warning("a delivery was given up", extra=names)
    update_attempts(db, results)
    if following:
        db.connection().execute(insert(DeliveryRow), following)


def _result(
    row: AttemptRow, exchange: Exchange | None, *, is_success: bool, due_ms: int | None
) -> dict[str, Any]:
    status = "succeeded" if is_success else "exhausted" if due_ms is None else "failed"
    return {
        "delivery_id": row.id,
        "status": status,
        "response": None if exchange is None else _response(exchange),
        "error": None if exchange is None else exchange.error,
        "duration_ms": None if exchange is None else exchange.duration_ms,
        "next_attempt_at": None if due_ms is None else clock.from_ms(due_ms),
    }


def _response(exchange: Exchange) -> dict[str, Any] | None:
    if exchange.status is None:
        return None
    # PostgreSQL takes no NUL in any text; what is no UTF-8 grows, and is cut to the promised length again.
    text = exchange.body.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}").encode()
    return {
        "status": exchange.status,
        "headers": exchange.headers,
        "body": text[:BODY_BYTES].decode("utf-8", "ignore"),
        "body_truncated": exchange.body_truncated or len(text) > BODY_BYTES,
    }


def _following(row: AttemptRow, due_ms: int) -> dict[str, Any]:
    return new_attempt(
        row.webhook_id,
        event_id=row.event_id,
        event_type=row.event_type,
        due_ms=due_ms,
        attempt=row.attempt + 1,
        trigger=row.trigger,
        redelivery_of=row.redelivery_of,
    )


def update_attempts(db: DbSession, values: list[dict[str, Any]]) -> None:
    """Change many attempts at once; each of the values names its `delivery_id`, all name the same columns."""
    if values:
        db.connection().execute(
            update(DeliveryRow).where(col(DeliveryRow.id) == bindparam("delivery_id")), values
        )
