"""Engines of SQLAlchemy for SQLite and PostgreSQL, and what each connection is set to."""

import sqlite3
from typing import Any

import orjson
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from recorder.retries import retry

# WAL with FULL: every acknowledged commit was synced. secure_delete: erased rows leave no bytes behind.
_PRAGMAS = (
    "synchronous=FULL",
    "busy_timeout=30000",
    "cache_size=-4096",
    "wal_autocheckpoint=4000",
    "temp_store=MEMORY",
    "secure_delete=ON",
)
_WAL_ATTEMPTS = 200
_WAL_PAUSE_S = 0.05


def create_sqlite_engine(url: str) -> Engine:
    """Create an engine for a file of SQLite; `recorder_write` begins a transaction with the write lock."""
    engine = create_engine(
        url,
        json_serializer=_dump_json,
        json_deserializer=orjson.loads,
        hide_parameters=True,  # Errors are logged, and parameters hold recorded content.
        connect_args={"check_same_thread": False, "timeout": 30},
        pool_size=8,
        max_overflow=40,
    )

    # An event, since the pool opens connections at times that no caller sees.
    @event.listens_for(engine, "connect")
    def _prepare_connection(connection: DBAPIConnection, _: object) -> None:
        # The driver's own transaction handling is off: the hook below begins each transaction.
        connection.isolation_level = None
        cursor = connection.cursor()
        _use_wal(cursor)
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    # An event, since SQLAlchemy begins a transaction at its first statement, in no function of the service.
    @event.listens_for(engine, "begin")
    def _begin_transaction(connection: Any) -> None:
        write = connection.get_execution_options().get("recorder_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _use_wal(cursor: Any) -> None:
    """Switch write-ahead logging on, a setting that the file keeps.

    SQLite does not wait for this lock, which another process may hold on a new file.
    """
    for attempt in retry(
        sqlite3.OperationalError, attempts=_WAL_ATTEMPTS, first_s=_WAL_PAUSE_S, longest_s=_WAL_PAUSE_S
    ):
        with attempt:
            cursor.execute("PRAGMA journal_mode=WAL")


def create_postgres_engine(url: str) -> Engine:
    """Create an engine for a PostgreSQL server; it replaces connections that the server closed."""
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg://" + url.removeprefix("postgresql://")
    return create_engine(
        url,
        json_serializer=_dump_json,
        json_deserializer=orjson.loads,
        hide_parameters=True,  # Errors are logged, and parameters hold recorded content.
        pool_size=8,
        max_overflow=40,
        pool_pre_ping=True,
    )


def _dump_json(value: Any) -> str:
    """Return the JSON text that a database column holds of a value."""
    return orjson.dumps(value).decode()
