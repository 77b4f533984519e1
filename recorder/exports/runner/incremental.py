"""Incremental exports: copy files from their parent, the newest export of the same request. Contract §5."""

import logging
from dataclasses import dataclass, replace

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import RecorderError
from recorder.exports.destinations import Destination, open_destination
from recorder.exports.manifest_builder import Lineage, read_own_manifest
from recorder.exports.planning.plan import Plan
from recorder.exports.planning.selection import DeletedSessions, find_deleted_sessions
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.requests.validation import compute_export_series
from recorder.exports.runner.export_lease import ExportCancelled, ExportClaim
from recorder.exports.runner.shard_store import read_shard_rows, read_stored_export_plan, written_shard_of_row
from recorder.exports.writers import WrittenShard
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.leases import LeaseLost

log = logging.getLogger("recorder.exports")

#: Most exports that are tried, newest first, until one still has its files.
_CANDIDATES = 5


@dataclass(frozen=True)
class Parent:
    """A completed export as a source of files."""

    export_id: str
    #: Ids of the sessions of its plan.
    sessions: pl.Series
    destination: Destination
    #: Its files by path and `content_key`.
    files: dict[tuple[str, str], WrittenShard]

    def copy(self, shard: PlannedShard, destination: Destination, claim: ExportClaim) -> WrittenShard | None:
        """Copy the file of a shard; return None if the parent has none, or it was changed.

        Raises:
            LeaseLost, ExportCancelled: if this run may not write the export any more.
        """
        file = self.files.get((shard.path, shard.content_key))
        if file is None:
            return None
        claim.require()
        try:
            destination.copy(shard.path, self.destination, size_bytes=file.size_bytes, sha256=file.sha256)
            if destination.size(shard.path) != file.size_bytes:
                claim.require()
                destination.remove(shard.path)
                return None
        except (LeaseLost, ExportCancelled):
            raise
        except (RecorderError, KeyError) as error:
            log.info("%s of %s is not copied: %r", shard.path, self.export_id, error)
            return None
        return replace(file, reused_from=self.export_id)


def find_parent_export(runtime: Runtime, row: ExportRow) -> Parent | None:
    """Return the newest completed export of the same series whose files exist."""
    statement = (
        select(ExportRow.id)
        .where(
            *in_tenant(ExportRow, row.tenant),
            ExportRow.series_sha256 == compute_export_series(row),
            ExportRow.status == "completed",
            col(ExportRow.expired_at).is_(None),
        )
        .order_by(col(ExportRow.id).desc())
        .limit(_CANDIDATES)
    )
    with runtime.database.transaction(write=False) as db:
        candidates = list(db.exec(statement))
    opened = (open_parent_export(runtime, export_id) for export_id in candidates)
    return next((parent for parent in opened if parent is not None), None)


def open_parent_export(runtime: Runtime, export_id: str) -> Parent | None:
    """Return an export as a source of files; None if its manifest, plan or destination is gone."""
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, export_id)
        shards = read_shard_rows(db, export_id)
    if row is None or row.plan_key is None:
        return None
    try:
        destination = open_destination(row, runtime.settings)
        read_own_manifest(destination, row)
        plan = read_stored_export_plan(runtime.blobs, row.plan_key)
    except (RecorderError, KeyError) as error:
        log.info("the files of %s are not copied: %r", export_id, error)
        return None
    if plan is None:
        return None
    files = {
        (shard.path, shard.content_key): file
        for shard in shards
        if (file := written_shard_of_row(shard)) is not None
    }
    return Parent(export_id, plan.sessions["session_id"], destination, files)


def lineage_since_parent(db: DbSession, row: ExportRow, plan: Plan, parent: Parent | None) -> Lineage:
    """Return the changes of a new plan's sessions since the parent export."""
    if parent is None:
        return Lineage()
    planned = plan.sessions["session_id"]
    missing = parent.sessions.filter(~parent.sessions.is_in(planned.implode()))
    gone = find_deleted_sessions(db, row.tenant, plan.spec["workflow"], missing)
    return Lineage(
        parent_id=parent.export_id,
        sessions_added=planned.len() - (parent.sessions.len() - missing.len()),
        sessions_removed=missing.len(),
        erased=len(gone.erased),
        deleted=len(gone.deleted),
        expired=len(gone.expired),
    )


def add_lineage_deletions(lineage: Lineage, gone: DeletedSessions, parent: Parent | None) -> Lineage:
    """Return the changes after sessions of the plan were deleted."""
    inherited = 0
    if parent is not None:
        inherited = int(pl.Series(gone.ids, dtype=pl.String).is_in(parent.sessions.implode()).sum())
    return replace(
        lineage,
        sessions_added=max(0, lineage.sessions_added - (len(gone.ids) - inherited)),
        sessions_removed=lineage.sessions_removed + inherited,
        erased=lineage.erased + len(gone.erased),
        deleted=lineage.deleted + len(gone.deleted),
        expired=lineage.expired + len(gone.expired),
    )
