"""Removal of the replays and recoveries of purged sessions, which quote them. Contract §2, §8."""

from collections.abc import Collection

from sqlalchemy import or_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow, ReplayStepRow

#: Replays that one transaction removes.
_AT_ONCE = 100


def remove_replays(db: DbSession, session_ids: Collection[str]) -> list[str]:
    """Remove replays and recoveries that sessions have a part in; return ids of some, none at the end.

    Attempts of its recoveries are among them. Events and deliveries are left to the caller. Needs a write
    transaction.
    """
    recovered = or_(
        col(RecoveryRow.session_id).in_(session_ids), col(RecoveryRow.point_session_id).in_(session_ids)
    )
    some_recoveries = select(RecoveryRow.id).where(recovered).order_by(col(RecoveryRow.id)).limit(_AT_ONCE)
    # Recoveries are locked before their attempts, everywhere.
    recovery_ids = list(db.exec(some_recoveries.with_for_update()))
    involved = or_(
        col(ReplayRow.session_id).in_(session_ids),
        col(ReplayRow.against_session_id).in_(session_ids),
        col(ReplayRow.cause).in_(recovery_ids),
    )
    some = select(ReplayRow.id).where(involved).order_by(col(ReplayRow.id)).limit(_AT_ONCE)
    ids = list(db.exec(some.with_for_update()))
    if ids:
        db.exec(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_(ids)))
        db.exec(delete(ReplayRow).where(col(ReplayRow.id).in_(ids)))
    elif recovery_ids:
        db.exec(delete(RecoveryRow).where(col(RecoveryRow.id).in_(recovery_ids)))
        return recovery_ids
    return ids
