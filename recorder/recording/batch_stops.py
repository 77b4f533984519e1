"""Stop of many sessions by one request, a few in each transaction. Spec §4.1; contract §2."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.access.quota import charge_quota_minutes
from recorder.errors import NotFound, RecorderError, SessionNotRecording, TooManyIds
from recorder.models.session import BatchStopItem, BatchStopResult, SessionMetadataRow, SessionRow
from recorder.recording.session_stops import SessionsBeforeStop, is_session_to_stop, stop_recording_session
from recorder.recording.sessions import find_sessions
from recorder.tenant import Tenant

#: Sessions that a transaction stops: other writers wait for it.
PART_SESSIONS = 25


def check_number_of_stops(ids: Collection[str]) -> None:
    """Check the number of ids of a batch stop.

    Raises:
        TooManyIds: if there are more than 500.
    """
    if len(ids) > limits.BATCH_STOP_IDS:
        raise TooManyIds("/ids", limits.BATCH_STOP_IDS)


class SessionBatchStop:
    """Stop of many sessions, each with its own result; write transactions lock only those that record."""

    def __init__(self, tenant: Tenant, ids: Sequence[str], before: SessionsBeforeStop) -> None:
        """Set the results of the sessions that do not record.

        Args:
            tenant: workspace and mode.
            ids: ids of the sessions.
            before: the same sessions before the first write transaction.
        """
        self._tenant = tenant
        self._searches = before.searches
        self._items = {id: _make_stop_error_item(id, None, NotFound("session")) for id in ids}
        self._waiting: list[str] = []
        for row in before.rows:
            if row.status == "recording":
                self._waiting.append(row.id)
            else:
                self._items[row.id] = _make_unchanged_item(row)

    @property
    def is_last_part(self) -> bool:
        """Return whether one transaction stops all sessions that are left."""
        return len(self._waiting) <= PART_SESSIONS

    def stop_part(self, db: DbSession) -> None:
        """Stop the next sessions, if any are left, in a write transaction."""
        part, self._waiting = self._waiting[:PART_SESSIONS], self._waiting[PART_SESSIONS:]
        # Locked in one order everywhere, so that two calls cannot wait for each other.
        rows = find_sessions(db, self._tenant, part, lock=True)
        metadata = _read_metadata_of_sessions(db, part)
        captured_ms = 0
        with db.no_autoflush:  # the changes are sent together
            for row in rows:
                if row.status == "recording":
                    captured_ms += stop_recording_session(db, row, metadata[row.id], self._searches)
                    self._items[row.id] = _make_stop_item(row, "stopped")
                else:
                    self._items[row.id] = _make_unchanged_item(row)
        db.flush()
        charge_quota_minutes(db, self._tenant.workspace_id, captured_ms)

    def make_result(self) -> BatchStopResult:
        """Return the results in the order of the ids, each once."""
        items = list(self._items.values())
        counts = Counter(item.result for item in items)
        return BatchStopResult(
            data=items, stopped=counts["stopped"], unchanged=counts["unchanged"], failed=counts["error"]
        )


def _read_metadata_of_sessions(db: DbSession, ids: Collection[str]) -> defaultdict[str, dict[str, Any]]:
    metadata: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    if ids:
        stored = select(SessionMetadataRow).where(col(SessionMetadataRow.session_id).in_(ids))
        metadata.update((row.session_id, row.metadata_) for row in db.exec(stored))
    return metadata


def _make_unchanged_item(row: SessionRow) -> BatchStopItem:
    """Return the result for a session that does not record: an error if it never started."""
    try:
        is_session_to_stop(row)
    except SessionNotRecording as error:
        return _make_stop_error_item(row.id, row.status, error)
    return _make_stop_item(row, "unchanged")


def _make_stop_item(row: SessionRow, result: str) -> BatchStopItem:
    return BatchStopItem.model_validate({"id": row.id, "result": result, "status": row.status})


def _make_stop_error_item(session_id: str, status: str | None, error: RecorderError) -> BatchStopItem:
    described = {"code": error.code, "message": str(error)}
    item = {"id": session_id, "result": "error", "status": status, "error": described}
    return BatchStopItem.model_validate(item)
