"""Removal of the replays and recoveries of purged sessions, which quote them. Contract §2, §8."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import or_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.replay_service.requests.replays import release_recoveries_of_attempts

# Replays that one transaction removes, with their steps and the deliveries of three events of each.
_AT_ONCE = 10


@dataclass(frozen=True)
class RemovedReplays:
    """Ids of removed replays or recoveries, and the sessions that these replays recorded.

    Attributes:
        ids: ids of the replays or recoveries.
        recorded: for each recorded session those that led to it, a purged one first.
    """

    ids: list[str]
    recorded: dict[str, list[str]]


def remove_some_replays(db: DbSession, session_ids: Collection[str]) -> RemovedReplays:
    """Remove replays and recoveries that sessions have a part in; return ids of some, none at the end.

    Attempts of its recoveries are among them. Events and deliveries are left to the caller. Needs a write
    transaction.
    """
    recovered = or_(
        col(RecoveryRow.session_id).in_(session_ids), col(RecoveryRow.point_session_id).in_(session_ids)
    )
    some_recoveries = select(RecoveryRow).where(recovered).order_by(col(RecoveryRow.id)).limit(_AT_ONCE)
    # Recoveries are locked before their attempts, everywhere.
    recoveries = db.exec(some_recoveries.with_for_update()).all()
    purged = frozenset(session_ids)
    recovered_by = {
        row.id: row.session_id if row.session_id in purged else row.point_session_id for row in recoveries
    }
    involved = or_(
        col(ReplayRow.session_id).in_(session_ids),
        col(ReplayRow.against_session_id).in_(session_ids),
        col(ReplayRow.cause).in_(recovered_by),
    )
    some = select(ReplayRow).where(involved).order_by(col(ReplayRow.id)).limit(_AT_ONCE)
    replays = db.exec(some.with_for_update()).all()
    if not replays:
        db.exec(delete(RecoveryRow).where(col(RecoveryRow.id).in_(recovered_by)))
        return RemovedReplays(list(recovered_by), {})
    recorded = {}
    for row in replays:
        sources = (row.session_id, row.against_session_id, recovered_by.get(row.cause or ""))
        if row.result_session_id is not None:
            known = [source for source in sources if source is not None]
            recorded[row.result_session_id] = sorted(known, key=lambda source: source not in purged)
    ids = [row.id for row in replays]
    db.exec(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_(ids)))
    db.exec(delete(ReplayRow).where(col(ReplayRow.id).in_(ids)))
    release_recoveries_of_attempts(db, *replays)
    return RemovedReplays(ids, recorded)
