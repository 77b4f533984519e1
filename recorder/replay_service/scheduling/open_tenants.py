"""Workspaces with open replays or recoveries, and the first rows of each. Design §3.

Each costs a few searches of an index, however many of its rows are open: to number 200,000 of them took more
than a second in each turn of a run.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.orm import defer
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.models.recovery import OPEN_RECOVERY, RecoveryRow
from recorder.models.replay import DRY_AWAITING, DRY_TO_RUN, ReplayRow
from recorder.storage.conditions import in_tenant
from recorder.tenant import Tenant

Row = TypeVar("Row", ReplayRow, RecoveryRow)

# One workspace and mode after another, each with its first row. As expressions, not as columns, and one
# comparison for each: SQLite then looks both up in the index.
_FIRST_OF_EACH_TENANT = """
    WITH RECURSIVE first(id) AS (
        SELECT (
            SELECT id FROM {table} WHERE {condition} ORDER BY workspace_id, mode, {order} LIMIT 1
        )
        UNION ALL
        SELECT COALESCE((
            SELECT id FROM {table} WHERE {condition}
              AND workspace_id = before.workspace_id || '' AND mode > before.mode || ''
            ORDER BY workspace_id, mode, {order} LIMIT 1
        ), (
            SELECT id FROM {table} WHERE {condition} AND workspace_id > before.workspace_id || ''
            ORDER BY workspace_id, mode, {order} LIMIT 1
        ))
        FROM first JOIN {table} AS before ON before.id = first.id
    )
    SELECT {table}.workspace_id, {table}.mode
    FROM first JOIN {table} ON {table}.id = first.id
    JOIN workspaces ON workspaces.id = {table}.workspace_id AND workspaces.status = 'active'
    WHERE {is_due}
    ORDER BY {table}.{order}
"""


@dataclass(frozen=True)
class OpenRows(Generic[Row]):
    """Open rows of a kind, in the order in which those of a workspace are done."""

    table: type[Row]
    #: In SQL, in the words of a partial index.
    condition: str
    #: Last column of that index, after workspace and mode.
    order: str = "id"
    #: Whether that column is a time before which a row is not due.
    is_timed: bool = False

    def select_tenants(self) -> TextClause:
        """Return the statement for workspaces and modes with such rows, in the order of their first ones."""
        statement = _FIRST_OF_EACH_TENANT.format(
            table=self.table.__tablename__, condition=self.condition, order=self.order, is_due=self._is_due
        )
        return self._bind_time(statement)

    def make_conditions(self) -> TextClause:
        """Return the conditions of the rows."""
        return self._bind_time(f"{self.condition} AND {self._is_due}")

    @property
    def _is_due(self) -> str:
        return f"{self.order} <= :now" if self.is_timed else "TRUE"

    def _bind_time(self, words: str) -> TextClause:
        if not self.is_timed:
            return text(words)
        return text(words).bindparams(
            bindparam("now", clock.now(), type_=getattr(self.table, self.order).type)
        )


DRY_REPLAYS_TO_RUN = OpenRows(ReplayRow, DRY_TO_RUN)
#: Dry replays whose time for a decision is over.
LATE_DRY_REPLAYS = OpenRows(ReplayRow, DRY_AWAITING, "awaiting_until", is_timed=True)
OPEN_RECOVERIES = OpenRows(RecoveryRow, OPEN_RECOVERY)


def list_open_rows_by_tenant(
    db: DbSession,
    rows: OpenRows[Row],
    conditions: Collection[Any],
    *,
    limit: int,
    full: Collection[Tenant] = (),
) -> list[Row]:
    """Return open rows of active workspaces without inputs: the first of each, then the second of each.

    Args:
        db: database session.
        rows: kind of the rows.
        conditions: further conditions of the rows.
        limit: most rows; workspaces have equal shares of them, at least one row each.
        full: workspaces and modes to leave out.
    """
    tenants = [Tenant(*values) for values in db.connection().execute(rows.select_tenants())]
    tenants = [tenant for tenant in tenants if tenant not in full]
    each = max(1, limit // max(1, len(tenants)))
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
