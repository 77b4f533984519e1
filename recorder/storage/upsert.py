"""Upserts: inserts of rows that may exist already, for SQLite and PostgreSQL.

Both databases support `INSERT … ON CONFLICT`; SQLAlchemy has one construct per dialect. Inserts meet
conflicts of the primary key and of other unique columns, updates those of the primary key.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session as DbSession
from sqlmodel import SQLModel


def insert_if_missing(db: DbSession, model: type[SQLModel], values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its primary key, or its value of a unique column, exists.

    Of two transactions that insert the same row at once, the second waits for the first.

    Returns:
        Whether this call inserted the row.
    """
    table = _get_upsert_table(model)
    statement = _make_upsert_statement(db, table).values(**values).on_conflict_do_nothing()
    return db.connection().execute(statement.returning(*table.primary_key)).first() is not None


def insert_missing_rows(db: DbSession, model: type[SQLModel], rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows, and return how many were inserted; those whose primary key exists stay as they are."""
    if not rows:
        return 0
    statement = _make_upsert_statement(db, _get_upsert_table(model)).on_conflict_do_nothing()
    counted = statement.execution_options(preserve_rowcount=True)
    return db.connection().execute(counted, rows).rowcount


def insert_or_update(
    db: DbSession,
    model: type[SQLModel],
    values: Mapping[str, Any],
    *,
    update: Mapping[str, Any],
    where: ColumnElement[bool] | None = None,
) -> Row[Any] | None:
    """Insert a row, or update the row with its primary key; both lock the row.

    Args:
        db: a write transaction.
        model: the table.
        values: columns of a row that is inserted.
        update: columns of a row that exists; the values may be expressions of its columns.
        where: condition that a row must meet to be updated; None updates any.

    Returns:
        The row as it is now; None where it exists and does not meet `where`.
    """
    table = _get_upsert_table(model)
    statement = _make_upsert_statement(db, table).values(**values)
    statement = statement.on_conflict_do_update(
        index_elements=tuple(table.primary_key), set_=dict(update), where=where
    )
    return db.connection().execute(statement.returning(*table.columns)).one_or_none()


def _get_upsert_table(model: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(model.__tablename__)]


def _make_upsert_statement(db: DbSession, table: Table) -> Any:
    is_postgres = db.get_bind().dialect.name == "postgresql"
    return postgresql.insert(table) if is_postgres else sqlite.insert(table)
