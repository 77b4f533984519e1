"""Rows that wait for a run, and the workspaces that have some. Design §3.

Each workspace costs a few searches of an index, however many of its rows wait: to number 200,000 of them took
more than a second in each turn of a run.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import TextClause, bindparam, text
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel

from recorder import clock
from recorder.tenant import Tenant

Row = TypeVar("Row", bound=SQLModel)

# One workspace and mode after another, each with its first row. As expressions, not as columns, and one
# comparison for each: SQLite then looks both up in the index.
_FIRST_OF_EACH_TENANT = """
    WITH RECURSIVE first(id) AS (
        SELECT (
            SELECT {key} FROM {table} WHERE {condition} ORDER BY workspace_id, mode, {order} LIMIT 1
        )
        UNION ALL
        SELECT COALESCE((
            SELECT {key} FROM {table} WHERE {condition}
              AND workspace_id = before.workspace_id || '' AND mode > before.mode || ''
            ORDER BY workspace_id, mode, {order} LIMIT 1
        ), (
            SELECT {key} FROM {table} WHERE {condition} AND workspace_id > before.workspace_id || ''
            ORDER BY workspace_id, mode, {order} LIMIT 1
        ))
        FROM first JOIN {table} AS before ON before.{key} = first.id
    )
    SELECT {table}.workspace_id, {table}.mode
    FROM first JOIN {table} ON {table}.{key} = first.id
    {join}
    WHERE {is_due}
    ORDER BY {table}.{order}
"""
_JOIN_ACTIVE = "JOIN workspaces ON workspaces.id = {table}.workspace_id AND workspaces.status = 'active'"


@dataclass(frozen=True)
class WaitingRows(Generic[Row]):
    """Rows of a kind that wait, in the order in which those of a workspace are done."""

    table: type[Row]
    #: In SQL, in the words of a partial index.
    condition: str
    #: Last column of that index, after workspace and mode.
    order: str = "id"
    #: Whether that column is a time before which a row is not due.
    is_timed: bool = False
    #: How long after that time a row is due.
    delay: timedelta = timedelta(0)
    #: Primary key of the table.
    key: str = "id"
    #: Whether the rows of suspended workspaces wait until these are active again.
    is_of_active: bool = True

    def list_tenants(self, db: DbSession) -> list[Tenant]:
        """Return the workspaces and modes with rows that are due, in the order of their first ones."""
        return [Tenant(*values) for values in db.connection().execute(self.select_tenants())]

    def has_due(self, db: DbSession) -> bool:
        """Return whether any row is due."""
        return db.connection().execute(self.select_tenants()).first() is not None

    def select_tenants(self) -> TextClause:
        """Return the statement of `list_tenants`."""
        table: Any = self.table.__tablename__
        statement = _FIRST_OF_EACH_TENANT.format(
            table=table,
            key=self.key,
            condition=self.condition,
            order=self.order,
            join=_JOIN_ACTIVE.format(table=table) if self.is_of_active else "",
            is_due=self._due_condition,
        )
        return self._bind_due_time(statement)

    def make_conditions(self) -> TextClause:
        """Return the conditions of the rows."""
        return self._bind_due_time(f"{self.condition} AND {self._due_condition}")

    @property
    def _due_condition(self) -> str:
        return f"{self.order} <= :now" if self.is_timed else "TRUE"

    def _bind_due_time(self, words: str) -> TextClause:
        if not self.is_timed:
            return text(words)
        due_until = clock.now() - self.delay
        return text(words).bindparams(bindparam("now", due_until, type_=getattr(self.table, self.order).type))
