"""End of an export: publication, failure, cancellation, removal of files; exports that Dagster runs start.

A failed export changes its status at once. Its files are removed afterwards, by the run that has the lease or
by the next one; until then `files_left` is set. Spec §2.5, §3.2.
"""

import logging
from datetime import timedelta
from functools import partial

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.datasets.formats import CARD, MANIFEST
from recorder.datasets.manifest import format_manifest
from recorder.errors import InvalidDestination, InvalidState, NotFound, RecorderError
from recorder.exports.card import dataset_card, read_statistics
from recorder.exports.destinations import Destination, FileConflict, open_destination
from recorder.exports.manifest_builder import ExportFacts, build_manifest
from recorder.exports.planning.plan import Plan
from recorder.exports.planning.selection import find_deleted_sessions, list_sessions_deleted_since
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.requests.export_operations import create_export
from recorder.exports.requests.export_wire_objects import emit_export_event
from recorder.exports.runner.export_lease import (
    ExportCancelled,
    ExportClaim,
    claim_export,
    is_export_over,
    lock_export,
)
from recorder.exports.runner.session_index import delete_export_index_rows
from recorder.exports.runner.shard_store import (
    ShardStore,
    count_delivered_shard_rows,
    plan_folder,
    read_shard_rows,
    settle_reserved_export_rows,
)
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.models.export_request import ExportCreate
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.leases import LeaseLost
from recorder.tenant import Tenant

log = logging.getLogger("recorder.exports")

#: A clock may be set back between a deletion and the end of an export by less than this.
_CLOCK_STEP = timedelta(minutes=10)


def cancel_tenant_export(
    db: DbSession, settings: Settings, tenant: Tenant, export_id: str, *, origin: Origin
) -> ExportRow:
    """Cancel an export; a cancelled one stays as it is. Needs a write transaction.

    A run that works on it ends when it next stores a shard.

    Raises:
        NotFound: if it is missing or of another workspace or mode.
        InvalidState: if it ended before.
    """
    row = lock_export(db, export_id)
    if row is None or (row.workspace_id, row.mode) != (tenant.workspace_id, tenant.mode):
        raise NotFound("export")
    if row.status == "failed" and row.error is not None and row.error["code"] == ExportCancelled.code:
        return row
    if row.status not in OPEN_STATUSES:
        raise InvalidState(row.status, needed="export must be queued or running to be cancelled")
    record_audit_entry(db, origin, "export.cancel", resource_type="export", resource_id=export_id)
    end_export_as_failed(db, row, settings, ExportCancelled.code, str(ExportCancelled()))
    return row


def end_export_as_failed(db: DbSession, row: ExportRow, settings: Settings, code: str, message: str) -> None:
    """End an export as failed: charge what its client holds, release its quota, emit its event."""
    row.status, row.completed_at = "failed", clock.now()
    row.error = {"code": code, "message": message}
    row.awaited_sessions = None
    # Files are written only after the plan is stored.
    row.files_left = row.plan_key is not None
    settle_reserved_export_rows(db, row, exported=count_delivered_shard_rows(db, row))
    db.add(row)
    emit_export_event(db, row, settings, "export.failed")


def remove_failed_export_files(
    runtime: Runtime, claim: ExportClaim, row: ExportRow, *, is_last_try: bool = False
) -> ExportRow:
    """Remove the files and the stored plan of a failed export, and release the lease.

    If the destination refuses, the next run tries again; files without a manifest are no dataset.

    Args:
        runtime: deployment.
        claim: claim of the export.
        row: row of the export.
        is_last_try: whether no run tries again. Hosted files that cannot be removed stay in the index, so
            that retention and purges remove them; others are left for good.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the store of plans does not answer; the next run tries again.
    """
    if row.files_left:
        with runtime.database.transaction(write=False) as db:
            shards = read_shard_rows(db, row.id)
        is_ours = (row.error or {}).get("code") != FileConflict.code
        paths = [shard.path for shard in shards if shard.is_done or is_ours]
        try:
            destination = open_destination(row, runtime.settings)
            destination.require_owner()
            # First the files that make the others a dataset.
            for path in (MANIFEST, CARD, *paths):
                claim.require_lease()
                destination.remove(path)
            claim.require_lease()
            destination.remove_unfinished_files()
        except LeaseLost:
            raise
        except RecorderError as error:
            log.warning("files of export %s are not removed: %s", row.id, error)
            if not is_last_try:
                return row
            if row.destination["kind"] == "signed_url":
                with claim.transaction_in_any_status() as (db, row):
                    row.files_left = False
                    claim.lease.release(db)
                return row
        runtime.blobs.delete_below(plan_folder(row.workspace_id, row.id))
    delete_export_index_rows(partial(claim.lease.transaction, runtime.database), row.id)
    with claim.transaction_in_any_status() as (db, row):
        row.files_left, row.plan_key = False, None
        claim.lease.release(db)
    return row


def list_missing_files(shards: list[PlannedShard], destination: Destination) -> set[str]:
    """Return the files that the destination lacks; none if the service may write but not list."""
    missing = {shard.path for shard in shards}
    try:
        # One by one: other writers may have put any number of files there.
        missing.difference_update(destination.list_destination_paths())
    except InvalidDestination:
        return set()
    return missing


def publish_dataset(
    runtime: Runtime,
    export: ExportRow,
    claim: ExportClaim,
    ledger: ShardStore,
    plan: Plan,
    shards: list[PlannedShard],
    destination: Destination,
) -> ExportRow | None:
    """Write card and manifest, then mark the export as completed.

    Args:
        runtime: deployment.
        export: row of the export as it was claimed.
        claim: claim of the export.
        ledger: progress of the export.
        plan: plan of the export.
        shards: shards of the plan, all written.
        destination: directory of the export.

    Returns:
        The row; None if sessions of the plan were deleted since: the manifest is removed then.

    Raises:
        LeaseLost, ExportCancelled: if this run may not complete it any more.
    """
    written = ledger.written()
    facts = ExportFacts(
        export_id=export.id,
        workspace_id=export.workspace_id,
        created_at=export.created_at,
        tag=export.tag,
        lineage=ledger.lineage(),
    )
    manifest = build_manifest(facts, plan, [(shard, written[shard.path]) for shard in shards])
    statistics = read_statistics(runtime.lake, export.tenant, plan)
    _write_card_or_manifest(claim, destination, CARD, dataset_card(manifest, statistics).encode())
    manifest_sha256 = _write_card_or_manifest(claim, destination, MANIFEST, format_manifest(manifest))
    claim.require()
    destination.remove_unfinished_files()
    totals = manifest["totals"]
    sessions = plan.sessions["session_id"]
    checked_at = clock.now()
    # Outside the write transaction, in which other requests wait: of 600,000 sessions all are read, for 2 s.
    with runtime.database.transaction(write=False) as db:
        has_deleted = bool(find_deleted_sessions(db, export.tenant, plan.spec["workflow"], sessions).ids)
    if not has_deleted:
        with claim.transaction() as (db, row):
            # In the transaction that completes the export, so that it has no session that was deleted before.
            recent = list_sessions_deleted_since(db, row.tenant, checked_at - _CLOCK_STEP)
            if not sessions.is_in(recent).any():
                row.status, row.completed_at = "completed", clock.now()
                row.rows, row.frames, row.actions = totals["rows"], totals["frames"], totals["actions"]
                row.shards = totals["shards"]
                row.shard_size_bytes = max((shard["size_bytes"] for shard in manifest["shards"]), default=0)
                row.row_set_sha256, row.manifest_sha256 = manifest["row_set_sha256"], manifest_sha256
                settle_reserved_export_rows(db, row, exported=totals["rows"])
                emit_export_event(db, row, runtime.settings, "export.completed")
                claim.lease.release(db)
                return row
    claim.require()
    destination.remove(MANIFEST)
    return None


def _write_card_or_manifest(claim: ExportClaim, destination: Destination, path: str, data: bytes) -> str:
    """Write a file about the whole dataset and return its SHA-256.

    The lease is checked first: a run that was suspended must not overwrite the files of its successor.
    """
    for replace in (False, True):
        claim.require()
        try:
            with destination.create(path, replace=replace) as file:
                file.write(data)
            break
        except FileConflict:
            if replace:
                raise
    return file.sha256


def _make_dagster_origin(workspace_id: str) -> Origin:
    """Return the origin of a user of Dagster's pages, which have no user names."""
    return Origin(workspace_id, "operator", "dagster")


def requeue_export(runtime: Runtime, tenant: Tenant, body: ExportCreate, *, owner: str) -> str:
    """Queue an export for a run that begins at once; no other run can claim it in between.

    Returns:
        The id of the export, for `run_export` with the same owner.
    """
    row = create_export(
        runtime,
        tenant,
        body,
        origin=_make_dagster_origin(tenant.workspace_id),
        on_stored=lambda db, row: claim_export(runtime.database, db, row.id, owner=owner),
    )
    return row.id


def fail_export_of_cancelled_run(runtime: Runtime, export_id: str, *, owner: str) -> None:
    """End an export whose run was cancelled; a finished one stays as it is.

    No store is used: the next run removes the files that this run wrote (`files_left`).

    Raises:
        ExportBusy: if a run works on it.
    """
    with runtime.database.transaction(write=True) as db:
        if is_export_over(db.get_one(ExportRow, export_id)):
            return
        claim = claim_export(runtime.database, db, export_id, owner=owner)
        row = lock_export(db, export_id)
        assert row is not None
        if row.status in OPEN_STATUSES:
            text = "The run of this export was cancelled."
            end_export_as_failed(db, row, runtime.settings, ExportCancelled.code, text)
            origin = _make_dagster_origin(row.workspace_id)
            record_audit_entry(db, origin, "export.cancel", resource_type="export", resource_id=export_id)
        claim.lease.release(db)
