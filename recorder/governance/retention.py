"""Retention: removal of sessions, audit entries, answers, hosted exports; archive of frames. Spec §8.3.

A run is a sequence of short transactions under a lease: a killed one is continued by the next. Settings are
read at its start, so a changed one holds at the next run. Work that fails in one workspace is reported, and
all other work goes on. An export, session or object that fails stops no later one. Contract §7.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import clock, limits
from recorder.access import idempotency_keys
from recorder.audit import pruning
from recorder.audit.verify import ChainHead, read_chain_heads
from recorder.exports.results import expiry
from recorder.governance import archive, orphans
from recorder.governance.holds import list_held_sessions
from recorder.governance.item_failures import ItemFailures, describe_item_error
from recorder.governance.purging.due_sessions import begin_purges, list_due_sessions, split_due_sessions
from recorder.governance.table_rewrites import rewrite_file_after_purges
from recorder.ids import first_id_at
from recorder.models.governance import PurgeRow
from recorder.models.webhook import DeliveryRow, WebhookRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.requests.replay_removal import (
    find_removable_replays,
    iterate_old_replays,
    remove_replays,
)
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, lease_for_block
from recorder.storage.store_regions import require_store_marks
from recorder.tenant import Tenant
from recorder.webhooks.deliveries import remove_old_deliveries

log = logging.getLogger("recorder.retention")

LEASE = "retention"
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
_ROWS = 500

#: Kind of session by the cause of its purge.
SESSION_KINDS = {
    "retention": "expired_sessions",
    "test_expiry": "test_sessions",
    "deletion": "deleted_sessions",
}
HELD = "held_sessions"
ARCHIVED = "archived_sessions"
ORPHANED = "orphaned_objects"
REPLAYS = "replays_and_recoveries"
KINDS = (
    *SESSION_KINDS.values(),
    ARCHIVED,
    HELD,
    "audit_entries",
    "kept_answers",
    "deliveries",
    "hosted_exports",
    REPLAYS,
    "tombstones",
    ORPHANED,
)


@dataclass(frozen=True)
class RetentionFailure:
    """Work of a run that failed, which the next run tries again."""

    #: None for delivery records, which are removed for all wanted workspaces at once.
    workspace_id: str | None
    #: What was not removed or archived, such as `frames to archive`.
    subject: str
    error: str

    def __str__(self) -> str:
        """Return the failure as a sentence."""
        where = "" if self.workspace_id is None else f" of workspace {self.workspace_id}"
        return f"The {self.subject}{where} are left to the next run: {self.error}"


@dataclass
class RetentionReport:
    """Numbers and bytes of what is due, or was removed, by workspace and kind; work that failed."""

    at: datetime
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[RetentionFailure] = field(default_factory=list)
    #: Heads of the audit chains after the run, for the operator to keep outside.
    heads: list[ChainHead] = field(default_factory=list)

    def add(self, workspace_id: str, kind: str, count: int, size_bytes: int = 0) -> None:
        """Count things of a kind."""
        if count:
            self.counts[workspace_id, kind] += count
            self.sizes[workspace_id, kind] += size_bytes

    def list_rows(self) -> list[dict[str, str | int]]:
        """Return one row for each workspace and kind of which there is something."""
        return [
            {
                "workspace_id": workspace_id,
                "kind": kind,
                "count": self.counts[workspace_id, kind],
                "bytes": self.sizes[workspace_id, kind],
            }
            for workspace_id, kind in sorted(self.counts)
        ]


def preview_retention(
    runtime: Runtime, *, at: datetime | None = None, workspace_id: str | None = None
) -> RetentionReport:
    """Return what a run would remove at an instant, now by default; nothing is changed.

    Held sessions are counted apart.

    Args:
        runtime: the deployment.
        at: instant of the run.
        workspace_id: one workspace; None is all.
    """
    report = RetentionReport(at or clock.now())
    for workspace in _list_retention_workspaces(runtime, workspace_id):
        for page in list_due_sessions(runtime.database, workspace, at=report.at):
            for session in page:
                kind = HELD if session.is_held else SESSION_KINDS[session.cause]
                report.add(workspace.id, kind, 1, session.size_bytes)
        with runtime.database.transaction(write=False) as db:
            _count_retention_records(db, report, workspace)
        for ids in _iterate_replays_by_retention(runtime, workspace.id, report.at):
            with runtime.database.transaction(write=False) as db:
                list_held = partial(list_held_sessions, db, workspace.id)
                units = find_removable_replays(db, ids, list_held=list_held, locks=False)
            report.add(workspace.id, REPLAYS, sum(map(len, units)))
        for row in archive.list_sessions_to_archive(runtime.database, workspace, at=report.at):
            report.add(workspace.id, ARCHIVED, 1, row.frame_bytes)
        for portion in orphans.list_orphans(runtime, workspace, at=report.at):
            report.add(workspace.id, ORPHANED, len(portion), sum(orphan.size for orphan in portion))
    return report


def run_retention(
    runtime: Runtime,
    owner: str,
    *,
    at: datetime | None = None,
    workspace_id: str | None = None,
    lease_ms: int = _LEASE_MS,
) -> RetentionReport | None:
    """Remove what is due; sessions are hidden here, and purged by the next run of purges.

    Sessions of all workspaces are hidden before anything else, and frames are archived last: a store that
    does not answer delays neither.

    Args:
        runtime: the deployment.
        owner: name of the run.
        at: instant at which things are due; None is now.
        workspace_id: one workspace; None is all.
        lease_ms: duration of the lease.

    Returns:
        What was removed, and what failed; None if another run is at work.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the database does not answer at the start or the end; the next run goes on.
    """
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=lease_ms) as held:
        if held is None:
            return None
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            report = RetentionReport(at or clock.now())
            workspaces = _list_retention_workspaces(runtime, workspace_id)
            for subject, work in _WORK.items():
                for workspace in workspaces:
                    with _report_retention_failure(report, held, workspace.id, subject):
                        work(runtime, held, workspace, report)
            with _report_retention_failure(report, held, None, "delivery records"):
                remove = partial(remove_old_deliveries, now=report.at, workspace_id=workspace_id)
                _repeat_retention_step(runtime, held, lambda db: _ROWS if remove(db) else 0)
            with _report_retention_failure(report, held, None, "copies of purged rows in the database"):
                rewrite_file_after_purges(runtime)
            # After the pruning, which adds entries.
            report.heads = read_chain_heads(runtime.database, workspace_id)
            return report


@contextmanager
def _report_retention_failure(
    report: RetentionReport, held: HeldLease, workspace_id: str | None, subject: str
) -> Iterator[None]:
    """Report the failure of the block, whatever its error, instead of raising it.

    Raises:
        LeaseLost: if another run took over.
    """
    held.require_time()
    try:
        yield
    except LeaseLost:
        raise
    except Exception as error:
        report.failures.append(RetentionFailure(workspace_id, subject, describe_item_error(error)))
        log.warning("%s", report.failures[-1], exc_info=error)


def _list_retention_workspaces(runtime: Runtime, workspace_id: str | None) -> list[WorkspaceRow]:
    statement = select(WorkspaceRow).order_by(col(WorkspaceRow.id))
    if workspace_id is not None:
        statement = statement.where(WorkspaceRow.id == workspace_id)
    with runtime.database.transaction(write=False) as db:
        return list(db.exec(statement))


def _expire_sessions(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, report: RetentionReport
) -> None:
    """Begin the purges of sessions whose retention has ended, and count the held ones."""
    for page in list_due_sessions(runtime.database, workspace, at=report.at):
        by_id = {session.session_id: session for session in page}
        for session in page:
            report.add(workspace.id, HELD, int(session.is_held), session.size_bytes)
        for chunk in split_due_sessions(page):
            with held.transaction(runtime.database) as db:
                begun = begin_purges(db, workspace, chunk, at=report.at, now=clock.now())
            for session_id in begun:
                session = by_id[session_id]
                report.add(workspace.id, SESSION_KINDS[session.cause], 1, session.size_bytes)


def _count_retention_records(db: DbSession, report: RetentionReport, workspace: WorkspaceRow) -> None:
    """Count what is due beside sessions."""
    at, name = report.at, workspace.id
    audit_limit = at - timedelta(days=workspace.audit_days)
    report.add(name, "audit_entries", pruning.count_audit_entries_to_prune(db, name, before=audit_limit))
    report.add(name, "kept_answers", *idempotency_keys.count_expired_keyed_answers(db, name, at=at))
    report.add(name, "deliveries", _count_retention_deliveries(db, name, at))
    report.add(name, "tombstones", len(_list_tombstones(db, name, audit_limit, limit=None)))
    for export in expiry.list_expired_exports(db, at=at, workspace_id=name):
        report.add(name, "hosted_exports", 1, expiry.count_expired_export_bytes(db, export.id))


def _remove_retention_records(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, report: RetentionReport
) -> None:
    """Remove audit entries, stored answers and tombstones of a workspace; count its deliveries."""
    at, name = report.at, workspace.id
    audit_limit = at - timedelta(days=workspace.audit_days)
    with runtime.database.transaction(write=False) as db:
        report.add(name, "deliveries", _count_retention_deliveries(db, name, at))
        _, size_bytes = idempotency_keys.count_expired_keyed_answers(db, name, at=at)
    prune = partial(pruning.prune_audit_entries, workspace_id=name, before=audit_limit, limit=_ROWS)
    report.add(name, "audit_entries", _repeat_retention_step(runtime, held, lambda db: prune(db)))
    forget = partial(idempotency_keys.delete_expired_keyed_answers, limit=_ROWS, at=at, workspace_id=name)
    report.add(name, "kept_answers", _repeat_retention_step(runtime, held, lambda db: forget(db)), size_bytes)
    bury = partial(_delete_tombstones, workspace_id=name, before=audit_limit)
    report.add(name, "tombstones", _repeat_retention_step(runtime, held, lambda db: bury(db)))


def _remove_exports_by_retention(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, report: RetentionReport
) -> None:
    with runtime.database.transaction(write=False) as db:
        expired = expiry.list_expired_exports(db, at=report.at, workspace_id=workspace.id)
        sizes = {export.id: expiry.count_expired_export_bytes(db, export.id) for export in expired}
    if sizes:
        require_store_marks(runtime.settings)
    failures = ItemFailures("hosted exports")
    for export_id, size_bytes in sizes.items():
        with failures.collect(export_id):
            if expiry.delete_expired_export_files(runtime, held, export_id, at=report.at):
                report.add(workspace.id, "hosted_exports", 1, size_bytes)
    failures.raise_at_end()


def _remove_replays_by_retention(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, report: RetentionReport
) -> None:
    for ids in _iterate_replays_by_retention(runtime, workspace.id, report.at):
        while True:
            with held.transaction(runtime.database) as db:
                # Looked up here, so that a hold counts that came since the page was read.
                list_held = partial(list_held_sessions, db, workspace.id)
                units = find_removable_replays(db, ids, list_held=list_held)
                removed = remove_replays(db, units) if units else []
            if not removed:
                break
            report.add(workspace.id, REPLAYS, len(removed))


def _iterate_replays_by_retention(runtime: Runtime, workspace_id: str, at: datetime) -> Iterator[list[str]]:
    for mode in ("live", "test"):
        yield from iterate_old_replays(runtime.database, Tenant(workspace_id, mode), at=at)


def _archive_frames_by_retention(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, report: RetentionReport
) -> None:
    for session in archive.archive_frames(runtime, held, workspace, at=report.at):
        report.add(workspace.id, ARCHIVED, 1, session.frame_bytes)


def _remove_orphans_by_retention(
    runtime: Runtime, held: HeldLease, workspace: WorkspaceRow, report: RetentionReport
) -> None:
    for removed in orphans.remove_orphans(runtime, held, workspace, at=report.at):
        report.add(workspace.id, ORPHANED, len(removed), sum(orphan.size for orphan in removed))


#: Work of a run in its order, by what it removes or moves.
_WORK = {
    "expired sessions": _expire_sessions,
    "expired records": _remove_retention_records,
    "hosted exports": _remove_exports_by_retention,
    "replays and recoveries": _remove_replays_by_retention,
    "frames to archive": _archive_frames_by_retention,
    "objects of uploads that never committed": _remove_orphans_by_retention,
}


def _repeat_retention_step(runtime: Runtime, held: HeldLease, step: Callable[[DbSession], int]) -> int:
    """Repeat a step, each time in a transaction of its own, until it removes fewer rows than it may."""
    removed = 0
    while True:
        with held.transaction(runtime.database) as db:
            count = step(db)
        removed += count
        if count < _ROWS:
            return removed


def _count_retention_deliveries(db: DbSession, workspace_id: str, at: datetime) -> int:
    limit = first_id_at("dlv", at - timedelta(days=limits.DELIVERY_DAYS))
    of_workspace = select(WebhookRow.id).where(WebhookRow.workspace_id == workspace_id)
    is_old = (
        col(DeliveryRow.webhook_id).in_(of_workspace),
        col(DeliveryRow.id) < limit,
        DeliveryRow.status != "pending",
    )
    return db.exec(select(func.count()).select_from(DeliveryRow).where(*is_old)).one()


def _list_tombstones(db: DbSession, workspace_id: str, before: datetime, *, limit: int | None) -> list[str]:
    """Return the purged sessions whose id, cause and time have been kept as long as the audit log."""
    is_old = (
        PurgeRow.workspace_id == workspace_id,
        PurgeRow.step == "done",
        col(PurgeRow.done_at) < before,
    )
    return list(db.exec(select(PurgeRow.session_id).where(*is_old).limit(limit)))


def _delete_tombstones(db: DbSession, *, workspace_id: str, before: datetime) -> int:
    ids = _list_tombstones(db, workspace_id, before, limit=_ROWS)
    db.exec(delete(PurgeRow).where(col(PurgeRow.session_id).in_(ids)))
    return len(ids)
