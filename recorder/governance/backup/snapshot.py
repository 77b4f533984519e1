"""Snapshot of the database at one instant, while others go on writing: on SQLite and PostgreSQL.

SQLite: a read transaction fixes the instant, and SQLite's backup API copies the pages of that transaction.
PostgreSQL: a repeatable-read transaction fixes it, and COPY writes each table as text, so that neither
backup nor restore needs PostgreSQL's programs. See docs/decisions/0040-backups.md.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from recorder import clock
from recorder.governance.backup.errors import DatabaseNotCopied
from recorder.storage.database import Database

FILE = "recorder.db"
_READ_BYTES = 4 * 1024 * 1024
_PAGES = 4_096
Engine = Literal["sqlite", "postgresql"]


class DatabaseSnapshot(ABC):
    """State of the database at one instant."""

    engine: ClassVar[Engine]

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        #: No earlier than the instant.
        self.moment: datetime = clock.now()

    @abstractmethod
    def read(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query."""

    @abstractmethod
    def list_tables(self) -> dict[str, list[str]]:
        """Return the tables that are copied one by one, with their columns."""

    @abstractmethod
    def read_database_files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield name and content of the files that hold the database."""


class _SqliteSnapshot(DatabaseSnapshot):
    engine = "sqlite"

    def __init__(self, connection: Any, folder: Path) -> None:
        super().__init__(connection)
        self._copy = folder / FILE

    def read(self, statement: str) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(statement)

    def list_tables(self) -> dict[str, list[str]]:
        return {}

    def read_database_files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        try:
            with closing(sqlite3.connect(self._copy)) as target:
                self._connection.backup(target, pages=_PAGES)
        except sqlite3.OperationalError as error:
            raise DatabaseNotCopied(self._copy.parent.parent, error) from error
        yield FILE, _read_snapshot_file(self._copy)


class _PostgresSnapshot(DatabaseSnapshot):
    engine = "postgresql"

    def read(self, statement: str) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(statement).fetchall()

    def list_tables(self) -> dict[str, list[str]]:
        tables: dict[str, list[str]] = {}
        for table, column in self.read(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c "
            "JOIN information_schema.tables t USING (table_schema, table_name) "
            "WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE' "
            "AND c.table_name <> 'alembic_version' ORDER BY c.table_name, c.ordinal_position"
        ):
            tables.setdefault(table, []).append(column)
        return tables

    def read_database_files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        for table, columns in self.list_tables().items():
            yield f"{table}.copy", self._read_table(table, columns)

    def _read_table(self, table: str, columns: list[str]) -> Iterator[bytes]:
        with (
            self._connection.cursor() as cursor,
            cursor.copy(make_copy_statement(table, columns, "TO STDOUT")) as copy,
        ):
            yield from map(bytes, copy)


def make_copy_statement(table: str, columns: list[str], direction: str) -> str:
    """Return the COPY statement of a table of the service.

    Raises:
        ValueError: if a name cannot be that of a table or column of the service.
    """
    if not all(name.isascii() and name.replace("_", "").isalnum() for name in (table, *columns)):
        raise ValueError("Tables and columns are named by letters, digits and _.")
    listed = ", ".join(f'"{column}"' for column in columns)
    return f'COPY "{table}" ({listed}) {direction}'


@contextmanager
def open_database_snapshot(database: Database, folder: Path) -> Iterator[DatabaseSnapshot]:
    """Fix an instant; yield the state of the database at it.

    Args:
        database: the database, which others use at the same time.
        folder: empty folder for a copy of a SQLite file.
    """
    connection = database.raw_connection()
    try:
        if database.is_sqlite:
            connection.execute("BEGIN")
            # The first read fixes the instant.
            connection.execute("SELECT 1 FROM deployment").fetchone()
            yield _SqliteSnapshot(connection, folder)
        else:
            connection.rollback()
            connection.autocommit = True
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute("SELECT 1 FROM deployment")
            yield _PostgresSnapshot(connection)
    finally:
        connection.close()


def _read_snapshot_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            yield chunk
