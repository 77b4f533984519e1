"""Stop of sessions: their outcome, their charge, and the wait to be sealed. Spec §3.1, §4.1; contract §2."""

from collections.abc import Collection, Mapping
from datetime import timedelta

from sqlmodel import Session as DbSession

from recorder import clock, limits
from recorder.access.quota import charge_quota_minutes
from recorder.errors import InvalidState, NotFound, RecorderError, SessionNotRecording, TooManyIds
from recorder.memory.storage.session_paths import read_path_id
from recorder.models.session import NEVER_CHARGED, BatchStopItem, BatchStopResult, Session, SessionRow
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
        rows = find_sessions(db, tenant, session_ids)
        self._recording = [row for row in rows if row.status == "recording"]
        self.searches: dict[str, OutcomeMarkSearch] = {}

    @property
    def is_large(self) -> bool:
        """Whether the recording ones together have more than `limits.LARGE_SEARCH_BYTES` of events."""
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


def check_number_of_stops(ids: Collection[str]) -> None:
    """Check the number of ids of a batch stop.

    Raises:
        TooManyIds: if there are more than 500.
    """
    if len(ids) > limits.BATCH_STOP_IDS:
        raise TooManyIds("/ids", limits.BATCH_STOP_IDS)


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
    charge_quota_minutes(db, tenant.workspace_id, _stop_session(db, row, searches or {}) or 0)
    return session_to_wire(row, read_session_metadata(db, row), path_id=read_path_id(db, row))


def stop_session_batch(
    db: DbSession, tenant: Tenant, ids: list[str], searches: Searches | None = None
) -> BatchStopResult:
    """Stop many sessions; each answers for itself.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        ids: ids of the sessions.
        searches: of `SessionsBeforeStop`; without them all events are searched here.
    """
    # Locked in one order everywhere, so that two calls cannot wait for each other.
    stopped = {item_id: _stop_item(db, tenant, item_id, searches or {}) for item_id in sorted(set(ids))}
    charge_quota_minutes(db, tenant.workspace_id, sum(added_ms for _, added_ms in stopped.values()))
    items = [stopped[session_id][0] for session_id in dict.fromkeys(ids)]
    counts = {
        result: sum(item.result == result for item in items) for result in ("stopped", "unchanged", "error")
    }
    return BatchStopResult(
        data=items, stopped=counts["stopped"], unchanged=counts["unchanged"], failed=counts["error"]
    )


def _stop_session(db: DbSession, row: SessionRow, searches: Searches) -> int | None:
    """Stop the session where that changes something; the ms to charge for it are then returned."""
    if row.status in ("stopped", "sealed"):
        return None
    if row.status != "recording" or row.started_at is None:
        raise SessionNotRecording(row.status, purpose="to be stopped")
    now = clock.now()
    row.stopped_at = row.started_at + timedelta(milliseconds=row.max_t_ms) if row.is_import else now
    row.duration_ms = max(0, clock.to_ms(row.stopped_at) - clock.to_ms(row.started_at))
    change_session_status(db, row, "stopped", now)
    queue_session_in_deployment_slot(db, row, now)
    error = rederive_outcome(db, row, search=search_outcome_marks(db, row, searches.get(row.id)))
    emit_session_event(db, row, "session.stopped")
    if error is not None:
        emit_session_event(db, row, "session.error", error=error.as_json())
    return _charge_stopped_session(row)


def _charge_stopped_session(row: SessionRow) -> int:
    """Set what a stopped session is charged with to its duration; what batches charged is not given back."""
    charged_ms = row.charged_ms
    if row.charged_from_ms != NEVER_CHARGED:
        row.charged_ms = max(charged_ms, row.duration_ms)
    return row.charged_ms - charged_ms


def _stop_item(
    db: DbSession, tenant: Tenant, session_id: str, searches: Searches
) -> tuple[BatchStopItem, int]:
    """Return the result of a batch stop for one session, and the ms to charge for it."""
    try:
        row = find_session(db, tenant, session_id, lock=True)
        added_ms = _stop_session(db, row, searches)
    except (NotFound, InvalidState) as error:
        status = error.status if isinstance(error, InvalidState) else None
        item = {"id": session_id, "result": "error", "status": status, "error": _describe_stop_error(error)}
        return BatchStopItem.model_validate(item), 0
    result = "unchanged" if added_ms is None else "stopped"
    item = {"id": session_id, "result": result, "status": row.status}
    return BatchStopItem.model_validate(item), added_ms or 0


def _describe_stop_error(error: RecorderError) -> dict[str, str]:
    return {"code": error.code, "message": str(error)}
