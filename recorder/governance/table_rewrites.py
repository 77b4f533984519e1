"""Rewrites of PostgreSQL's tables and SQLite's file, whose pages keep copies of erased rows. Contract §7.

An erasure whose purges have ended waits until each table with recorded content was rewritten. On SQLite
secure_delete overwrites rows, but not the copies that it leaves in a page when it moves rows to another one.
"""

import logging
import re
import time
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Unavailable
from recorder.governance.content_inventory import SQLITE_FILE, STATISTICS, list_inventory_tables_to_rewrite
from recorder.governance.erasure_runs import end_erasures
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.models.workspace import DeploymentRow
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, lease_for_block

log = logging.getLogger("recorder.erasures")

LEASE = "table_rewrites"
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
#: Other statements queue behind the lock of a rewrite for no longer than this before it begins.
_LOCK_TIMEOUT_MS = 2_000
_ATTEMPTS = 3
_PAUSE_S = 1.0
#: A file of SQLite with so much content is rewritten at once: writers wait for 1 to 2 seconds.
_SMALL_FILE_BYTES = 64_000_000
#: Purges without an erasure do not have a larger one rewritten: writers would give up.
_LARGE_FILE_BYTES = 1_000_000_000
#: Without an erasure, a file is rewritten once a day, also if retention runs more often or a little early.
_REWRITE_EVERY = timedelta(hours=20)
#: Before its `due_by` an erasure waits for no quiet hour, in which the service may never run.
_DUE_SOON = timedelta(days=7)


@dataclass
class RewriteReport:
    """Tables that a run rewrote, and those that it left to the next one."""

    tables: int = 0
    #: Erasures that ended after it.
    erasures: int = 0
    #: Why a table was left, by its name.
    failures: dict[str, str] = field(default_factory=dict)

    def list_failures(self) -> list[str]:
        """Return a sentence for each table that was left."""
        return [
            f"{'The database' if name == SQLITE_FILE else f'The table {name}'} is left to the next run of "
            f"rewrites: {why}"
            for name, why in self.failures.items()
        ]


def has_erasures_awaiting_rewrite(db: DbSession) -> bool:
    """Return whether an erasure waits for a table that is not rewritten yet."""
    return db.exec(_select_erasures_with_stale_tables().limit(1)).first() is not None


def has_erasures_due_soon(db: DbSession) -> bool:
    """Return whether an erasure waits for a table, and is to end within days."""
    due_soon = col(ErasureRow.due_by) < clock.now() + _DUE_SOON
    return db.exec(_select_erasures_with_stale_tables().where(due_soon).limit(1)).first() is not None


def rewrite_tables(
    runtime: Runtime,
    owner: str,
    *,
    lease_ms: int = _LEASE_MS,
    lock_timeout_ms: int = _LOCK_TIMEOUT_MS,
    pause_s: float = _PAUSE_S,
) -> RewriteReport | None:
    """Rewrite the tables that erasures wait for, one at a time, and end the erasures that wait for no more.

    A table is locked while it is rewritten. One whose lock is not free within two seconds is left to the
    next run, as is one whose dead rows an open transaction still sees. A killed run is continued by the next.

    Args:
        runtime: the deployment.
        owner: name of the run.
        lease_ms: duration of the lease.
        lock_timeout_ms: longest time for which a rewrite on PostgreSQL waits for the lock of its table.
        pause_s: pause between the attempts to rewrite a table of PostgreSQL.

    Returns:
        What was rewritten, nothing if no erasure waits; None if another run is at work.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the database does not answer; the next run goes on.
    """
    report = RewriteReport()
    rewriter = _TableRewriter(runtime, lock_timeout_ms, pause_s)
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=lease_ms) as held:
        if held is None:
            return None
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            for name in list_inventory_tables_to_rewrite(is_sqlite=runtime.database.is_sqlite):
                rewriter.rewrite_for_erasures(held, name, report)
    if report.tables:
        report.erasures = end_erasures(runtime, owner)
    return report


def rewrite_small_file(runtime: Runtime, owner: str, *, most_bytes: int = _SMALL_FILE_BYTES) -> int:
    """Rewrite SQLite's file if erasures wait for it and writers need not wait for long.

    Args:
        runtime: the deployment.
        owner: name of the run.
        most_bytes: content of a file up to which it is rewritten.

    Returns:
        The number of erasures that ended. Others wait for the quiet hour.
    """
    if not runtime.database.is_sqlite or runtime.database.measure_content() > most_bytes:
        return 0
    with runtime.database.transaction(write=False) as db:
        if not has_erasures_awaiting_rewrite(db):
            return 0
    report = rewrite_tables(runtime, owner)
    return 0 if report is None else report.erasures


def rewrite_file_after_purges(runtime: Runtime) -> None:
    """Rewrite SQLite's file if purges have ended since the last rewrite, which is a day ago.

    A large file is left as it is: writers would wait for too long.

    Raises:
        Unavailable: if its lock is not free in time; the next run goes on.
    """
    if not runtime.database.is_sqlite or runtime.database.measure_content() > _LARGE_FILE_BYTES:
        return
    began = clock.now()
    with runtime.database.transaction(write=False) as db:
        # A database of an early release has no such row.
        deployment = db.get(DeploymentRow, 1)
        last = None if deployment is None else deployment.rewritten_at
        if last is None or last > began:  # the clock was set back
            last = clock.from_ms(0)
        ended = select(PurgeRow.session_id).where(col(PurgeRow.done_at) >= last).limit(1)
        is_due = last <= began - _REWRITE_EVERY and db.exec(ended).first() is not None
    if is_due and runtime.database.rewrite_file():
        with runtime.database.transaction(write=True) as db:
            if (deployment := db.get(DeploymentRow, 1)) is not None:
                deployment.rewritten_at = began


@dataclass(frozen=True)
class _TableRewriter:
    """Rewrites of one run, each of one table."""

    runtime: Runtime
    lock_timeout_ms: int
    pause_s: float

    def rewrite_for_erasures(self, held: HeldLease, name: str, report: RewriteReport) -> None:
        """Rewrite a table if erasures wait for it, and note it for those alone that waited before."""
        with self.runtime.database.transaction(write=False) as db:
            waiting = [
                row.id
                for row in db.exec(_select_erasures_with_stale_tables())
                if name in (row.stale_tables or "").split()
            ]
        if not waiting:
            return
        held.require_time()
        why = self._rewrite_sqlite_file() if name == SQLITE_FILE else self._rewrite_postgres_table(name)
        if why is not None:
            report.failures[name] = why
            log.warning("the table %s is not rewritten: %s", name, why)
            return
        report.tables += 1
        with held.transaction(self.runtime.database) as db:
            statement = select(ErasureRow).where(col(ErasureRow.id).in_(waiting)).with_for_update()
            for row in db.exec(statement.order_by(col(ErasureRow.id))):
                left = (row.stale_tables or "").split()
                row.stale_tables = " ".join(table for table in left if table != name)
                db.add(row)

    def _rewrite_sqlite_file(self) -> str | None:
        """Rewrite SQLite's file; return why it is left if it is."""
        try:
            is_done = self.runtime.database.rewrite_file()
        except Unavailable:
            return "its lock was not free in time, or there is no room for a second copy."
        return None if is_done else "its log is being read. End transactions that stay open."

    def _rewrite_postgres_table(self, name: str) -> str | None:
        """Rewrite a table; return why it is left if it is."""
        why = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(self.pause_s)
            try:
                dead_rows = self._vacuum_table(name)
            except psycopg.errors.LockNotAvailable:
                why = "its lock was not free in time. End transactions that stay open."
                continue
            except (psycopg.Error, SQLAlchemyError) as error:
                # Messages may quote rows; the name of the error does not.
                return f"{type(error).__name__}; the database's log tells more."
            if dead_rows is None:
                return (
                    "this user may not rewrite it. Make the user of RECORDER_DATABASE_URL owner of the "
                    "database."
                )
            if not dead_rows:
                return None
            why = (
                f"an open transaction still sees {dead_rows} of its dead rows. End transactions that stay "
                "open."
            )
        return why

    def _vacuum_table(self, name: str) -> int | None:
        """Rewrite a table; return how many dead rows are still in it, None if the user may not rewrite it."""
        dead_rows: list[int] = []

        def note(diagnostic: Any) -> None:
            # The message itself is in the server's language.
            if diagnostic.source_function == "copy_table_data":
                number = re.search("[0-9]+", diagnostic.message_detail or "")
                dead_rows.append(int(number[0]) if number else 0)

        with closing(self.runtime.database.raw_connection()) as connection:
            connection.autocommit = True
            connection.add_notice_handler(note)
            connection.execute(f"SET lock_timeout = {self.lock_timeout_ms}")
            analyze = "" if name == STATISTICS else ", ANALYZE"
            connection.execute(f'VACUUM (FULL, VERBOSE{analyze}) "{name}"')
        return dead_rows[-1] if dead_rows else None


def _select_erasures_with_stale_tables() -> Any:
    return select(ErasureRow).where(col(ErasureRow.stale_tables) != "")
