"""Backlog of sealing: how many sessions wait, since when, and how many were set aside. Contract §2, §9."""

from dataclasses import dataclass

from sqlalchemy import ColumnClause, and_, func, literal_column
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.session import SessionRow, SessionStatusRow

# As text in the statement: a partial index is not found by a bound value.
_STOPPED: ColumnClause[str] = literal_column("'stopped'")


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
    is_left = and_(col(SessionRow.status) == _STOPPED, col(SessionRow.deleted_at).is_(None))
    is_waiting = and_(is_left, col(SessionRow.seal_error_code).is_(None))
    # An import's `stopped_at` lies in the past of the recording; the status row has the call's own time.
    stopped_at = func.coalesce(func.max(SessionStatusRow.at), func.max(SessionRow.stopped_at))
    per_session = (
        select(stopped_at.label("stopped_at"))
        .select_from(SessionRow)
        .outerjoin(
            SessionStatusRow,
            and_(
                col(SessionStatusRow.session_id) == SessionRow.id, col(SessionStatusRow.status) == "stopped"
            ),
        )
        .where(is_waiting)
        .group_by(col(SessionRow.id))
        .subquery()
    )
    waiting, oldest = db.exec(select(func.count(), func.min(per_session.c.stopped_at))).one()
    set_aside = db.exec(
        select(func.count()).where(is_left, col(SessionRow.seal_error_code).is_not(None))
    ).one()
    age_s = None if oldest is None else max(0.0, (clock.now() - oldest).total_seconds())
    return SealingBacklog(age_s, waiting, set_aside)
