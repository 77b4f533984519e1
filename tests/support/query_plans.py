"""Statements that a block sends to its database, and their plans."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy

from recorder.storage.database import Database


@contextmanager
def noted_statements() -> Iterator[list[tuple[str, Any]]]:
    """Yield the statements of this process with their parameters."""
    noted: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        noted.append((statement, parameters))

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)


def plan_of(database: Database, statement: str, parameters: Any) -> str:
    """Return the plan of a statement, on PostgreSQL as that of a large table."""
    with database.transaction(write=False) as db:
        connection = db.connection()
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return "\n".join(row[-1] for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))
