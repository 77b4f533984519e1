"""Monthly quotas: usage, reservations and the notices about them. Spec §2.9, §8.2; contract §7."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from sqlmodel import Session as DbSession
from sqlmodel import col, update

from recorder import clock
from recorder.access.rate_tiers import TIERS, Tier
from recorder.errors import QuotaExceeded
from recorder.models.workspace import Quota, UsageRow, WorkspaceRow
from recorder.storage.database import add_last_transaction_step
from recorder.storage.upsert import insert_or_update
from recorder.tenant import Tenant
from recorder.webhooks.outbox import add_outbox_event

Metric = Literal["captured_minutes", "exported_rows"]

MINUTE_MS = 60_000
_WARNING_PERCENT = 80
#: Webhook events about a metric, in this order; each is sent once a period.
_NOTICES = ("quota.warning", "quota.exhausted")
#: Names of the metrics in errors and pages.
NAMES: dict[Metric, str] = {"captured_minutes": "captured minutes", "exported_rows": "exported rows"}


@dataclass(frozen=True, slots=True)
class QuotaPeriod:
    """A calendar month, UTC: from `start` up to, not including, `end`."""

    start: datetime
    end: datetime

    @property
    def key(self) -> str:
        """`YYYY-MM`, the name under which usage is stored."""
        return self.start.strftime("%Y-%m")


def quota_period_at(moment: datetime) -> QuotaPeriod:
    """Return the period that contains an instant."""
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return QuotaPeriod(start, _find_next_quota_month(start))


def parse_quota_period(key: str) -> QuotaPeriod:
    """Return the period of a stored name."""
    start = datetime.strptime(key, "%Y-%m").replace(tzinfo=UTC)
    return QuotaPeriod(start, _find_next_quota_month(start))


def compute_quota(period: QuotaPeriod, tier: Tier, *, captured_ms: int, exported_rows: int) -> Quota:
    """Return the usage of a period with the limits of a tier."""
    return Quota(
        period_start=period.start,
        period_end=period.end,
        captured_minutes=captured_ms // MINUTE_MS,
        captured_minutes_limit=tier.captured_minutes,
        exported_rows=exported_rows,
        exported_rows_limit=tier.exported_rows,
    )


def compute_quota_notice_level(used: int, limit: int | None) -> int:
    """Return how many of the two notices are due: none, the warning, or both."""
    if limit is None or used * 100 < limit * _WARNING_PERCENT:
        return 0
    return 1 if used < limit else 2


def compute_quota_metric_notices(quota: Quota, metric: Metric) -> int:
    """Return how many notices of a quota's metric are due."""
    return compute_quota_notice_level(getattr(quota, metric), getattr(quota, f"{metric}_limit"))


def list_due_quota_notices(
    quota: Quota, metric: Metric, sent_level: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield type and `data` of the notices that are due and were not sent.

    Args:
        quota: usage and limits of a period.
        metric: the metric that the notices are about.
        sent_level: number of notices that were sent before.
    """
    for type in _NOTICES[sent_level : compute_quota_metric_notices(quota, metric)]:
        yield (
            type,
            {
                "quota": quota.model_dump(mode="json"),
                "metric": metric,
                "used": getattr(quota, metric),
                "limit": getattr(quota, f"{metric}_limit"),
            },
        )


def _find_next_quota_month(start: datetime) -> datetime:
    return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


#: A tier without quotas.
_FREE = TIERS["default"]
#: Column that counts the notices sent, by metric.
_SENT_COLUMNS: dict[Metric, str] = {"captured_minutes": "captured_told", "exported_rows": "exported_told"}


def read_quota(db: DbSession, tenant: Tenant) -> Quota:
    """Return the quota of the current period; in test mode nothing counts and nothing is limited."""
    period = quota_period_at(clock.now())
    if tenant.mode == "test":
        return compute_quota(period, _FREE, captured_ms=0, exported_rows=0)
    row = _read_usage(db, tenant.workspace_id, period)
    return compute_quota(
        period,
        _read_quota_tier(db, tenant.workspace_id),
        captured_ms=row.captured_ms,
        exported_rows=row.exported_rows,
    )


def require_quota_minutes(db: DbSession, tenant: Tenant) -> None:
    """Check that captured minutes are left.

    Raises:
        QuotaExceeded: if none are left.
    """
    limit = None if tenant.mode == "test" else _read_quota_tier(db, tenant.workspace_id).captured_minutes
    if limit is not None and _read_current_usage(db, tenant.workspace_id).captured_ms >= limit * MINUTE_MS:
        raise QuotaExceeded(NAMES["captured_minutes"])


def charge_quota_minutes(db: DbSession, workspace_id: str, captured_ms: int) -> None:
    """Add the captured time of stopped sessions as a last step of the transaction; it is never refused.

    The row of the usage is locked after all others, since the ingest writer locks sessions first. That is
    directly before the commit: the writer waits for the row with batches of all workspaces.
    """
    if captured_ms > 0:
        add_last_transaction_step(db, partial(_add_captured_ms, workspace_id=workspace_id, ms=captured_ms))


def _add_captured_ms(db: DbSession, *, workspace_id: str, ms: int) -> None:
    """Add captured time to the workspace's usage of this month."""
    db.flush()
    _add_usage(db, workspace_id, quota_period_at(clock.now()), "captured_minutes", captured_ms=ms)


def require_export_row_quota(db: DbSession, tenant: Tenant) -> None:
    """Check that rows to export are left; rows reserved by running exports are not.

    Raises:
        QuotaExceeded: if none are left.
    """
    limit = None if tenant.mode == "test" else _read_quota_tier(db, tenant.workspace_id).exported_rows
    if limit is None:
        return
    row = _read_current_usage(db, tenant.workspace_id)
    if row.exported_rows + row.reserved_rows >= limit:
        raise QuotaExceeded(NAMES["exported_rows"])


def reserve_quota_rows(db: DbSession, tenant: Tenant, rows: int) -> str | None:
    """Reserve the rows of a plan until its export ends.

    Returns:
        The period of the reservation; None where nothing is counted.

    Raises:
        QuotaExceeded: if fewer are left; the transaction must then be rolled back.
    """
    if tenant.mode == "test":
        return None
    period = quota_period_at(clock.now())
    row = _add_usage(db, tenant.workspace_id, period, reserved_rows=rows)
    limit = _read_quota_tier(db, tenant.workspace_id).exported_rows
    left = rows if limit is None else limit - row.exported_rows - row.reserved_rows + rows
    if rows > left:
        raise QuotaExceeded(NAMES["exported_rows"], needed=rows, left=max(0, left))
    return period.key


def settle_quota_rows(db: DbSession, workspace_id: str, period: str, *, reserved: int, exported: int) -> None:
    """Release the reserved rows of a plan, and count the rows that its export wrote.

    Args:
        db: a write transaction.
        workspace_id: workspace of the export.
        period: period of the reservation: an export counts in the month of its plan.
        reserved: rows that the plan reserved.
        exported: rows that were written; 0 where the export failed.
    """
    _add_usage(
        db,
        workspace_id,
        parse_quota_period(period),
        "exported_rows",
        exported_rows=exported,
        reserved_rows=-reserved,
    )


def _read_quota_tier(db: DbSession, workspace_id: str) -> Tier:
    row = db.get(WorkspaceRow, workspace_id)
    return TIERS["default" if row is None else row.tier]


def _read_current_usage(db: DbSession, workspace_id: str) -> UsageRow:
    return _read_usage(db, workspace_id, quota_period_at(clock.now()))


def _read_usage(db: DbSession, workspace_id: str, period: QuotaPeriod) -> UsageRow:
    """Return the usage of a period; zero before its first use."""
    row = db.get(UsageRow, (workspace_id, period.key), populate_existing=True)
    return row or UsageRow(workspace_id=workspace_id, period=period.key)


def _add_usage(
    db: DbSession, workspace_id: str, period: QuotaPeriod, metric: Metric | None = None, **amounts: int
) -> Any:
    """Add to the usage in one statement, which also locks it, and send due notices of `metric`."""
    fresh = {"workspace_id": workspace_id, "period": period.key, **amounts}
    added = {name: col(getattr(UsageRow, name)) + amount for name, amount in amounts.items()}
    row = insert_or_update(db, UsageRow, fresh, update=added)
    if metric is not None:
        _send_quota_notices(db, row, period, metric)
    return row


def _send_quota_notices(db: DbSession, row: Any, period: QuotaPeriod, metric: Metric) -> None:
    tier = _read_quota_tier(db, row.workspace_id)
    quota = compute_quota(period, tier, captured_ms=row.captured_ms, exported_rows=row.exported_rows)
    sent_level = getattr(row, _SENT_COLUMNS[metric])
    for type, data in list_due_quota_notices(quota, metric, sent_level):
        add_outbox_event(
            db,
            tenant=Tenant(row.workspace_id, "live"),
            type=type,
            subject_id=row.workspace_id,
            data=data,
        )
    level = compute_quota_metric_notices(quota, metric)
    if level > sent_level:
        usage = update(UsageRow).filter_by(workspace_id=row.workspace_id, period=period.key)
        db.connection().execute(usage.values({_SENT_COLUMNS[metric]: level}))
