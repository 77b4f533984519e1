"""Delivery attempts: claimed under a lease, and ended with a result. Spec §6.3, contract §6.

An attempt counts from its claim on, which is committed before anything is sent. If a worker dies, its
attempts stay under way; once the lease is over, another worker ends them as failed and plans the next ones.
"""

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
from recorder.net.outbound_client import BODY_BYTES, OutboundExchange
from recorder.version import __version__
from recorder.webhooks.deleted_subjects import make_deleted_subject_condition
from recorder.webhooks.delivery_scheduling import DeliverySchedule, WebhookQueue
from recorder.webhooks.outbox import make_outbox_attempt
from recorder.webhooks.repeated_log_lines import RepeatedLogLine
from recorder.webhooks.signing import signature_headers
from recorder.webhooks.subscriptions import WebhookSecretBox, read_webhook_secrets

#: A receiver that fails exhausts as many deliveries as its workspace has events.
_EXHAUSTED = RepeatedLogLine(logging.WARNING, "a delivery failed for the last time")

#: Columns that ending an attempt needs.
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
DeliveryAttemptRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True)
class DeliveryResult:
    """Result of an attempt that this worker claimed."""

    delivery_id: str
    begun_ms: int
    exchange: OutboundExchange


@dataclass(frozen=True)
class SettledDeliveries:
    """Result of storing the results of attempts."""

    #: The webhook of each attempt that no other one follows.
    last: list[str]
    #: Results whose attempts another transaction holds, such as a purge; they are to be stored later.
    postponed: list[DeliveryResult]


def settle_delivery_attempts(
    db: DbSession, schedule: DeliverySchedule, results: Sequence[DeliveryResult], *, now: datetime
) -> SettledDeliveries:
    """Store the results of attempts, and plan the attempts after failed ones; wait for no attempt's row.

    Attempts that another worker has taken over, and those of deleted webhooks, are passed over. Needs a write
    transaction.
    """
    by_id = {result.delivery_id: result for result in results}
    statement = (
        select(*COLUMNS)
        .join(WebhookRow, col(WebhookRow.id) == col(DeliveryRow.webhook_id))
        .where(
            col(DeliveryRow.id).in_(list(by_id)),
            col(DeliveryRow.status) == "pending",
            col(WebhookRow.deleted_at).is_(None),
        )
        .order_by(col(DeliveryRow.id))
    )
    # The results of all workspaces are stored together: a row that one holds must not hold up the others.
    locked = statement.with_for_update(of=DeliveryRow, skip_locked=True)
    rows = db.connection().execute(locked).all()
    held = [row for row in rows if row.begun_ms == by_id[row.id].begun_ms]
    unlocked_ids = by_id.keys() - {row.id for row in rows}
    postponed: list[DeliveryResult] = []
    if unlocked_ids:
        unlocked = db.connection().execute(statement.where(col(DeliveryRow.id).in_(unlocked_ids)))
        postponed = [by_id[row.id] for row in unlocked if row.begun_ms == by_id[row.id].begun_ms]
    ended = [(row, by_id[row.id].exchange) for row in held]
    return SettledDeliveries(end_delivery_attempts(db, schedule, ended, clock.to_ms(now)), postponed)


def end_delivery_attempts(
    db: DbSession,
    schedule: DeliverySchedule,
    ended: Sequence[tuple[DeliveryAttemptRow, OutboundExchange | None]],
    now_ms: int,
) -> list[str]:
    """Store the result of each attempt; None is the result of one whose worker died.

    Returns:
        The webhook of each attempt that no other one follows.
    """
    results, following, last = [], [], []
    for row, exchange in ended:
        is_success = exchange is not None and exchange.is_success
        due_ms = None
        if not is_success:
            share = secrets.randbelow(1_001) / 1_000
            due_ms = schedule.next_due_ms(row.attempt, failed_ms=now_ms, share=share)
        results.append(_make_attempt_result(row, exchange, is_success=is_success, due_ms=due_ms))
        if due_ms is not None:
            following.append(_make_next_attempt(row, due_ms))
            continue
        last.append(row.webhook_id)
        if not is_success:
            _EXHAUSTED.add(row.webhook_id, event_id=row.event_id, attempts=row.attempt)
    update_delivery_attempts(db, results)
    if following:
        db.connection().execute(insert(DeliveryRow), following)
    return last


def _make_attempt_result(
    row: DeliveryAttemptRow, exchange: OutboundExchange | None, *, is_success: bool, due_ms: int | None
) -> dict[str, Any]:
    status = "succeeded" if is_success else "exhausted" if due_ms is None else "failed"
    return {
        "delivery_id": row.id,
        "status": status,
        "response": None if exchange is None else _describe_attempt_response(exchange),
        "error": None if exchange is None else exchange.error,
        "duration_ms": None if exchange is None else exchange.duration_ms,
        "next_attempt_at": None if due_ms is None else clock.from_ms(due_ms),
    }


def _describe_attempt_response(exchange: OutboundExchange) -> dict[str, Any] | None:
    if exchange.status is None:
        return None
    # PostgreSQL takes no NUL in a text; replacing bytes that are not UTF-8 lengthens it, so it is cut again.
    text = exchange.body.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}").encode()
    return {
        "status": exchange.status,
        "headers": exchange.headers,
        "body": text[:BODY_BYTES].decode("utf-8", "ignore"),
        "body_truncated": exchange.body_truncated or len(text) > BODY_BYTES,
    }


def _make_next_attempt(row: DeliveryAttemptRow, due_ms: int) -> dict[str, Any]:
    return make_outbox_attempt(
        row.webhook_id,
        event_id=row.event_id,
        event_type=row.event_type,
        due_ms=due_ms,
        attempt=row.attempt + 1,
        trigger=row.trigger,
        redelivery_of=row.redelivery_of,
    )


def update_delivery_attempts(db: DbSession, values: list[dict[str, Any]]) -> None:
    """Update many attempts at once; each item of `values` has its `delivery_id` and the same columns."""
    if values:
        db.connection().execute(
            update(DeliveryRow).where(col(DeliveryRow.id) == bindparam("delivery_id")), values
        )


#: Longer than an attempt and the storing of its outcome may take.
LEASE_MS = 30_000

# A loose index scan: one step for each webhook that has attempts waiting, however many those are.
_DUE_QUEUES = text(
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
class DeliveryClaim:
    """Attempt to make now: URL, headers and body."""

    id: str
    webhook_id: str
    workspace_id: str
    begun_ms: int
    url: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class ClaimedDeliveries:
    """Result of a claim over several webhooks."""

    claims: list[DeliveryClaim]
    #: Webhooks without an attempt to claim.
    empty: list[str]
    #: Whether attempts of dead workers, erased events or deleted sessions were removed; more may be due now.
    has_cleared: bool


def list_due_queues(db: DbSession, *, now_ms: int) -> list[WebhookQueue]:
    """Return the webhooks of active workspaces with attempts that are due, or whose worker died."""
    return [WebhookQueue(*row) for row in db.connection().execute(_DUE_QUEUES, {"now_ms": now_ms})]


def claim_delivery_attempts(
    db: DbSession,
    box: WebhookSecretBox,
    schedule: DeliverySchedule,
    wanted: dict[str, int],
    *,
    now: datetime,
    lease_ms: int = LEASE_MS,
) -> ClaimedDeliveries:
    """Claim attempts that are due, oldest first; several workers can claim at once.

    Args:
        db: a write transaction.
        box: decrypts signing secrets.
        schedule: waits before the attempts after failed ones.
        wanted: most attempts, by webhook.
        now: the present instant.
        lease_ms: time after which a claimed attempt counts as lost.
    """
    keys = read_webhook_secrets(db, box, wanted, now=now)
    now_ms = clock.to_ms(now)
    claims: list[DeliveryClaim] = []
    empty: list[str] = []
    lost: list[tuple[DeliveryAttemptRow, None]] = []
    erased: list[str] = []
    for webhook_id, count in wanted.items():
        # Without a secret its attempts wait until they can be signed.
        rows = _select_due_attempts(db, webhook_id, now_ms=now_ms, limit=count) if webhook_id in keys else []
        if not rows:
            empty.append(webhook_id)
        for row in rows:
            if row.body is None or row.is_deleted:
                erased.append(row.id)
            elif row.begun_ms is not None:
                lost.append((row, None))
            else:
                claims.append(_make_delivery_claim(row, keys[webhook_id], now_ms))
    if erased:
        db.connection().execute(delete(DeliveryRow).where(col(DeliveryRow.id).in_(erased)))
    end_delivery_attempts(db, schedule, lost, now_ms)
    _store_delivery_claims(db, claims, due_ms=now_ms + lease_ms)
    return ClaimedDeliveries(claims, empty, has_cleared=bool(lost or erased))


# Built once: to build it takes longer than to run it, and a turn runs it for each webhook.
_DUE_ATTEMPTS = (
    select(
        *COLUMNS,
        *map(col, (OutboxRow.body, OutboxRow.request_id, WebhookRow.url, WebhookRow.workspace_id)),
        make_deleted_subject_condition().label("is_deleted"),
    )
    .select_from(DeliveryRow)
    .join(WebhookRow, col(WebhookRow.id) == col(DeliveryRow.webhook_id))
    .outerjoin(OutboxRow, col(OutboxRow.id) == col(DeliveryRow.event_id))
    .where(
        col(DeliveryRow.webhook_id) == bindparam("webhook_id"),
        col(DeliveryRow.status) == "pending",
        col(DeliveryRow.due_ms) <= bindparam("now_ms"),
    )
    .order_by(col(DeliveryRow.due_ms), col(DeliveryRow.id))
    .limit(bindparam("count"))
    .with_for_update(of=DeliveryRow, skip_locked=True)
)


def _select_due_attempts(
    db: DbSession, webhook_id: str, *, now_ms: int, limit: int
) -> Sequence[DeliveryAttemptRow]:
    values = {"webhook_id": webhook_id, "now_ms": now_ms, "count": limit}
    return db.connection().execute(_DUE_ATTEMPTS, values).all()


def _make_delivery_claim(row: DeliveryAttemptRow, keys: list[str], now_ms: int) -> DeliveryClaim:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"workflow-recorder/{__version__}",
        "Service-Delivery-Id": row.id,
        **signature_headers(row.event_id, row.body, keys, now_ms // 1000),
    }
    if row.request_id is not None:
        headers["X-Request-Id"] = row.request_id
    return DeliveryClaim(row.id, row.webhook_id, row.workspace_id, now_ms, row.url, headers, row.body)


def _store_delivery_claims(db: DbSession, claims: Sequence[DeliveryClaim], *, due_ms: int) -> None:
    values = [
        {
            "delivery_id": claim.id,
            "begun_ms": claim.begun_ms,
            "due_ms": due_ms,
            "request_url": claim.url,
            "request_headers": claim.headers,
        }
        for claim in claims
    ]
    update_delivery_attempts(db, values)
