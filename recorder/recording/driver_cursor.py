"""Cursor of the ingest writer, with one style of statements for both engines. Design §3."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import inspect
from sqlalchemy.engine import Dialect
from sqlmodel import SQLModel

from recorder.recording.metering import CapturedTimeCharges, MeteringStatements
from recorder.setting_parsers import SessionSize

IngestedRow = tuple[Any, ...]


class IngestCursor(MeteringStatements, Protocol):
    """The part of a driver's cursor that batches use; statements take `?` for every value."""

    is_sqlite: bool
    #: Most that one session holds.
    session_size: SessionSize
    #: Whether the batches are those of live replays, which add to their recordings alone.
    records_replays: bool
    #: What the batches of the group at hand cost.
    charges: CapturedTimeCharges


class DriverCursor:
    """A driver's cursor with its transactions; `?` becomes psycopg's `%s`."""

    def __init__(
        self,
        connection: Any,
        dialect: Dialect,
        session_size: SessionSize = SessionSize(),
        *,
        records_replays: bool = False,
    ) -> None:
        self.session_size = session_size
        self.records_replays = records_replays
        self._cursor = connection.cursor()
        self._dialect = dialect
        self.is_sqlite = dialect.name == "sqlite"
        self.charges = CapturedTimeCharges()
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

    def all(self, statement: str, values: Sequence[Any]) -> list[IngestedRow]:
        self._cursor.execute(self._adapt_statement(statement), values)
        rows: list[IngestedRow] = self._cursor.fetchall()
        return rows

    def many(self, statement: str, rows: Sequence[IngestedRow]) -> None:
        self._cursor.executemany(self._adapt_statement(statement), rows)

    def insert(self, row: SQLModel) -> None:
        """Insert a row of a table, its values in the form that SQLAlchemy gives them."""
        columns = [(attribute.columns[0], attribute.key) for attribute in inspect(type(row)).column_attrs]
        names = ", ".join(column.name for column, _ in columns)
        marks = ", ".join("?" * len(columns))
        values = tuple(self._bind_value(column.type, getattr(row, key)) for column, key in columns)
        self.many(f"INSERT INTO {columns[0][0].table.name} ({names}) VALUES ({marks})", [values])  # noqa: S608

    def _bind_value(self, type: Any, value: Any) -> Any:
        """Return a value as the driver takes it for a column of this type."""
        bind = type.dialect_impl(self._dialect).bind_processor(self._dialect)
        return value if bind is None else bind(value)

    def _adapt_statement(self, statement: str) -> str:
        return statement if self.is_sqlite else statement.replace("?", "%s")
