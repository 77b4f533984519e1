"""Wait of an export until the replayability of its sessions is computed. Contract §5.

A value never changes once it is computed. So an export that begins with all values of its selection, and a
repeat with the same `until`, find the same sessions.
"""

import time

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError
from recorder.exports.planning.selection import (
    LONGEST_WAIT,
    count_awaited_in_selection,
    describe_awaited_in_selection,
)
from recorder.exports.runner.export_lease import ExportClaim, lock_export
from recorder.models.export import ExportRow
from recorder.storage.database import Database

_POLL_S = 1.0


class ReplayabilityMissing(RecorderError):
    """The replayability of sessions was not computed in time."""

    code = "replayability_missing"
    title = "Replayability missing"

    def __init__(self, count: int) -> None:
        super().__init__(
            f"The replayability of {describe_awaited_in_selection(count)} was not computed within "
            f"{LONGEST_WAIT.total_seconds() / 60:g} minutes. Check that runs of the job replay_sessions "
            "succeed, and send the request again."
        )


def recount_awaited_replayability(database: Database) -> None:
    """Count again what queued exports wait for; those that wait for nothing, or too long, may run."""
    with database.transaction(write=False) as db:
        waiting = select(ExportRow).where(
            ExportRow.status == "queued", col(ExportRow.awaited_sessions).is_not(None)
        )
        counts = {
            row.id: (row.awaited_sessions, _count_sessions_in_wait(db, row)) for row in db.exec(waiting)
        }
    for export_id, (before, count) in counts.items():
        if before == count:
            continue
        with database.transaction(write=True) as db:
            locked = lock_export(db, export_id)
            if locked is not None and locked.status == "queued":
                locked.awaited_sessions = count or None
                db.add(locked)


def wait_for_replayability(database: Database, claim: ExportClaim, export: ExportRow) -> None:
    """Wait until the replayability of an export's selection is computed; at once if it needs none.

    Raises:
        ReplayabilityMissing: if it is not in time.
        LeaseLost, ExportCancelled: if this run may not write the export any more.
    """
    while True:
        with database.transaction(write=False) as db:
            count = count_awaited_in_selection(db, export.tenant, export.spec)
        if count and _has_waited_too_long(export):
            raise ReplayabilityMissing(count)
        if count or export.awaited_sessions is not None:
            with claim.transaction() as (_, row):
                row.awaited_sessions = export.awaited_sessions = count or None
        if not count:
            return
        time.sleep(_POLL_S)


def _count_sessions_in_wait(db: DbSession, row: ExportRow) -> int:
    return 0 if _has_waited_too_long(row) else count_awaited_in_selection(db, row.tenant, row.spec)


def _has_waited_too_long(row: ExportRow) -> bool:
    return clock.now() - row.created_at >= LONGEST_WAIT
