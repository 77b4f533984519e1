"""Overdue erasures and purges: numbers for metrics and for the operator's checks. Spec §4.5; contract §7."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnClause, func, literal_column
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.governance import ErasureRow, PurgeRow

#: A purge takes minutes. One that is open after this time waits for a store, a batch or an export.
_PURGE_TIME = timedelta(hours=1)
# As text in the statement: a partial index is not found by a bound value.
_DONE: ColumnClause[str] = literal_column("'done'")


@dataclass(frozen=True)
class Overdue:
    """Open erasures, and numbers of erasures and purges that are open for too long."""

    #: Open erasures, and the least `due_by` of them.
    open_erasures: int
    next_due_by: datetime | None
    erasures: int
    purges: int


def count_overdue(db: DbSession) -> Overdue:
    """Count open erasures, erasures past their `due_by`, and purges past the time that a purge takes."""
    now = clock.now()
    open_erasures, next_due_by = db.exec(select(func.count(), func.min(ErasureRow.due_by))).one()
    late_erasures = select(func.count()).where(ErasureRow.due_by < now)
    late_purges = select(func.count()).where(
        col(PurgeRow.step) != _DONE, PurgeRow.requested_at < now - _PURGE_TIME
    )
    return Overdue(open_erasures, next_due_by, db.exec(late_erasures).one(), db.exec(late_purges).one())
