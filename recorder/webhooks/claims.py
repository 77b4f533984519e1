"""Attempts that are due, claimed by a lease. Spec §6.3, contract §6.

An attempt counts from its claim on, which is committed before anything is sent. A worker that dies leaves it
under way; once its lease is over, whoever claims next counts it as failed and plans the one after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, text
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import __version__, clock
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, WebhookRow
from recorder.webhooks.fair_schedule import Lane
from recorder.webhooks.results import COLUMNS, AttemptRow, end_attempts, update_attempts
from recorder.webhooks.retry_schedule import Schedule
from recorder.webhooks.secrets import SecretBox, read_secrets
from recorder.webhooks.signing import signature_headers

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
