"""Stop of a session: its outcome, its charge, and the wait to be sealed. Spec §3.1, §4.1; contract §2."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlmodel import Session as DbSession

from recorder import clock, limits
from recorder.access.quota import charge_quota_minutes
from recorder.errors import SessionNotRecording
from recorder.memory.storage.session_paths import read_path_id
from recorder.models.session import NEVER_CHARGED, Session, SessionRow
from recorder.recording.outcome_detection import OutcomeMarkSearch, rederive_outcome, search_outcome_marks
from recorder.recording.sessions import (
    change_session_status,
    emit_session_event,
    find_session,
    find_sessions,
    read_session_metadata,
    session_to_wire,
)
from recorder.storage.database import Database
from recorder.storage.deployment import queue_session_in_deployment_slot
from recorder.tenant import Tenant

#: Searches of sessions' events that were made before the transaction, by session.
Searches = Mapping[str, OutcomeMarkSearch]


class SessionsBeforeStop:
    """Sessions of a stop as they were before its transaction, and the searches of their events.

    The transaction that stops a session then reads only what came since: on SQLite no other request can
    write while it lasts.
    """

    def __init__(self, db: DbSession, tenant: Tenant, session_ids: Collection[str]) -> None:
        """Read the sessions with one statement.

        Args:
            db: a transaction.
            tenant: workspace and mode.
            session_ids: ids of the sessions; those of missing ones are left out.
        """
        self.rows = find_sessions(db, tenant, session_ids)
        self._recording = [row for row in self.rows if row.status == "recording"]
        self.searches: dict[str, OutcomeMarkSearch] = {}

    @property
    def is_large(self) -> bool:
        """Return whether the recording sessions have more than `limits.LARGE_SEARCH_BYTES` of events."""
        return sum(row.event_bytes for row in self._recording) > limits.LARGE_SEARCH_BYTES

    def search(self, db: DbSession) -> None:
        """Search the events of the recording sessions in a transaction."""
        for row in self._recording:
            self.searches[row.id] = search_outcome_marks(db, row)

    def search_one_by_one(self, database: Database) -> None:
        """Search the events of each recording session in a read transaction of its own."""
        for row in self._recording:
            with database.transaction(write=False) as db:
                self.searches[row.id] = search_outcome_marks(db, row)


def stop_session(db: DbSession, tenant: Tenant, session_id: str, searches: Searches | None = None) -> Session:
    """Stop a recording session; a stopped or sealed one stays as it is.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        session_id: id of the session.
        searches: of `SessionsBeforeStop`; without them all events are searched here.

    Raises:
        NotFound: if there is no such session.
        SessionNotRecording: if it never started.
    """
    row = find_session(db, tenant, session_id, lock=True)
    metadata = read_session_metadata(db, row)
    if is_session_to_stop(row):
        captured_ms = stop_recording_session(db, row, metadata, searches or {})
        charge_quota_minutes(db, tenant.workspace_id, captured_ms)
    return session_to_wire(row, metadata, path_id=read_path_id(db, row))


def is_session_to_stop(row: SessionRow) -> bool:
    """Return whether a stop changes a session; a stopped or sealed one stays as it is.

    Raises:
        SessionNotRecording: if it never started.
    """
    if row.status in ("stopped", "sealed"):
        return False
    if row.status != "recording":
        raise SessionNotRecording(row.status, purpose="to be stopped")
    return True


def stop_recording_session(
    db: DbSession, row: SessionRow, metadata: dict[str, Any], searches: Searches
) -> int:
    """Stop a session that records; return the ms to charge for it.

    Args:
        db: a write transaction that holds the row.
        row: the session.
        metadata: its metadata.
        searches: of `SessionsBeforeStop`.
    """
    assert row.started_at is not None
    now = clock.now()
    row.stopped_at = row.started_at + timedelta(milliseconds=row.max_t_ms) if row.is_import else now
    row.duration_ms = max(0, clock.to_ms(row.stopped_at) - clock.to_ms(row.started_at))
    change_session_status(db, row, "stopped", now)
    queue_session_in_deployment_slot(db, row, now)
    error = rederive_outcome(db, row, search=search_outcome_marks(db, row, searches.get(row.id)))
    emit_session_event(db, row, "session.stopped", metadata=metadata)
    if error is not None:
        emit_session_event(db, row, "session.error", metadata=metadata, error=error.as_json())
    return _charge_stopped_session(row)


def _charge_stopped_session(row: SessionRow) -> int:
    """Set what a stopped session is charged with to its duration; what batches charged is not given back."""
    charged_ms = row.charged_ms
    if row.charged_from_ms != NEVER_CHARGED:
        row.charged_ms = max(charged_ms, row.duration_ms)
    return row.charged_ms - charged_ms
