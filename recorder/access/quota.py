"""Quotas as arithmetic: months, what is left of them, and when that is told. Spec §2.9, §8.2; contract §7."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlmodel import Session as DbSession
from sqlmodel import col, update

from recorder import clock
from recorder.access.rate_tiers import TIERS, Tier
from recorder.errors import QuotaExceeded
from recorder.models.workspace import Quota, UsageRow, WorkspaceRow
from recorder.storage.upsert import insert_or_update
from recorder.tenant import Tenant
from recorder.webhooks.outbox import add_event

Metric = Literal["captured_minutes", "exported_rows"]

MINUTE_MS = 60_000
_WARNING_PERCENT = 80
#: What is told of a metric, in this order; each once a period.
_NOTICES = ("quota.warning", "quota.exhausted")
#: How the errors and pages call the metrics.
NAMES: dict[Metric, str] = {"captured_minutes": "captured minutes", "exported_rows": "exported rows"}


@dataclass(frozen=True, slots=True)
class Period:
    """A calendar month, UTC: from `start` up to, not including, `end`."""

    start: datetime
    end: datetime

    @property
    def key(self) -> str:
        """`YYYY-MM`, the name under which its usage is kept."""
        return self.start.strftime("%Y-%m")


def period_of(moment: datetime) -> Period:
    """The period that an instant lies in."""
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period(start, _next_month(start))


def period_named(key: str) -> Period:
    """The period that is kept under a name."""
    start = datetime.strptime(key, "%Y-%m").replace(tzinfo=UTC)
    return Period(start, _next_month(start))


def quota_of(period: Period, tier: Tier, *, captured_ms: int, exported_rows: int) -> Quota:
    """What was used of a period, beside the limits of a tier."""
    return Quota(
        period_start=period.start,
        period_end=period.end,
        captured_minutes=captured_ms // MINUTE_MS,
        captured_minutes_limit=tier.captured_minutes,
        exported_rows=exported_rows,
        exported_rows_limit=tier.exported_rows,
    )


def due_level(used: int, limit: int | None) -> int:
    """How many of the two notices are due: none, the warning, or both."""
    if limit is None or used * 100 < limit * _WARNING_PERCENT:
        return 0
    return 1 if used < limit else 2


def due_level_of(quota: Quota, metric: Metric) -> int:
    """The same for a metric of a quota."""
    return due_level(getattr(quota, metric), getattr(quota, f"{metric}_limit"))


def due_notices(quota: Quota, metric: Metric, told: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events that are due and were not told: type and `data`.

    Args:
        told: the level up to which they were.
    """
    for type in _NOTICES[told : due_level_of(quota, metric)]:
        yield (
            type,
            {
                "quota": quota.model_dump(mode="json"),
                "metric": metric,
                "used": getattr(quota, metric),
                "limit": getattr(quota, f"{metric}_limit"),
            },
        )


def _next_month(start: datetime) -> datetime:
    return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


#: A tier without quotas.
_FREE = TIERS["default"]
#: Per metric: the column that keeps how much of it was told.
_TOLD: dict[Metric, str] = {"captured_minutes": "captured_told", "exported_rows": "exported_told"}


def read_quota(db: DbSession, tenant: Tenant) -> Quota:
    """The quota of the current period; in test mode nothing counts and nothing is limited."""
    period = period_of(clock.now())
    if tenant.mode == "test":
        return quota_of(period, _FREE, captured_ms=0, exported_rows=0)
    row = _find(db, tenant.workspace_id, period)
    return quota_of(
        period, _tier(db, tenant.workspace_id), captured_ms=row.captured_ms, exported_rows=row.exported_rows
    )


def require_minutes(db: DbSession, tenant: Tenant) -> None:
    """Let pass while captured minutes are left.

    Raises:
        QuotaExceeded: if none are.
    """
    limit = None if tenant.mode == "test" else _tier(db, tenant.workspace_id).captured_minutes
    if limit is not None and _now(db, tenant.workspace_id).captured_ms >= limit * MINUTE_MS:
        raise QuotaExceeded(NAMES["captured_minutes"])


def charge_time(db: DbSession, workspace_id: str, captured_ms: int) -> None:
    """Count captured time that a stop adds; never refused.

    The last row that a transaction may take, but for the audit log's: the ingest writer takes sessions first,
    then this one.
    """
    if captured_ms > 0:
        _add(db, workspace_id, period_of(clock.now()), "captured_minutes", captured_ms=captured_ms)


def require_rows(db: DbSession, tenant: Tenant) -> None:
    """Let pass while rows to export are left; those that running exports hold are not.

    Raises:
        QuotaExceeded: if none are.
    """
    limit = None if tenant.mode == "test" else _tier(db, tenant.workspace_id).exported_rows
    if limit is None:
        return
    row = _now(db, tenant.workspace_id)
    if row.exported_rows + row.reserved_rows >= limit:
        raise QuotaExceeded(NAMES["exported_rows"])


def reserve_rows(db: DbSession, tenant: Tenant, rows: int) -> str | None:
    """Hold the rows of a plan until its export ends.

    Returns:
        The period that holds them; None where nothing is counted.

    Raises:
        QuotaExceeded: if fewer are left; the transaction must then be rolled back.
    """
    if tenant.mode == "test":
        return None
    period = period_of(clock.now())
    row = _add(db, tenant.workspace_id, period, reserved_rows=rows)
    limit = _tier(db, tenant.workspace_id).exported_rows
    left = rows if limit is None else limit - row.exported_rows - row.reserved_rows + rows
    if rows > left:
        raise QuotaExceeded(NAMES["exported_rows"], needed=rows, left=max(0, left))
    return period.key


def settle_rows(db: DbSession, workspace_id: str, period: str, *, reserved: int, exported: int) -> None:
    """Give back what a plan held, and count what its export wrote; 0 where it failed.

    Args:
        period: the one that holds them: an export counts in the month of its plan.
    """
    _add(
        db,
        workspace_id,
        period_named(period),
        "exported_rows",
        exported_rows=exported,
        reserved_rows=-reserved,
    )


def _tier(db: DbSession, workspace_id: str) -> Tier:
    row = db.get(WorkspaceRow, workspace_id)
    return TIERS["default" if row is None else row.tier]


def _now(db: DbSession, workspace_id: str) -> UsageRow:
    return _find(db, workspace_id, period_of(clock.now()))


def _find(db: DbSession, workspace_id: str, period: Period) -> UsageRow:
    """The usage of a period; zero before its first use."""
    row = db.get(UsageRow, (workspace_id, period.key), populate_existing=True)
    return row or UsageRow(workspace_id=workspace_id, period=period.key)


def _add(
    db: DbSession, workspace_id: str, period: Period, metric: Metric | None = None, **amounts: int
) -> Any:
    """Add to the row in one statement, which also locks it; `metric` is told where it is due."""
    fresh = {"workspace_id": workspace_id, "period": period.key, **amounts}
    added = {name: col(getattr(UsageRow, name)) + amount for name, amount in amounts.items()}
    row = insert_or_update(db, UsageRow, fresh, update=added)
    if metric is not None:
        _tell(db, row, period, metric)
    return row


def _tell(db: DbSession, row: Any, period: Period, metric: Metric) -> None:
    tier = _tier(db, row.workspace_id)
    quota = quota_of(period, tier, captured_ms=row.captured_ms, exported_rows=row.exported_rows)
    told = getattr(row, _TOLD[metric])
    for type, data in due_notices(quota, metric, told):
        add_event(
            db,
            tenant=Tenant(row.workspace_id, "live"),
            type=type,
            subject_id=row.workspace_id,
            data=data,
        )
    level = due_level_of(quota, metric)
    if level > told:
        own = update(UsageRow).filter_by(workspace_id=row.workspace_id, period=period.key)
        db.connection().execute(own.values({_TOLD[metric]: level}))
