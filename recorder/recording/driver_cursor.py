"""The driver's cursor, as the ingest writer and its batches use it: one statement style for both engines."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import inspect
from sqlalchemy.engine import Dialect
from sqlmodel import SQLModel

from recorder.recording.metering import Charges, Statements, UsageMoved
from recorder.settings import SessionSize

Row = tuple[Any, ...]


class Cursor(Statements, Protocol):
    """The part of a driver's cursor that batches use; statements take `?` for every value."""

    is_sqlite: bool
    #: Most that one session holds.
    session_size: SessionSize
    #: What the batches of the group at hand cost.
    charges: Charges


class DriverCursor:
    """A driver's cursor with its transactions; `?` becomes psycopg's `%s`."""

    def __init__(self, connection: Any, dialect: Dialect, session_size: SessionSize = SessionSize()) -> None:
        self.session_size = session_size
        self._cursor = connection.cursor()
        self._dialect = dialect
        self.is_sqlite = dialect.name == "sqlite"
        self.charges = Charges()
        self._begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        if not self.is_sqlite:
            connection.autocommit = True

    def begin(self) -> None:
        self._cursor.execute(self._begin)
        self.charges.begin()

    def commit(self) -> None:
        self._cursor.execute("COMMIT")
        self.charges.keep()

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

    def insert(self, row: SQLModel) -> None:
        """Insert a row of a table, its values in the form that SQLAlchemy gives them."""
        columns = [(attribute.columns[0], attribute.key) for attribute in inspect(type(row)).column_attrs]
        names = ", ".join(column.name for column, _ in columns)
        marks = ", ".join("?" * len(columns))
        values = tuple(self._bind(column.type, getattr(row, key)) for column, key in columns)
        self.many(f"INSERT INTO {columns[0][0].table.name} ({names}) VALUES ({marks})", [values])  # noqa: S608

    def _bind(self, type: Any, value: Any) -> Any:
        bind = type.dialect_impl(self._dialect).bind_processor(self._dialect)
        return value if bind is None else bind(value)

    def _adapt(self, statement: str) -> str:
        return statement if self.is_sqlite else statement.replace("?", "%s")


def is_transient(error: Exception) -> bool:
    """Deadlock or serialization failure of PostgreSQL, or usage that moved: the group may be tried again."""
    return isinstance(error, UsageMoved) or getattr(error, "sqlstate", None) in ("40P01", "40001")
