"""Workspaces with open replays or recoveries, and the first rows of each. Design §3.

Each costs a few searches of an index, however many of its rows are open: to number 200,000 of them took more
than a second in each turn of a run.
"""

from collections.abc import Collection
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import defer
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.storage.conditions import in_tenant
from recorder.tenant import Tenant

Row = TypeVar("Row", ReplayRow, RecoveryRow)

# One workspace and mode after another, each with its oldest row. As expressions, not as columns, and one
# comparison for each: SQLite then looks both up in the index.
_FIRST_OF_EACH_TENANT = """
    WITH RECURSIVE first(id) AS (
        SELECT (
            SELECT id FROM {table} WHERE finished_at IS NULL ORDER BY workspace_id, mode, id LIMIT 1
        )
        UNION ALL
        SELECT COALESCE((
            SELECT id FROM {table} WHERE finished_at IS NULL
              AND workspace_id = before.workspace_id || '' AND mode > before.mode || ''
            ORDER BY workspace_id, mode, id LIMIT 1
        ), (
            SELECT id FROM {table} WHERE finished_at IS NULL AND workspace_id > before.workspace_id || ''
            ORDER BY workspace_id, mode, id LIMIT 1
        ))
        FROM first JOIN {table} AS before ON before.id = first.id
    )
    SELECT {table}.workspace_id, {table}.mode
    FROM first JOIN {table} ON {table}.id = first.id
    JOIN workspaces ON workspaces.id = {table}.workspace_id AND workspaces.status = 'active'
    ORDER BY {table}.id
"""
_STATEMENTS = {
    table: text(_FIRST_OF_EACH_TENANT.format(table=table.__tablename__)) for table in (ReplayRow, RecoveryRow)
}


def list_first_rows(
    db: DbSession,
    table: type[Row],
    conditions: Collection[Any],
    *,
    limit: int,
    full: Collection[Tenant] = (),
) -> list[Row]:
    """Return open rows of active workspaces without inputs: the oldest of each, then the second of each.

    Args:
        db: database session.
        table: kind of the rows.
        conditions: conditions of the rows.
        limit: most rows; workspaces have equal shares of them, at least one row each.
        full: workspaces and modes to leave out.
    """
    tenants = [Tenant(*values) for values in db.connection().execute(_STATEMENTS[table])]
    tenants = [tenant for tenant in tenants if tenant not in full]
    each = max(1, limit // max(1, len(tenants)))
    turns: list[tuple[int, str, Row]] = []
    for tenant in tenants:
        statement = select(table).where(
            *in_tenant(table, tenant), col(table.finished_at).is_(None), *conditions
        )
        statement = statement.order_by(col(table.id)).limit(each)
        rows = db.exec(statement.options(defer(table.input_values)))  # type: ignore[arg-type]
        turns += [(turn, row.id, row) for turn, row in enumerate(rows)]
        if len(turns) >= limit:
            break
    return [row for _, _, row in sorted(turns, key=lambda entry: entry[:2])]
