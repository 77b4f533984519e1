"""Removal of the replays and recoveries of a purged session, which quote it. Contract §2, §8."""

from dataclasses import dataclass

from sqlalchemy import or_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow, ReplayStepRow

#: Replays that one transaction removes.
_AT_ONCE = 100


@dataclass(frozen=True)
class RemovedReplays:
    """Ids of removed replays or recoveries, and of the sessions that these replays recorded."""

    ids: list[str]
    recorded: list[str]


def remove_replays(db: DbSession, session_id: str) -> RemovedReplays:
    """Remove replays and recoveries that a session has a part in; return their ids, none at the end.

    Attempts of its recoveries are among them. Events and deliveries are left to the caller. Needs a write
    transaction.
    """
    recovered = or_(
        col(RecoveryRow.session_id) == session_id, col(RecoveryRow.point_session_id) == session_id
    )
    some_recoveries = select(RecoveryRow.id).where(recovered).order_by(col(RecoveryRow.id)).limit(_AT_ONCE)
    # Recoveries are locked before their attempts, everywhere.
    recovery_ids = list(db.exec(some_recoveries.with_for_update()))
    involved = or_(
        col(ReplayRow.session_id) == session_id,
        col(ReplayRow.against_session_id) == session_id,
        col(ReplayRow.cause).in_(recovery_ids),
    )
    some = select(ReplayRow.id, ReplayRow.result_session_id).where(involved)
    rows = db.exec(some.order_by(col(ReplayRow.id)).limit(_AT_ONCE).with_for_update()).all()
    ids = [replay_id for replay_id, _ in rows]
    db.exec(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_(ids)))
    db.exec(delete(ReplayRow).where(col(ReplayRow.id).in_(ids)))
    if not ids:
        db.exec(delete(RecoveryRow).where(col(RecoveryRow.id).in_(recovery_ids)))
        return RemovedReplays(recovery_ids, [])
    return RemovedReplays(ids, [recorded for _, recorded in rows if recorded is not None])
