"""Wait of an export until the replayability of its sessions is computed. Contract §5.

A value never changes once it is computed. So an export that begins with all values of its selection, and a
repeat with the same `until`, find the same sessions.
"""

import time

from sqlalchemy import func
from sqlmodel import col, select, update

from recorder import clock
from recorder.errors import RecorderError, Unavailable
from recorder.exports.planning.selection import (
    LONGEST_WAIT,
    count_awaited_in_selection,
    describe_awaited_in_selection,
)
from recorder.exports.runner.export_lease import (
    ExportClaim,
    lock_export,
    make_lease_free_condition,
)
from recorder.models.export import ExportRow
from recorder.storage.database import Database

_POLL_S = 1.0
#: A run that waits holds a slot in which another export could be written.
_PATIENCE_S = 60.0
#: A call recounts so many exports. One workspace's counts take so long, those of all so long.
_RECOUNTED_AT_ONCE = 20
_RECOUNT_S = 1.0
_LONGEST_RECOUNT_S = 20.0


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


class ReplayabilityAwaited(Unavailable):
    """The replayability of sessions is not computed yet; the export waits without a run."""

    def __init__(self, count: int) -> None:
        sessions = describe_awaited_in_selection(count)
        text = f"The export waits for the replayability of {sessions}; the next run continues."
        RecorderError.__init__(self, text)


def recount_awaited_replayability(database: Database, *, most_s: float = _RECOUNT_S) -> None:
    """Count again what exports wait for; those that wait for nothing, or too long, may run.

    A call counts for at most 20 exports, workspaces in turn, and of each those that were counted longest ago.

    Args:
        database: database.
        most_s: seconds after which no second export of a workspace is counted.
    """
    _end_overdue_waits(database)
    counts: dict[str, int] = {}
    workspaces: set[str] = set()
    began = time.monotonic()
    for row in _list_next_exports_to_recount(database):
        passed_s = time.monotonic() - began
        if passed_s >= _LONGEST_RECOUNT_S or (passed_s >= most_s and row.workspace_id in workspaces):
            break
        with database.transaction(write=False) as db:
            counts[row.id] = count_awaited_in_selection(db, row.tenant, row.spec)
        workspaces.add(row.workspace_id)
    if not counts:
        return
    with database.transaction(write=True) as db:
        for export_id, count in sorted(counts.items()):
            locked = lock_export(db, export_id)
            # A run that took it up in between counts by itself.
            if locked is not None and locked.awaited_sessions is not None:
                locked.awaited_sessions, locked.awaited_counted_at = count or None, clock.now()
                db.add(locked)


def wait_for_replayability(
    database: Database, claim: ExportClaim, export: ExportRow, *, patience_s: float = _PATIENCE_S
) -> None:
    """Wait until the replayability of an export's selection is computed; at once if it needs none.

    Args:
        database: database.
        claim: claim of the export.
        export: row of the export as it was claimed.
        patience_s: seconds after which the export waits without a run, so that others can have its slot.

    Raises:
        ReplayabilityMissing: if it is not computed in time.
        ReplayabilityAwaited: if the export waits without a run from now on.
        LeaseLost, ExportCancelled: if this run may not write the export any more.
    """
    began = time.monotonic()
    while True:
        with database.transaction(write=False) as db:
            count = count_awaited_in_selection(db, export.tenant, export.spec)
        if count and _has_waited_too_long(export):
            raise ReplayabilityMissing(count)
        if count or export.awaited_sessions is not None:
            with claim.transaction() as (_, row):
                row.awaited_sessions = export.awaited_sessions = count or None
                # A wait is no run in vain.
                row.progressed_attempt = row.attempt
        if not count:
            return
        if time.monotonic() - began >= patience_s:
            raise ReplayabilityAwaited(count)
        time.sleep(_POLL_S)


def _end_overdue_waits(database: Database) -> None:
    """Let exports run that have waited too long: their runs end them as failed."""
    overdue = (
        col(ExportRow.completed_at).is_(None),
        col(ExportRow.awaited_sessions).is_not(None),
        col(ExportRow.created_at) <= clock.now() - LONGEST_WAIT,
    )
    with database.transaction(write=False) as db:
        if db.exec(select(ExportRow.id).where(*overdue).limit(1)).first() is None:
            return
    with database.transaction(write=True) as db:
        db.exec(update(ExportRow).where(*overdue).values(awaited_sessions=None))


def _list_next_exports_to_recount(database: Database) -> list[ExportRow]:
    """Return waiting exports that no run has: first the one of each workspace counted longest ago.

    Workspaces follow in the order of their last counts.
    """
    counted_at, workspace_id = col(ExportRow.awaited_counted_at), col(ExportRow.workspace_id)
    order = (counted_at.asc().nulls_first(), col(ExportRow.id))
    rank = func.row_number().over(partition_by=workspace_id, order_by=order)
    last = func.max(counted_at).over(partition_by=workspace_id)
    ranked = (
        select(ExportRow.id, rank.label("rank"), last.label("last"))
        .where(
            col(ExportRow.completed_at).is_(None),
            col(ExportRow.awaited_sessions).is_not(None),
            make_lease_free_condition(),
        )
        .subquery()
    )
    first = (
        select(ranked.c.id)
        .order_by(ranked.c.rank, ranked.c.last.asc().nulls_first(), ranked.c.id)
        .limit(_RECOUNTED_AT_ONCE)
    )
    with database.transaction(write=False) as db:
        ids = list(db.exec(first))
        rows = {row.id: row for row in db.exec(select(ExportRow).where(col(ExportRow.id).in_(ids)))}
    return [rows[export_id] for export_id in ids]


def _has_waited_too_long(row: ExportRow) -> bool:
    return clock.now() - row.created_at >= LONGEST_WAIT
