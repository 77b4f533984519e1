"""Open replays and recoveries, of each workspace the first ones. Design §3."""

from collections.abc import Collection
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import defer
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.models.recovery import DUE_RECOVERY, RecoveryRow
from recorder.models.replay import DRY_AWAITING, DRY_TO_RUN, LIVE_QUEUED, ReplayRow
from recorder.storage.conditions import in_tenant
from recorder.storage.waiting_rows import WaitingRows
from recorder.tenant import Tenant

Row = TypeVar("Row", ReplayRow, RecoveryRow)

DRY_REPLAYS_TO_RUN = WaitingRows(ReplayRow, DRY_TO_RUN)
#: Dry replays whose time for a decision is over.
LATE_DRY_REPLAYS = WaitingRows(ReplayRow, DRY_AWAITING, "awaiting_until", is_timed=True)
#: Live replays that wait for a worker.
LIVE_REPLAYS_TO_RUN = WaitingRows(ReplayRow, LIVE_QUEUED)
DUE_RECOVERIES = WaitingRows(RecoveryRow, DUE_RECOVERY)


def list_waiting_rows_by_tenant(
    db: DbSession,
    rows: WaitingRows[Row],
    conditions: Collection[Any],
    *,
    limit: int,
    most_each: int | None = None,
    full: Collection[Tenant] = (),
) -> list[Row]:
    """Return open rows of active workspaces without inputs: the first of each, then the second of each.

    Args:
        db: database session.
        rows: kind of the rows.
        conditions: further conditions of the rows.
        limit: most rows; workspaces have equal shares of them, at least one row each.
        most_each: most rows of a workspace and mode; by default no less than its share.
        full: workspaces and modes to leave out.
    """
    tenants = [tenant for tenant in rows.list_tenants(db) if tenant not in full]
    each = min(max(1, limit // max(1, len(tenants))), most_each or limit)
    turns: list[tuple[int, str, Row]] = []
    for tenant in tenants:
        statement = select(rows.table).where(
            *in_tenant(rows.table, tenant), rows.make_conditions(), *conditions
        )
        statement = statement.order_by(text(rows.order)).limit(each)
        listed = db.exec(statement.options(defer(rows.table.input_values)))  # type: ignore[arg-type]
        turns += [(turn, row.id, row) for turn, row in enumerate(listed)]
        if len(turns) >= limit:
            break
    return [row for _, _, row in sorted(turns, key=lambda entry: entry[:2])]
