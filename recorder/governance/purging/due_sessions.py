"""Sessions whose data are due to be purged, found by id and marked in short transactions. Contract §7."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func
from sqlmodel import Session as DbSession
from sqlmodel import and_, col, exists, insert, or_, select

from recorder.governance.holds import list_held_sessions
from recorder.governance.purging.purge_rows import describe_purge_request
from recorder.ids import first_id_at
from recorder.models.governance import PurgeCause, PurgeRow
from recorder.models.session import SessionRow, SessionStatusRow
from recorder.models.workspace import WorkspaceRow
from recorder.recording.sessions import hide_sessions_keep_statistics
from recorder.storage.database import Database

#: Sessions of one read, and of one write transaction: on SQLite no other request can write while it lasts.
_PAGE = 500
_CHUNK = 100


@dataclass(frozen=True)
class DueSession:
    """A session that is due, and why."""

    session_id: str
    cause: PurgeCause
    size_bytes: int
    is_held: bool


def list_due_sessions(
    database: Database, workspace: WorkspaceRow, *, at: datetime
) -> Iterator[list[DueSession]]:
    """Yield the sessions of a workspace that are due at an instant, a page at a time."""
    after = ""
    while True:
        with database.transaction(write=False) as db:
            rows = _select_due_sessions(db, _due_session_condition(workspace, at), after, limit=_PAGE)
            held = list_held_sessions(db, workspace.id, [row.id for row in rows])
        if rows:
            after = rows[-1].id
            yield [
                DueSession(
                    row.id, _purge_cause_of(row, at), row.event_bytes + row.frame_bytes, row.id in held
                )
                for row in rows
            ]
        if len(rows) < _PAGE:
            return


def begin_purges(
    db: DbSession, workspace: WorkspaceRow, due: list[DueSession], *, at: datetime, now: datetime
) -> list[str]:
    """Hide sessions that are still due, and write the intents of their purges; return their ids.

    Args:
        db: a write transaction.
        workspace: the workspace.
        due: some sessions that were due.
        at: instant of the due dates.
        now: the time.
    """
    wanted = [session.session_id for session in due]
    conditions = and_(_due_session_condition(workspace, at), col(SessionRow.id).in_(wanted))
    locked = _select_due_sessions(db, conditions, "", limit=len(wanted), lock=True)
    # Read once the sessions are locked: a hold or purge that is requested at the moment waits for that.
    left_out = list_held_sessions(db, workspace.id, wanted)
    left_out |= {*db.exec(select(PurgeRow.session_id).where(col(PurgeRow.session_id).in_(wanted)))}
    rows = [row for row in locked if row.id not in left_out]
    purges = [describe_purge_request(row, _purge_cause_of(row, at), at=now) for row in rows]
    if purges:
        db.connection().execute(insert(PurgeRow), purges)
        hide_sessions_keep_statistics(db, [row.id for row in rows], at=now)
    return [row.id for row in rows]


def split_due_sessions(due: list[DueSession]) -> Iterator[list[DueSession]]:
    """Yield the sessions of a page that are not held, as many as one transaction takes."""
    free = [session for session in due if not session.is_held]
    for start in range(0, len(free), _CHUNK):
        yield free[start : start + _CHUNK]


def _due_session_condition(workspace: WorkspaceRow, at: datetime) -> ColumnElement[bool]:
    """Return the condition that a session of a workspace is due and no purge of it began."""
    before = at - timedelta(days=workspace.events_days)
    last_change = (
        select(func.max(SessionStatusRow.at))
        .where(col(SessionStatusRow.session_id) == col(SessionRow.id))
        .correlate(SessionRow)
        .scalar_subquery()
    )
    changed_at = func.coalesce(col(SessionRow.sealed_at), last_change, col(SessionRow.created_at))
    # Ids rise with the time of creation, which no later time precedes: only old sessions are read.
    is_old = and_(
        col(SessionRow.deleted_at).is_(None),
        col(SessionRow.id) < first_id_at("ses", before),
        changed_at < before,
    )
    is_over = col(SessionRow.purge_after) <= at
    return and_(
        col(SessionRow.workspace_id) == workspace.id,
        or_(is_over, is_old),
        ~exists().where(col(PurgeRow.session_id) == col(SessionRow.id)),
    )


def _select_due_sessions(
    db: DbSession, condition: Any, after: str, *, limit: int, lock: bool = False
) -> list[SessionRow]:
    statement = select(SessionRow).where(condition, col(SessionRow.id) > after)
    statement = statement.order_by(col(SessionRow.id)).limit(limit)
    if lock:
        statement = statement.with_for_update(of=SessionRow).execution_options(populate_existing=True)
    return list(db.exec(statement))


def _purge_cause_of(row: SessionRow, at: datetime) -> PurgeCause:
    """Return why a due session is purged: deletion, the end of its retention, or of test mode's days."""
    if row.purge_after is None or row.purge_after > at:
        return "retention"
    # The replayed session of a live recording was purged while the recording was held.
    is_recording = row.mode == "live" and row.origin == "replay"
    return "deletion" if row.deleted_at is not None or is_recording else "test_expiry"
