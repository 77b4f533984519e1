"""Sweep: deletion of the hot rows of sealed sessions whose streams can no longer be resumed. Design §3.

A session's hot rows are deleted only after its rows were counted in the lake. If the counts differ, the
session is sealed again from its hot rows. From the first deletion on the lake alone serves the session: the
rows of a large one are deleted in many short transactions, since on SQLite each one blocks the API's writer.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select, update

from recorder import clock, limits
from recorder.audit.log import Origin, record_audit_entry
from recorder.models.operations import SweepRow
from recorder.models.session import SessionRow
from recorder.recording.hot_rows import HOT_ROWS, RowsOfSessions, delete_some_hot_rows
from recorder.runtime import Runtime
from recorder.sealing import failures
from recorder.sealing.portions import RequireLease
from recorder.storage.deployment import queue_session_in_deployment_slot
from recorder.storage.lake_schemas import LAYOUTS, Kind
from recorder.tenant import Tenant

log = logging.getLogger("recorder.sealing")

_SWEEP_CHUNK = 20
#: A pause between two transactions is as long as the one before, within this bound.
_LONGEST_PAUSE_S = 0.1
#: A session whose rows differ again after it was resealed so often is set aside.
_MAX_REPAIRS = 1


def has_rows_to_sweep(db: DbSession) -> bool:
    """Return whether hot rows wait to be deleted."""
    return (
        bool(_list_sessions_to_sweep(db, limit=1)) or db.exec(select(SweepRow).limit(1)).first() is not None
    )


def sweep_hot_rows(
    runtime: Runtime, require_lease: RequireLease, tables: Sequence[RowsOfSessions] = HOT_ROWS
) -> tuple[int, int]:
    """Delete the hot rows of sessions that the lake holds completely; queue the others again.

    Args:
        runtime: the deployment.
        require_lease: called in each write transaction; it raises if another run holds the lease.
        tables: tables with hot rows, and the most of them that one transaction deletes.

    Returns:
        The number of swept sessions, and of sessions that are sealed again.
    """
    swept = requeued = 0
    while True:
        _delete_swept_rows(runtime, require_lease, tables)
        with runtime.database.transaction(write=False) as db:
            due = _list_sessions_to_sweep(db, limit=_SWEEP_CHUNK)
        whole, differing = _compare_swept_rows_with_lake(runtime, due)
        if whole:
            with runtime.database.transaction(write=True) as db:
                require_lease(db)
                db.exec(update(SessionRow).where(col(SessionRow.id).in_(whole)).values(is_hot=False))
                db.add_all(SweepRow(session_id=session_id) for session_id in whole)
        for row, counts in differing:
            requeued += _requeue_session(runtime, require_lease, row, counts)
        swept += len(whole)
        if len(due) < _SWEEP_CHUNK:
            _delete_swept_rows(runtime, require_lease, tables)
            return swept, requeued


def _delete_swept_rows(
    runtime: Runtime, require_lease: RequireLease, tables: Sequence[RowsOfSessions]
) -> None:
    """Delete the rows of the sessions that the lake serves, in short transactions with pauses."""
    with runtime.database.transaction(write=False) as db:
        session_ids = list(db.exec(select(SweepRow.session_id)))
    while session_ids:
        began_s = time.monotonic()
        with runtime.database.transaction(write=True) as db:
            require_lease(db)
            if not delete_some_hot_rows(db, session_ids, tables):
                db.exec(delete(SweepRow).where(col(SweepRow.session_id).in_(session_ids)))
                return
        if runtime.database.is_sqlite:
            # Requests that wait for SQLite's lock try again from time to time, and would find it taken.
            time.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))
            runtime.database.checkpoint_log()


def _compare_swept_rows_with_lake(
    runtime: Runtime, rows: list[SessionRow]
) -> tuple[list[str], list[tuple[SessionRow, dict[Kind, int]]]]:
    """Return the ids of sessions that the lake holds completely, and the others with their row counts."""
    groups: defaultdict[tuple[Tenant, str, str], list[SessionRow]] = defaultdict(list)
    for row in rows:
        groups[row.tenant, row.workflow, row.lake_date or ""].append(row)
    whole: list[str] = []
    differing: list[tuple[SessionRow, dict[Kind, int]]] = []
    for (tenant, workflow, date), group in groups.items():
        ids = [row.id for row in group]
        counts: dict[Kind, dict[str, int]] = {
            kind: runtime.lake.count_session_rows(kind, tenant, workflow=workflow, date=date, session_ids=ids)
            for kind in _COUNTED
        }
        for row in group:
            held = {kind: counts[kind].get(row.id, 0) for kind in _COUNTED}
            if held == {"events": row.event_count, "frames": row.frame_count, "sessions": 1}:
                whole.append(row.id)
            else:
                differing.append((row, held))
    return whole, differing


_COUNTED: tuple[Kind, ...] = ("events", "frames", "sessions")


def _requeue_session(
    runtime: Runtime, require_lease: RequireLease, row: SessionRow, counts: dict[Kind, int]
) -> bool:
    """Delete a session's rows from the lake, and queue it to be sealed again from its hot rows.

    Returns:
        Whether the session is queued; otherwise it was set aside or deleted.
    """
    for kind in LAYOUTS:
        runtime.lake.delete_sessions(
            kind,
            row.tenant,
            workflow=row.workflow,
            dates=[row.lake_date or ""],
            session_ids=[row.id],
        )
    expected = {"events": row.event_count, "frames": row.frame_count, "sessions": 1}
    details: dict[str, Any] = {kind: {"expected": expected[kind], "found": counts[kind]} for kind in _COUNTED}
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


def _list_sessions_to_sweep(db: DbSession, *, limit: int) -> list[SessionRow]:
    """Return sealed sessions whose streams can no longer be resumed: the lake alone serves them."""
    before = clock.now() - timedelta(minutes=limits.STREAM_RESUME_MINUTES)
    row = SessionRow
    statement = (
        select(row)
        .where(col(row.is_hot), row.status == "sealed", col(row.sealed_at) < before)
        .where(col(row.waiting_since).is_(None), col(row.seal_error_code).is_(None))
        .limit(limit)
    )
    return list(db.exec(statement))
