"""What came of attempts, and when the next one is due. Spec §6.3, contract §6."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, select, text, update
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, WebhookRow
from recorder.net.client import BODY_BYTES, Exchange
from recorder.version import __version__
from recorder.webhooks.endpoints import SecretBox, read_secrets
from recorder.webhooks.outbox import new_attempt
from recorder.webhooks.scheduling import Lane, Schedule
from recorder.webhooks.signing import signature_headers

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


#: Longer than any attempt may take, and what its outcome then waits for the database.
LEASE_MS = 30_000

# A loose index scan: one step for each webhook that has attempts waiting, however many those are.
_LANES = text(
    """
    WITH RECURSIVE waiting(webhook_id) AS (
        SELECT min(webhook_id) FROM webhook_deliveries WHERE status = 'pending'
        UNION ALL
        SELECT (SELECT min(d.webhook_id) FROM webhook_deliveries d
                WHERE d.status = 'pending' AND d.webhook_id > waiting.webhook_id)
        FROM waiting WHERE waiting.webhook_id IS NOT NULL
    ), due AS (
        SELECT w.id AS webhook_id, w.workspace_id,
               (SELECT min(d.due_ms) FROM webhook_deliveries d
                WHERE d.status = 'pending' AND d.webhook_id = w.id) AS due_ms
        FROM waiting JOIN webhooks w ON w.id = waiting.webhook_id
        JOIN workspaces s ON s.id = w.workspace_id
        WHERE w.deleted_at IS NULL AND s.status = 'active'
    )
    SELECT webhook_id, workspace_id, due_ms FROM due WHERE due_ms <= :now_ms
    """
)


@dataclass(frozen=True)
class Claim:
    """An attempt to make now, with what is to be sent."""

    id: str
    webhook_id: str
    workspace_id: str
    begun_ms: int
    url: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Claimed:
    """What a look into lanes brought."""

    claims: list[Claim]
    #: Webhooks that had nothing to give after all.
    empty: list[str]
    #: Whether attempts of dead workers were out of the way, and what is behind them may be due.
    has_cleared: bool


def due_lanes(db: DbSession, *, now_ms: int) -> list[Lane]:
    """The webhooks of active workspaces with attempts that are due, or whose worker died."""
    return [Lane(*row) for row in db.connection().execute(_LANES, {"now_ms": now_ms})]


def claim_attempts(
    db: DbSession,
    box: SecretBox,
    schedule: Schedule,
    wanted: dict[str, int],
    *,
    now: datetime,
    lease_ms: int = LEASE_MS,
) -> Claimed:
    """Begin what is due, oldest first; several workers do so side by side. Needs a write transaction.

    Args:
        wanted: attempts at most, by webhook.
    """
    keys = read_secrets(db, box, wanted, now=now)
    now_ms = clock.to_ms(now)
    claims: list[Claim] = []
    empty: list[str] = []
    lost: list[tuple[AttemptRow, None]] = []
    gone: list[str] = []
    for webhook_id, count in wanted.items():
        # Without a secret it is held until it can be signed.
        rows = _due(db, webhook_id, now_ms=now_ms, limit=count) if webhook_id in keys else []
        if not rows:
            empty.append(webhook_id)
        for row in rows:
            if row.body is None:
                gone.append(row.id)
            elif row.begun_ms is not None:
                lost.append((row, None))
            else:
                claims.append(_claim(row, keys[webhook_id], now_ms))
    if gone:  # the event was erased
        db.connection().execute(delete(DeliveryRow).where(col(DeliveryRow.id).in_(gone)))
    end_attempts(db, schedule, lost, now_ms)
    _begin(db, claims, due_ms=now_ms + lease_ms)
    return Claimed(claims, empty, has_cleared=bool(lost or gone))


def _due(db: DbSession, webhook_id: str, *, now_ms: int, limit: int) -> Sequence[AttemptRow]:
    more = (OutboxRow.body, OutboxRow.request_id, WebhookRow.url, WebhookRow.workspace_id)
    statement = (
        select(*COLUMNS, *map(col, more))
        .select_from(DeliveryRow)
        .join(WebhookRow, col(WebhookRow.id) == col(DeliveryRow.webhook_id))
        .outerjoin(OutboxRow, col(OutboxRow.id) == col(DeliveryRow.event_id))
        .where(
            col(DeliveryRow.webhook_id) == webhook_id,
            col(DeliveryRow.status) == "pending",
            col(DeliveryRow.due_ms) <= now_ms,
        )
        .order_by(col(DeliveryRow.due_ms), col(DeliveryRow.id))
        .limit(limit)
        .with_for_update(of=DeliveryRow, skip_locked=True)
    )
    return db.connection().execute(statement).all()


def _claim(row: AttemptRow, keys: list[str], now_ms: int) -> Claim:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"workflow-recorder/{__version__}",
        "Service-Delivery-Id": row.id,
        **signature_headers(row.event_id, row.body, keys, now_ms // 1000),
    }
    if row.request_id is not None:
        headers["X-Request-Id"] = row.request_id
    return Claim(row.id, row.webhook_id, row.workspace_id, now_ms, row.url, headers, row.body)


def _begin(db: DbSession, claims: Sequence[Claim], *, due_ms: int) -> None:
    values = [
        {
            "delivery_id": claim.id,
            "begun_ms": claim.begun_ms,
            "due_ms": due_ms,
            "request_headers": claim.headers,
        }
        for claim in claims
    ]
    update_attempts(db, values)
