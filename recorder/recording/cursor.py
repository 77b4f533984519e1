"""The driver's cursor, as the ingest writer and its batches use it: one statement style for both engines."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

Row = tuple[Any, ...]


class Cursor(Protocol):
    """The part of a driver's cursor that batches use; statements take `?` for every value."""

    def all(self, statement: str, values: Sequence[Any]) -> list[Row]:
        """Run a statement and fetch its rows."""

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        """Run a statement once per row."""


class DriverCursor:
    """A driver's cursor with its transactions; `?` becomes psycopg's `%s`."""

    def __init__(self, connection: Any, *, is_sqlite: bool) -> None:
        self._cursor = connection.cursor()
        self._begin = "BEGIN IMMEDIATE" if is_sqlite else "BEGIN"
        self._is_sqlite = is_sqlite
        if not is_sqlite:
            connection.autocommit = True

    def begin(self) -> None:
        self._cursor.execute(self._begin)

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def roll_back(self) -> None:
        # Where no transaction was open there is nothing to undo.
        with suppress(Exception):
            self._cursor.execute("ROLLBACK")

    def all(self, statement: str, values: Sequence[Any]) -> list[Row]:
        self._cursor.execute(self._adapt(statement), values)
        rows: list[Row] = self._cursor.fetchall()
        return rows

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        self._cursor.executemany(self._adapt(statement), rows)

    def _adapt(self, statement: str) -> str:
        return statement if self._is_sqlite else statement.replace("?", "%s")


def is_transient(error: Exception) -> bool:
    """Deadlock or serialization failure of PostgreSQL: the group may be tried again."""
    return getattr(error, "sqlstate", None) in ("40P01", "40001")
