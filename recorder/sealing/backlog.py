"""Backlog of sealing: how many sessions wait, since when, and how many were set aside. Contract §2, §9."""

from dataclasses import dataclass

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.session import SessionRow


@dataclass(frozen=True)
class SealingBacklog:
    """Stopped sessions of the whole deployment that are not sealed."""

    #: Seconds since the oldest waiting session was stopped; None while none waits.
    oldest_waiting_s: float | None
    #: Sessions that wait to be sealed.
    waiting: int
    #: Sessions that could not be sealed and are no longer tried.
    set_aside: int


def read_sealing_backlog(db: DbSession) -> SealingBacklog:
    """Count the sessions that wait and those set aside; deleted ones are neither."""
    waits = select(func.count(), func.min(SessionRow.waiting_since)).where(
        col(SessionRow.waiting_since).is_not(None)
    )
    waiting, oldest = db.exec(waits).one()
    is_set_aside = (col(SessionRow.seal_error_code).is_not(None), col(SessionRow.deleted_at).is_(None))
    set_aside = db.exec(select(func.count()).where(*is_set_aside)).one()
    age_s = None if oldest is None else max(0.0, (clock.now() - oldest).total_seconds())
    return SealingBacklog(age_s, waiting, set_aside)
