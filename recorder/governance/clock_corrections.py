"""Corrections of due times that are far in the future, since the clock was set back. Contract §7.

Purges and erasures would wait until the clock has reached these times again.
"""

from datetime import timedelta

from sqlalchemy import func, update
from sqlmodel import Session as DbSession
from sqlmodel import and_, col, select

from recorder import clock
from recorder.governance.purging.due_steps import LONGEST_REQUEST
from recorder.models.governance import ErasureRow, PurgeRow, is_purge_open
from recorder.storage.database import Database

#: No step of a purge, and no search of an erasure, waits for so long.
LONGEST_WAIT = timedelta(minutes=15)
_UNSEARCHED = col(ErasureRow.is_searched).is_(False)


def has_times_to_correct(db: DbSession) -> bool:
    """Return whether a purge or an erasure waits for a time that was stored before the clock was set back."""
    last_due = select(func.max(PurgeRow.due_at)).where(is_purge_open())
    last_search = select(func.max(ErasureRow.second_search_at)).where(_UNSEARCHED)
    times = [db.exec(last_due).one(), db.exec(last_search).one()]
    return any(time is not None and time > clock.now() + LONGEST_WAIT for time in times)


def correct_due_times(database: Database) -> None:
    """Let purges and erasures whose time is far ahead wait from now on, as long as the longest request takes.

    Raises:
        Unavailable: if the database does not answer.
    """
    with database.transaction(write=False) as db:
        if not has_times_to_correct(db):
            return
    with database.transaction(write=True) as db:
        now = clock.now()
        is_ahead = and_(is_purge_open(), col(PurgeRow.due_at) > now + LONGEST_WAIT)
        # Locked in the order of their ids, as everywhere.
        locked = select(PurgeRow.session_id).where(is_ahead).order_by(col(PurgeRow.session_id))
        db.exec(locked.with_for_update()).all()
        connection, again = db.connection(), now + LONGEST_REQUEST
        requested = and_(is_ahead, col(PurgeRow.requested_at) > now)
        connection.execute(update(PurgeRow).where(requested).values(requested_at=now))
        connection.execute(update(PurgeRow).where(is_ahead).values(due_at=again))
        is_far = and_(_UNSEARCHED, col(ErasureRow.second_search_at) > now + LONGEST_WAIT)
        connection.execute(update(ErasureRow).where(is_far).values(second_search_at=again))
