"""Sweep: deletion of the hot rows of sealed sessions whose streams can no longer be resumed. Design §3.

A session's hot rows are deleted only after its rows were counted in the lake. If the counts differ, the
session is sealed again from its hot rows. From the first deletion on the lake alone serves the session: the
rows of a large one are deleted in many short transactions, since on SQLite each one blocks the API's writer.
Workspaces take turns by the time that they used. What fails is left to the next pass, and the others go on.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, or_, select, update

from recorder import clock, limits
from recorder.audit.log import Origin, record_audit_entry
from recorder.models.operations import SweepRow
from recorder.models.session import WAITS_FOR_SWEEP, SessionRow
from recorder.recording.hot_rows import HOT_ROWS, RowsOfSessions, delete_some_hot_rows
from recorder.runtime import Runtime
from recorder.sealing import failures
from recorder.sealing.portions import RequireLease
from recorder.sealing.sweep_comparison import compare_sessions_with_lake, log_sweep_error
from recorder.storage.conditions import in_tenant
from recorder.storage.deployment import queue_session_in_deployment_slot
from recorder.storage.lake_schemas import LAYOUTS, LakeKind, LakePartition
from recorder.storage.waiting_rows import WaitingRows
from recorder.tenant import Tenant
from recorder.workspace_scheduler import WorkspaceScheduler

log = logging.getLogger("recorder.sealing")

#: A pass ends after so long, with the turn at hand: other clean-ups must not wait for an endless backlog.
_PASS_S = 60.0
#: Sessions of a workspace that one turn compares with the lake, and events and frames of these together.
_TURN_SESSIONS, _TURN_ROWS = 200, 1_000_000
#: Time for which one turn deletes hot rows.
_TURN_S = 1.0
#: A pause between two transactions is as long as the one before, within this bound.
_LONGEST_PAUSE_S = 0.1
#: A session whose rows differ again after it was resealed so often is set aside.
_MAX_REPAIRS = 1

#: Sealed sessions whose streams can no longer be resumed: the lake alone serves them.
_WAITING = WaitingRows(
    SessionRow,
    WAITS_FOR_SWEEP.text,
    "sealed_at",
    is_timed=True,
    delay=timedelta(minutes=limits.STREAM_RESUME_MINUTES),
    is_of_active=False,
)


@dataclass
class SweepCounts:
    """Counts of one pass."""

    swept: int = 0
    #: Sessions that are sealed again.
    requeued: int = 0
    #: Whether the pass ended before all workspaces were done.
    is_cut: bool = False


def has_rows_to_sweep(db: DbSession) -> bool:
    """Return whether hot rows wait to be deleted."""
    return _WAITING.has_due(db) or db.exec(select(SweepRow).limit(1)).first() is not None


def sweep_hot_rows(
    runtime: Runtime,
    require_lease: RequireLease,
    tables: Sequence[RowsOfSessions] = HOT_ROWS,
    *,
    longest_s: float = _PASS_S,
) -> SweepCounts:
    """Delete the hot rows of sessions that the lake holds completely; queue the others again.

    Args:
        runtime: the deployment.
        require_lease: called in each write transaction; it raises if another run holds the lease.
        tables: tables with hot rows, and the most of them that one transaction deletes.
        longest_s: seconds after which no further turn begins.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the database does not answer at the start.
    """
    return _SweepPass(runtime, require_lease, tables).run(longest_s)


class _SweepPass:
    """One pass over all workspaces with hot rows to delete."""

    def __init__(
        self, runtime: Runtime, require_lease: RequireLease, tables: Sequence[RowsOfSessions]
    ) -> None:
        self._runtime = runtime
        self._require_lease = require_lease
        self._tables = tables
        self._counts = SweepCounts()
        #: Sessions whose hot rows are being deleted.
        self._swept: dict[Tenant, list[str]] = {}
        #: Position of each workspace in the order of its sessions: those before it had their turn.
        self._positions: dict[Tenant, tuple[datetime, str]] = {}

    def run(self, longest_s: float) -> SweepCounts:
        """Give each workspace its turns until all are done, or the time is up."""
        ends_s, scheduler = time.monotonic() + longest_s, WorkspaceScheduler()
        with self._runtime.database.transaction(write=False) as db:
            # A killed run left some.
            self._swept = _list_sweeps(db)
            waiting = dict.fromkeys([*self._swept, *_WAITING.list_tenants(db)])
        while (tenant := scheduler.choose(list(waiting))) is not None:
            began_s = time.monotonic()
            if began_s >= ends_s:
                self._counts.is_cut = True
                break
            has_more = False
            with log_sweep_error(f"the sweep of {tenant}"):
                has_more = self._sweep_next_sessions(tenant)
            if not has_more:
                del waiting[tenant]
            scheduler.add_time(tenant, time.monotonic() - began_s)
        return self._counts

    def _sweep_next_sessions(self, tenant: Tenant) -> bool:
        """Delete hot rows of a workspace, or compare its next sessions; return False if there are none."""
        if tenant in self._swept:
            self._delete_rows(tenant)
            return True
        with self._runtime.database.transaction(write=False) as db:
            rows = _list_sessions_to_sweep(db, tenant, after=self._positions.get(tenant))
        if not rows:
            return False
        assert rows[-1].sealed_at is not None
        self._positions[tenant] = (rows[-1].sealed_at, rows[-1].id)
        whole, differing = compare_sessions_with_lake(self._runtime, tenant, rows)
        if whole:
            with self._runtime.database.transaction(write=True) as db:
                self._require_lease(db)
                db.exec(update(SessionRow).where(col(SessionRow.id).in_(whole)).values(is_hot=False))
                db.add_all(SweepRow(session_id=session_id) for session_id in whole)
            self._swept[tenant] = whole
            self._counts.swept += len(whole)
        for row, counts in differing:
            with log_sweep_error(f"the new sealing of session {row.id}"):
                is_queued = _requeue_session(self._runtime, self._require_lease, row, counts)
                self._counts.requeued += is_queued
        return True

    def _delete_rows(self, tenant: Tenant) -> None:
        """Delete rows of the sessions that the lake serves, in short transactions with pauses."""
        session_ids, ends_s = self._swept[tenant], time.monotonic() + _TURN_S
        while (began_s := time.monotonic()) < ends_s:
            with self._runtime.database.transaction(write=True) as db:
                self._require_lease(db)
                has_more = delete_some_hot_rows(db, session_ids, self._tables)
                if not has_more:
                    db.exec(delete(SweepRow).where(col(SweepRow.session_id).in_(session_ids)))
            if not has_more:
                del self._swept[tenant]
                return
            if self._runtime.database.is_sqlite:
                # Requests that wait for SQLite's lock try again from time to time, and would find it taken.
                time.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))
                self._runtime.database.checkpoint_log()


def _list_sweeps(db: DbSession) -> dict[Tenant, list[str]]:
    """Return the sessions whose hot rows are being deleted, by workspace and mode."""
    statement = select(SweepRow.session_id, SessionRow.workspace_id, SessionRow.mode)
    joined = statement.join(SessionRow, col(SessionRow.id) == col(SweepRow.session_id), isouter=True)
    sweeps: defaultdict[Tenant, list[str]] = defaultdict(list)
    for session_id, workspace_id, mode in db.exec(joined):
        # The row of a session that was purged is gone.
        sweeps[Tenant(workspace_id or "", mode or "")].append(session_id)
    return dict(sweeps)


def _list_sessions_to_sweep(
    db: DbSession, tenant: Tenant, *, after: tuple[datetime, str] | None
) -> list[SessionRow]:
    """Return the sessions of the next turn of a workspace, those that were sealed first."""
    sealed_at, session_id = col(SessionRow.sealed_at), col(SessionRow.id)
    statement = select(SessionRow).where(*in_tenant(SessionRow, tenant), _WAITING.make_conditions())
    if after is not None:
        is_later = or_(sealed_at > after[0], session_id > after[1])
        statement = statement.where(sealed_at >= after[0], is_later)
    rows = list(db.exec(statement.order_by(sealed_at, session_id).limit(_TURN_SESSIONS)))
    fitting = sum(total <= _TURN_ROWS for total in accumulate(r.event_count + r.frame_count for r in rows))
    return rows[: max(1, fitting)]


def _requeue_session(
    runtime: Runtime, require_lease: RequireLease, row: SessionRow, counts: dict[LakeKind, int]
) -> bool:
    """Delete a session's rows from the lake, and queue it to be sealed again from its hot rows.

    Returns:
        Whether the session is queued; otherwise it was set aside or deleted.
    """
    partitions = [LakePartition(row.workflow, row.lake_date or "")]
    for kind in LAYOUTS:
        runtime.lake.delete_sessions(kind, row.tenant, partitions=partitions, session_ids=[row.id])
    expected = {"events": row.event_count, "frames": row.frame_count, "sessions": 1}
    details: dict[str, Any] = {kind: {"expected": expected[kind], "found": counts[kind]} for kind in counts}
    log.error("session %s: the lake's rows differ from its counts; it is sealed again: %s", row.id, details)
    with runtime.database.transaction(write=True) as db:
        require_lease(db)
        current = db.get_one(SessionRow, row.id, with_for_update=True, populate_existing=True)
        if current.deleted_at is not None:
            return False
        current.seal_repairs += 1
        queue_session_in_deployment_slot(db, current, clock.now())
        record_audit_entry(
            db,
            Origin.system(row.workspace_id, "sealing"),
            "session.reseal",
            resource_type="session",
            resource_id=row.id,
            details=details,
        )
        if current.seal_repairs > _MAX_REPAIRS:
            message = (
                "The lake did not keep all rows of this session. Its events and frames are still in the "
                "database. Check the lake's disk or store, then reseal the session."
            )
            failures.set_aside(db, row.id, "rows_differ", message)
            return False
    return True
