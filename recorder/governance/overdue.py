"""Overdue erasures, purges and rewrites: numbers for metrics and for checks. Spec §4.5; contract §7."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.governance import ErasureRow, PurgeRow, is_purge_open

#: A purge takes minutes. One that is open after this time waits for a store, a batch or an export.
_PURGE_TIME = timedelta(hours=1)
#: Tables are rewritten once a day. An erasure that waits for them after this time waits for something else.
_REWRITE_TIME = timedelta(days=2)


@dataclass(frozen=True)
class Overdue:
    """Open erasures, and numbers of erasures and purges that are open for too long."""

    #: Open erasures, and the least `due_by` of them.
    open_erasures: int
    next_due_by: datetime | None
    erasures: int
    purges: int
    #: Erasures that wait for the rewrite of PostgreSQL's tables, and those of them that wait for days.
    waiting_rewrites: int
    late_rewrites: int


def count_overdue(db: DbSession) -> Overdue:
    """Count open erasures, and those erasures, purges and rewrites that are late."""
    now = clock.now()
    open_erasures, next_due_by = db.exec(select(func.count(), func.min(ErasureRow.due_by))).one()
    late_erasures = select(func.count()).where(ErasureRow.due_by < now)
    late_purges = select(func.count()).where(is_purge_open(), PurgeRow.requested_at < now - _PURGE_TIME)
    waiting = select(func.count()).where(col(ErasureRow.stale_tables) != "")
    late_rewrites = waiting.where(ErasureRow.created_at < now - _REWRITE_TIME)
    counts = [db.exec(each).one() for each in (late_erasures, late_purges, waiting, late_rewrites)]
    return Overdue(open_erasures, next_due_by, *counts)
