"""Purges of exported sessions that were sealed without a service."""

from recorder import clock
from recorder.governance.purging.purge_rows import request_purge
from recorder.models.export import ExportRow
from recorder.models.governance import PurgeCause
from recorder.models.session import SessionRow
from recorder.recording.sessions import hide_session
from recorder.runtime import Runtime


def hide_for_purge(runtime: Runtime, *session_ids: str, cause: PurgeCause = "hard_delete") -> None:
    """Hide sessions and request their purges, in one transaction."""
    with runtime.database.transaction(write=True) as db:
        for session_id in session_ids:
            row = db.get_one(SessionRow, session_id)
            if row.deleted_at is None:
                hide_session(db, row, at=clock.now())
            request_purge(db, row, cause, at=clock.now())


def row_now(runtime: Runtime, export_id: str) -> ExportRow:
    """Return the row of an export as it is now."""
    with runtime.database.transaction(write=False) as db:
        return db.get_one(ExportRow, export_id)
