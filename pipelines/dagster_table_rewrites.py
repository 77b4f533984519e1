"""Rewrites of Dagster's databases, whose free pages keep deleted content. Contract §7."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import dagster as dg
import sqlalchemy
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage
from dagster._core.storage.schedules.sql_schedule_storage import SqlScheduleStorage
from sqlalchemy import Connection

#: A rewrite waits so long for the lock of a database or table; other statements wait behind it.
_LOCK_S = 2.0
#: Tables of PostgreSQL that removals delete rows from.
_TABLES = (
    "event_logs",
    "asset_keys",
    "asset_event_tags",
    "asset_check_executions",
    "runs",
    "run_tags",
    "job_ticks",
)


def rewrite_dagster_databases(
    instance: dg.DagsterInstance, *, lock_s: float = _LOCK_S
) -> tuple[int, list[str]]:
    """Rewrite the databases of runs, events and ticks; return the bytes by which they shrank, and failures.

    Other processes may use them: writers wait while a file or table is rewritten (200 MB of SQLite: 2.2 s on
    a busy machine). A database whose lock is not free in time is left to the next run.

    Args:
        instance: the instance of Dagster.
        lock_s: time for which a rewrite waits for its lock.
    """
    freed, failures, names = 0, [], list(_TABLES)
    for connect in _list_connection_openers(instance):
        with connect() as connection:
            if connection.dialect.name == "sqlite":
                path = connection.engine.url.database
            else:
                path = None
                present = sqlalchemy.inspect(connection).get_table_names()
                for name in [name for name in names if name in present]:
                    names.remove(name)
                    shrunk, why = _rewrite_dagster_table(connection, name, lock_s)
                    freed += shrunk
                    failures += [] if why is None else [why]
        if path is not None and Path(path).is_file():
            shrunk, why = rewrite_dagster_sqlite_file(Path(path), lock_s=lock_s)
            freed += shrunk
            failures += [] if why is None else [why]
    return freed, failures


def _list_connection_openers(
    instance: dg.DagsterInstance,
) -> list[Callable[[], AbstractContextManager[Connection]]]:
    """Return a function for each storage in a database of its own; it opens a connection."""
    events, runs, ticks = instance.event_log_storage, instance.run_storage, instance.schedule_storage
    connects: list[Callable[[], AbstractContextManager[Connection]]] = []
    if isinstance(events, SqlEventLogStorage):
        connects.append(events.index_connection)
    if isinstance(runs, SqlRunStorage):
        connects.append(runs.connect)
    if isinstance(ticks, SqlScheduleStorage):
        connects.append(ticks.connect)
    return connects


def rewrite_dagster_sqlite_file(path: Path, *, lock_s: float = _LOCK_S) -> tuple[int, str | None]:
    """Rewrite a database of SQLite and truncate its log; return by how much it shrank, and why it is left."""
    before = _measure_dagster_sqlite_file(path)
    try:
        with closing(sqlite3.connect(path, timeout=lock_s, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.DatabaseError as error:
        return 0, f"The file {path.name} is left to the next run: {error}."
    why = f"The log of {path.name} is left to the next run: it is being read." if is_busy else None
    return before - _measure_dagster_sqlite_file(path), why


def is_dagster_sqlite_file_damaged(path: Path) -> bool:
    """Return whether a file is no database of SQLite, or a damaged one; False if it cannot be opened now."""
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_S)) as connection:
            problem = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:
        return True
    return bool(problem != ("ok",))


def _measure_dagster_sqlite_file(path: Path) -> int:
    size = path.stat().st_size
    # The process of a run at work deletes it with its last connection.
    with suppress(FileNotFoundError):
        size += path.with_name(f"{path.name}-wal").stat().st_size
    return size


def _rewrite_dagster_table(connection: Connection, name: str, lock_s: float) -> tuple[int, str | None]:
    size = sqlalchemy.text(f"SELECT pg_total_relation_size('{name}')")
    before = connection.execute(size).scalar_one()
    try:
        # Dagster's connections commit each statement.
        connection.execute(sqlalchemy.text(f"SET lock_timeout = {lock_s * 1000:.0f}"))
        connection.execute(sqlalchemy.text(f"VACUUM (FULL, ANALYZE) {name}"))
    except sqlalchemy.exc.DBAPIError as error:
        return 0, f"The table {name} is left to the next run: {type(error.orig).__name__}."
    return before - connection.execute(size).scalar_one(), None
