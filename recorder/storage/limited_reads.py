"""Reads with a time limit: the database ends their statements, on both engines. Contract §1 (lists)."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, select
from sqlmodel import Session as DbSession

from recorder.errors import ReadTooLong, Unavailable
from recorder.storage.database import Database

#: Key of `Session.info`: the `_TimeLimit` of a read.
_TIME_LIMIT = "time_limit"
#: SQLite reads the clock after so many of its instructions, some 30 ms. Each time it waits for Python's lock,
#: which takes up to 5 ms while other threads compute. A page of 500 sessions takes 40,000 instructions.
_INSTRUCTIONS = 500_000
_POSTGRES_QUERY_CANCELED = "57014"
#: Settings of PostgreSQL by which the planner counts rows, not pages. By pages it may read the rows of all
#: workspaces in the order of their ids, since they are stored in it, until the page is full: those of a
#: workspace that stored a million rows later come first.
_PLAN_BY_ROWS = {"seq_page_cost": "0", "random_page_cost": "0"}


@contextmanager
def limited_read(
    database: Database, *, limit_s: float, instructions: int = _INSTRUCTIONS
) -> Iterator[DbSession]:
    """Open a read transaction whose statements the database ends after a time.

    SQLite ends them that long after the transaction began, PostgreSQL each that long after its own begin. A
    read of many short statements calls `check_read_time` between them.

    Args:
        database: the database.
        limit_s: seconds.
        instructions: instructions of SQLite after which it reads the clock.

    Raises:
        ReadTooLong: if a statement was ended.
        Unavailable: if the database does not answer.
    """
    limit = _TimeLimit(limit_s)
    try:
        with database.transaction(write=False) as db:
            db.info[_TIME_LIMIT] = limit
            if database.is_sqlite:
                with _ending_sqlite_statements(db, limit, instructions):
                    yield db
            else:
                set_postgres_options(
                    db, statement_timeout=_format_statement_timeout_ms(limit_s), **_PLAN_BY_ROWS
                )
                yield db
    except Unavailable as error:
        if _is_statement_ended(error.__cause__):
            raise ReadTooLong(limit_s) from error
        raise


def check_read_time(db: DbSession) -> None:
    """Check that a read has time left; one without a limit always has.

    Raises:
        ReadTooLong: if its time is over.
    """
    limit: _TimeLimit | None = db.info.get(_TIME_LIMIT)
    if limit is not None and limit.is_over():
        raise ReadTooLong(limit.limit_s)


@contextmanager
def without_time_limit(db: DbSession) -> Iterator[None]:
    """Stop the time of a limited read during the block, such as for a graph, which has a size of its own.

    A graph that is read once is kept for the reads that follow; ended each time, it would never be.
    """
    limit: _TimeLimit | None = db.info.get(_TIME_LIMIT)
    if limit is None:
        yield
        return
    is_postgres = db.get_bind().dialect.name == "postgresql"
    began = time.monotonic()
    limit.is_stopped = True
    if is_postgres:
        set_postgres_options(db, statement_timeout="0")
    yield
    if is_postgres:
        set_postgres_options(db, statement_timeout=_format_statement_timeout_ms(limit.limit_s))
    limit.is_stopped = False
    limit.ends_at += time.monotonic() - began


class _TimeLimit:
    """Time of one read."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ends_at = time.monotonic() + limit_s
        self.is_stopped = False

    def is_over(self) -> bool:
        """Return whether no time is left."""
        return not self.is_stopped and time.monotonic() >= self.ends_at


@contextmanager
def _ending_sqlite_statements(db: DbSession, limit: _TimeLimit, instructions: int) -> Iterator[None]:
    """End SQLite statements of the block that take longer than the limit."""
    connection = db.connection().connection.driver_connection
    assert isinstance(connection, sqlite3.Connection)
    connection.set_progress_handler(limit.is_over, instructions)
    try:
        yield
    finally:
        # The pool gives the connection to other transactions.
        connection.set_progress_handler(None, instructions)


def set_postgres_options(db: DbSession, **options: str) -> None:
    """Set options of PostgreSQL until the transaction ends, by one statement."""
    calls = (func.set_config(name, value, True) for name, value in options.items())
    db.connection().execute(select(*calls))


def _format_statement_timeout_ms(limit_s: float) -> str:
    return str(int(limit_s * 1000))


def _is_statement_ended(error: BaseException | None) -> bool:
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        return cause.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT
    return getattr(cause, "sqlstate", None) == _POSTGRES_QUERY_CANCELED
