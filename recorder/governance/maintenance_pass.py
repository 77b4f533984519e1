"""Maintenance pass over the lake: every table under a lease of its own, and unfinished uploads. Design §3.

A table or store that fails is logged, and the others are worked on. A pass that was killed is done by the
next one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from sqlalchemy import func
from sqlmodel import col, select

from recorder.models.export import ExportRow
from recorder.models.operations import SealCounterRow
from recorder.runtime import Runtime
from recorder.sealing.cleanup import name_table_cleanup_lease
from recorder.storage.lake_maintenance import TableMaintenance
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, lease_for_block
from recorder.storage.unfinished_uploads import abort_unfinished_uploads
from recorder.tenant import Tenant

log = logging.getLogger("recorder.lake")

#: A table whose run was killed is free after this time.
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4


@dataclass
class MaintenanceReport:
    """Result of a pass."""

    tables: dict[tuple[Tenant, LakeKind], TableMaintenance] = field(default_factory=dict)
    #: Error text of each table that failed.
    failures: dict[tuple[Tenant, LakeKind], str] = field(default_factory=dict)
    #: Tables that another run works on.
    busy: list[tuple[Tenant, LakeKind]] = field(default_factory=list)
    #: Uploads of killed writers that were aborted in stores that speak S3.
    aborted_uploads: int = 0

    @property
    def deleted_bytes(self) -> int:
        """Bytes of the data files that were deleted."""
        return sum(table.deleted.size_bytes for table in self.tables.values())

    def list_rows(self) -> list[dict[str, str | int]]:
        """Return one row for each table that has files, or that failed."""
        rows: list[dict[str, str | int]] = []
        for tenant, kind in sorted({*self.tables, *self.failures}):
            done = self.tables.get((tenant, kind), TableMaintenance())
            error = self.failures.get((tenant, kind), "")
            if not done.before.count and not error:
                continue
            rows.append(
                {
                    "workspace_id": tenant.workspace_id,
                    "mode": tenant.mode,
                    "kind": kind,
                    "files_before": done.before.count,
                    "files_after": done.after.count,
                    "bytes_after": done.after.size_bytes,
                    "deleted_files": done.deleted.count,
                    "deleted_bytes": done.deleted.size_bytes,
                    "joined_files": done.joined_files,
                    "deleted_log_entries": done.deleted_log_entries,
                    "error": error,
                }
            )
        return rows


def maintain_lake(
    runtime: Runtime,
    owner: str,
    *,
    workspace_id: str | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    lease_ms: int = _LEASE_MS,
) -> MaintenanceReport:
    """Compact the tables of the lake, and delete files, log entries and uploads that are not needed.

    Args:
        runtime: the deployment.
        owner: name of the run.
        workspace_id: one workspace; None is all, and the uploads of all stores.
        is_stopping: whether to end before the next table.
        lease_ms: duration of the lease of a table.
    """
    report = MaintenanceReport()
    for tenant in _list_maintenance_tenants(runtime, workspace_id):
        for kind in LAYOUTS:
            if is_stopping():
                return report
            try:
                done = _run_table_pass(runtime, owner, tenant, kind, lease_ms)
            except LeaseLost:
                report.busy.append((tenant, kind))
                continue
            except Exception as error:  # a broken table must not stop the others
                log.exception("maintenance of the %s of %s failed; the next pass tries again", kind, tenant)
                report.failures[tenant, kind] = f"{type(error).__name__}: {error}"
                continue
            if done is None:
                report.busy.append((tenant, kind))
            else:
                report.tables[tenant, kind] = done
    if workspace_id is None:
        report.aborted_uploads = _abort_uploads_in_pass(runtime, is_stopping)
    return report


def _abort_uploads_in_pass(runtime: Runtime, is_stopping: Callable[[], bool]) -> int:
    settings, aborted = runtime.settings, 0
    for url in sorted({settings.lake_url, settings.blob_url, settings.cold_url, settings.export_url}):
        if is_stopping():
            break
        try:
            aborted += abort_unfinished_uploads(url)
        except Exception as error:  # clients of object stores have errors of their own
            log.warning("unfinished uploads in %s stay until the next pass: %s", url, error)
    return aborted


def _list_maintenance_tenants(runtime: Runtime, workspace_id: str | None) -> list[Tenant]:
    statement = select(SealCounterRow.workspace_id, SealCounterRow.mode).distinct()
    if workspace_id is not None:
        statement = statement.where(SealCounterRow.workspace_id == workspace_id)
    with runtime.database.transaction(write=False) as db:
        return sorted(Tenant(*row) for row in db.exec(statement))


def _run_table_pass(
    runtime: Runtime, owner: str, tenant: Tenant, kind: LakeKind, lease_ms: int
) -> TableMaintenance | None:
    """Work on one table; return None if another run works on it."""
    name = name_table_cleanup_lease(kind, tenant)
    with lease_for_block(runtime.database, name, owner, ttl_ms=lease_ms) as held:
        if held is None:
            return None
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            pinned_since = _find_oldest_export_for_pass(runtime, tenant)
            check = partial(HeldLease.require_time, held)
            return runtime.lake.maintain(kind, tenant, pinned_since=pinned_since, check=check)


def _find_oldest_export_for_pass(runtime: Runtime, tenant: Tenant) -> datetime | None:
    """Return when the oldest running export was requested: its plan pins no version that ended before."""
    is_running = (
        ExportRow.workspace_id == tenant.workspace_id,
        ExportRow.mode == tenant.mode,
        ExportRow.status == "running",
    )
    statement = select(func.min(col(ExportRow.created_at))).where(*is_running)
    with runtime.database.transaction(write=False) as db:
        return db.exec(statement).one()
