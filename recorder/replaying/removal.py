"""Removal of the replays of a purged session, which quote its pages. Contract §2, §8."""

from sqlalchemy import or_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.models.replay import ReplayRow, ReplayStepRow

#: Replays that one transaction removes.
_AT_ONCE = 100


def remove_replays(db: DbSession, session_id: str) -> list[str]:
    """Remove replays that a session was replayed or compared in; return their ids, none at the end.

    Their events and deliveries are left to the caller. Needs a write transaction.
    """
    involved = or_(col(ReplayRow.session_id) == session_id, col(ReplayRow.against_session_id) == session_id)
    some = select(ReplayRow.id).where(involved).order_by(col(ReplayRow.id)).limit(_AT_ONCE)
    ids = list(db.exec(some.with_for_update()))
    db.exec(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_(ids)))
    db.exec(delete(ReplayRow).where(col(ReplayRow.id).in_(ids)))
    return ids
