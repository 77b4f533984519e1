"""Open replays and recoveries of deleted sessions: they end, since no client can see or cancel them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import and_, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import NotFound
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.recording.session_stops import stop_session
from recorder.replay_service.requests.recoveries import end_recovery
from recorder.replay_service.requests.replay_and_recovery_rows import Row, make_undeleted_session_conditions
from recorder.replay_service.requests.replays import publish_ended_replays, set_replay_ended
from recorder.storage.database import Database

#: Rows of a kind that one transaction ends.
_AT_ONCE = 100
_MESSAGE = "A session that the replay needs was deleted."


def end_replays_of_deleted_sessions(database: Database, session_id: str | None = None) -> None:
    """End open replays and recoveries whose sessions are deleted, and forget their inputs.

    A recovery whose donor was deleted goes on with its next candidate.

    Args:
        database: the database; each transaction ends some.
        session_id: a deleted session; None for all, which searches everything that is open.
    """
    while True:
        with database.transaction(write=False) as db:
            recovery_ids = _list_open_ids(db, RecoveryRow, col(RecoveryRow.point_session_id), session_id)
            replay_ids = _list_open_ids(db, ReplayRow, col(ReplayRow.against_session_id), session_id)
        if not recovery_ids and not replay_ids:
            return
        with database.transaction(write=True) as db:
            _end_open_rows(db, recovery_ids, replay_ids)


def _list_open_ids(
    db: DbSession, table: type[Row], other_session: Any, session_id: str | None
) -> Sequence[str]:
    """Return ids of open rows that name a deleted session, the given one or any, by an index of few rows."""
    statement = select(table.id).where(col(table.finished_at).is_(None)).limit(_AT_ONCE)
    if session_id is not None:
        return db.exec(
            statement.where(or_(col(table.session_id) == session_id, other_session == session_id))
        ).all()
    statement = statement.where(~and_(*make_undeleted_session_conditions(table)))
    return db.exec(statement.order_by(col(table.workspace_id), col(table.mode), col(table.id))).all()


def _end_open_rows(db: DbSession, recovery_ids: Sequence[str], replay_ids: Sequence[str]) -> None:
    """End the open ones among these recoveries and replays, and the attempts of these recoveries."""
    # Recoveries are locked before their attempts, everywhere.
    open_recoveries = select(RecoveryRow).where(
        col(RecoveryRow.id).in_(recovery_ids), col(RecoveryRow.finished_at).is_(None)
    )
    recoveries = db.exec(open_recoveries.order_by(col(RecoveryRow.id)).with_for_update()).all()
    involved = or_(
        col(ReplayRow.id).in_(replay_ids), col(ReplayRow.cause).in_([row.id for row in recoveries])
    )
    open_replays = select(ReplayRow).where(involved, col(ReplayRow.finished_at).is_(None))
    replays = db.exec(open_replays.order_by(col(ReplayRow.id)).with_for_update()).all()
    for replay in replays:
        replay.error = {"type": "invalid_recording", "message": _MESSAGE}
        set_replay_ended(replay, "failed")
        db.add(replay)
        if replay.result_session_id is not None:
            with suppress(NotFound):  # deleted since
                stop_session(db, replay.tenant, replay.result_session_id)
    publish_ended_replays(db, *replays)
    for recovery in recoveries:
        end_recovery(db, recovery, reason="invalid_recording")
