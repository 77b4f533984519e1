"""Cleanup after sealing: deletion of hot rows that the lake holds, compaction, counts of lake and database.

A session's hot rows are deleted only after its rows were counted in the lake. If the counts differ, the
session is sealed again from its hot rows. Design §3.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select, update

from recorder import clock, limits
from recorder.access.idempotency import purge_expired_answers
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import RecorderError
from recorder.models.event import BatchKeyRow, EventBatchRow, EventKeyRow
from recorder.models.frame import FrameRow
from recorder.models.operations import SealBatchRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import failures
from recorder.sealing.lanes import has_waiting
from recorder.sealing.portions import RequireLease, discard_leftover_portions
from recorder.storage.deployment import queue_for_sealing
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.lake_schemas import LAYOUTS, Kind
from recorder.storage.leases import HeldLease, lease_for_block
from recorder.tenant import Tenant

log = logging.getLogger("recorder.sealing")

# Short transactions: on SQLite each one blocks the API's writer.
_SWEEP_CHUNK = 20
_KEYS_CHUNK = 500
_LEASE = "seal-maintenance"
_LEASE_MS = 120_000
_DONE_BATCHES_KEPT = timedelta(days=1)
#: A session whose rows differ again after it was resealed so often is set aside.
_MAX_REPAIRS = 1


def has_work(db: DbSession) -> bool:
    """Return whether a session waits to be sealed, or hot rows wait to be swept."""
    return has_waiting(db) or bool(_list_due_sessions(db, limit=1))


@dataclass(frozen=True)
class Maintenance:
    """Counts of the changes of one cleanup."""

    swept_sessions: int = 0
    requeued_sessions: int = 0
    dropped_answers: int = 0
    compacted_files: int = 0


def maintain(runtime: Runtime, owner: str, tenants: Iterable[Tenant]) -> Maintenance:
    """Delete hot rows and old keys, and compact tables, except for work that another run does now.

    Args:
        runtime: the deployment.
        owner: name of the run.
        tenants: tenants with tables to compact.
    """
    swept = requeued = answers = compacted = 0
    with lease_for_block(runtime.database, _LEASE, owner, ttl_ms=_LEASE_MS) as held:
        if held is not None:
            swept, requeued = _sweep_hot_rows(runtime, held.require)
            answers = _delete_expired_answers(runtime, held.require)
            _delete_done_batches(runtime, held.require)
            discard_leftover_portions(runtime, held.require)
    for tenant in sorted(tenants):
        for kind in LAYOUTS:
            try:
                compacted += _compact_table(runtime, owner, tenant, kind)
            except RecorderError as error:
                log.warning("the %s of %s are compacted later: %s", kind, tenant, error)
    return Maintenance(swept, requeued, answers, compacted)


def name_table_lease(kind: Kind, tenant: Tenant) -> str:
    """Return the name of the lease under which files of a lake table are joined or deleted as unused."""
    return f"lake:{tenant.workspace_id}:{tenant.mode}:{kind}"


def _compact_table(runtime: Runtime, owner: str, tenant: Tenant, kind: Kind) -> int:
    name = name_table_lease(kind, tenant)
    with lease_for_block(runtime.database, name, owner, ttl_ms=_LEASE_MS) as held:
        if held is None:
            return 0
        return runtime.lake.compact(kind, tenant, check=partial(_check_lease, runtime, held))


def _check_lease(runtime: Runtime, held: HeldLease) -> None:
    """Check and renew a lease between two files of a compaction.

    Raises:
        LeaseLost: if another run took the lease.
    """
    with runtime.database.transaction(write=True) as db:
        held.require(db)


def _sweep_hot_rows(runtime: Runtime, require_lease: RequireLease) -> tuple[int, int]:
    """Delete the hot rows of sessions that the lake holds completely; queue the others again.

    Returns:
        The number of swept sessions, and of sessions that are sealed again.
    """
    swept = requeued = 0
    while True:
        with runtime.database.transaction(write=False) as db:
            due = _list_due_sessions(db, limit=_SWEEP_CHUNK)
        whole, differing = _compare_with_lake(runtime, due)
        with runtime.database.transaction(write=True) as db:
            require_lease(db)
            for table in (EventBatchRow, EventKeyRow, FrameRow, BatchKeyRow):
                db.exec(delete(table).where(col(table.session_id).in_(whole)))
            db.exec(update(SessionRow).where(col(SessionRow.id).in_(whole)).values(is_hot=False))
        for row, counts in differing:
            requeued += _requeue_session(runtime, require_lease, row, counts)
        swept += len(whole)
        if len(due) < _SWEEP_CHUNK:
            return swept, requeued


def _compare_with_lake(
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
        queue_for_sealing(db, current, clock.now())
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


def _delete_expired_answers(runtime: Runtime, require_lease: RequireLease) -> int:
    """Delete the stored answers of keyed requests after their window, even without new requests."""
    with runtime.database.transaction(write=True) as db:
        require_lease(db)
        return purge_expired_answers(db, limit=_KEYS_CHUNK)


def _delete_done_batches(runtime: Runtime, require_lease: RequireLease) -> None:
    before: datetime = clock.now() - _DONE_BATCHES_KEPT
    with runtime.database.transaction(write=True) as db:
        require_lease(db)
        done = select(SealBatchRow).where(SealBatchRow.state == "done", col(SealBatchRow.created_at) < before)
        for row in db.exec(done.limit(_KEYS_CHUNK)):
            db.delete(row)


def _list_due_sessions(db: DbSession, *, limit: int) -> list[SessionRow]:
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


# A batch is committed to one table after the other; a count in between sees a difference that passes.
_COUNT_ATTEMPTS = 5
_COUNT_PAUSE_S = 0.5


@dataclass(frozen=True)
class TenantCounts:
    """Rows of one workspace and mode: by the counts of its sealed sessions, and in the lake."""

    tenant: Tenant
    sessions: int
    expected_events: int
    events: int
    expected_frames: int
    frames: int

    @property
    def is_complete(self) -> bool:
        """Return whether the lake holds exactly the expected rows."""
        return (self.events, self.frames) == (self.expected_events, self.expected_frames)


def count_rows_by_tenant(runtime: Runtime) -> list[TenantCounts]:
    """Return the counts of every workspace and mode.

    Differing rows are counted again, since a batch may be under way.
    """
    with runtime.database.transaction(write=False) as db:
        tenants = sorted({Tenant(row.workspace_id, row.mode) for row in db.exec(select(SealCounterRow))})
    return [_count_until_complete(runtime, tenant) for tenant in tenants]


def _count_until_complete(runtime: Runtime, tenant: Tenant) -> TenantCounts:
    counts = _count_tenant_rows(runtime, tenant)
    for _ in range(_COUNT_ATTEMPTS - 1):
        if counts.is_complete:
            break
        time.sleep(_COUNT_PAUSE_S)
        counts = _count_tenant_rows(runtime, tenant)
    return counts


def _count_tenant_rows(runtime: Runtime, tenant: Tenant) -> TenantCounts:
    totals = (pl.len(), pl.col("event_count").sum(), pl.col("frame_count").sum())
    sessions, events, frames = retry_lake_read(
        lambda: pl.collect_all(
            [
                runtime.lake.scan("sessions", tenant).select(totals),
                runtime.lake.scan("events", tenant).select(pl.len()),
                runtime.lake.scan("frames", tenant).select(pl.len()),
            ]
        )
    )
    count, expected_events, expected_frames = sessions.row(0)
    return TenantCounts(
        tenant=tenant,
        sessions=count,
        expected_events=expected_events,
        events=events.item(),
        expected_frames=expected_frames,
        frames=frames.item(),
    )
