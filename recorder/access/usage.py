"""Usage: counted, held and given back in the transaction of what uses it. Spec §8.2; contract §7.

The row of a workspace and period is the truth for all processes. Events and frames are charged by the ingest
writer (`recorder/recording/charges.py`), which has no session of SQLAlchemy's; all else passes here. Test
mode is free: nothing of it is counted.
"""

from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, update

from recorder import clock
from recorder.access.quota import (
    MINUTE_MS,
    NAMES,
    Metric,
    Period,
    due_level_of,
    due_notices,
    period_named,
    period_of,
    quota_of,
)
from recorder.access.surfaces import TIERS, Tier
from recorder.errors import QuotaExceeded
from recorder.models.usage import Quota, UsageRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.upsert import insert_or_update
from recorder.tenant import Tenant
from recorder.webhooks.outbox import add_event

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
