"""How an export ends without a dataset: failed or cancelled, its rows given back, its files taken away. §3.2.

The status changes at once, for whoever asks. The files are taken away afterwards, by the run that has the
lease or by the next one: `files_left` says that it is still to be done.
"""

import logging

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.audit.log import Origin, record
from recorder.datasets.formats import CARD, MANIFEST
from recorder.datasets.manifest import format_manifest
from recorder.errors import InvalidDestination, InvalidState, NotFound, RecorderError
from recorder.exports.card import dataset_card, read_statistics
from recorder.exports.destinations import Destination, FileConflict, open_destination
from recorder.exports.manifest import ExportFacts, build_manifest
from recorder.exports.planning.plan import Plan
from recorder.exports.planning.selection import find_gone
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.requests.queue import create_export
from recorder.exports.requests.wire_objects import emit
from recorder.exports.runner.lease import Claim, ExportCancelled, claim_export, is_over, lock_export
from recorder.exports.runner.shard_store import Ledger, read_shards, settle
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.leases import LeaseLost
from recorder.tenant import Tenant

log = logging.getLogger("recorder.exports")


def cancel(db: DbSession, settings: Settings, tenant: Tenant, export_id: str, *, origin: Origin) -> ExportRow:
    """Call an export off; one that was called off before stays as it is. Needs a write transaction.

    A run that works on it learns of it when it next notes a shard.

    Raises:
        NotFound: if it is missing or of another workspace or mode.
        InvalidState: if it ended before.
    """
    row = lock_export(db, export_id)
    if row is None or (row.workspace_id, row.mode) != (tenant.workspace_id, tenant.mode):
        raise NotFound("export")
    if row.status == "failed" and row.error is not None and row.error["code"] == ExportCancelled.code:
        return row
    if row.status not in ("queued", "running"):
        raise InvalidState(row.status, needed="export must be queued or running to be cancelled")
    record(db, origin, "export.cancel", resource_type="export", resource_id=export_id)
    end_as_failed(db, row, settings, ExportCancelled.code, str(ExportCancelled()))
    return row


def end_as_failed(db: DbSession, row: ExportRow, settings: Settings, code: str, message: str) -> None:
    """Let an export end without a dataset: counts, notice and all."""
    row.status, row.completed_at = "failed", clock.now()
    row.error = {"code": code, "message": message}
    # Nothing is written before there is a plan.
    row.files_left = row.plan_key is not None
    settle(db, row, exported=0)
    db.add(row)
    emit(db, row, settings, "export.failed")


def take_files_away(
    runtime: Runtime, claim: Claim, row: ExportRow, *, is_last_try: bool = False
) -> ExportRow:
    """Remove what a failed export wrote and its stored plan, and give the lease back.

    Where the destination does not let us, the export is left to the next run; without a manifest nobody takes
    what lies there for a dataset.

    Args:
        is_last_try: then it is left as it is.

    Raises:
        LeaseLost: if another run took over.
    """
    if row.files_left:
        with runtime.database.transaction(write=False) as db:
            shards = read_shards(db, row.id)
        is_ours = (row.error or {}).get("code") != FileConflict.code
        paths = [shard.path for shard in shards if shard.is_done or is_ours]
        try:
            destination = open_destination(row, runtime.settings)
            destination.require_owner()
            # First what would call the rest a dataset.
            for path in (MANIFEST, CARD, *paths):
                claim.require_lease()
                destination.remove(path)
            claim.require_lease()
            destination.finish()
            if row.plan_key is not None:
                runtime.blobs.delete(row.plan_key)
        except LeaseLost:
            raise
        except RecorderError as error:
            log.warning("files of export %s are left behind: %s", row.id, error)
            if not is_last_try:
                return row
    with claim.ending_transaction() as (db, row):
        row.files_left, row.plan_key = False, None
        claim.lease.release(db)
    return row


def missing_files(shards: list[PlannedShard], destination: Destination) -> set[str]:
    """Files that the destination does not have; none where we may write but not look."""
    missing = {shard.path for shard in shards}
    try:
        # One by one: others may have put any number of files there.
        missing.difference_update(destination.files())
    except InvalidDestination:
        return set()
    return missing


def publish(
    runtime: Runtime,
    export: ExportRow,
    claim: Claim,
    ledger: Ledger,
    plan: Plan,
    shards: list[PlannedShard],
    destination: Destination,
) -> ExportRow | None:
    """Write card and manifest, then say that the export is completed.

    Args:
        export: its row as it was claimed.
        shards: those of the plan, each written.

    Returns:
        The row; None where sessions of the plan were deleted meanwhile: there is no manifest then.

    Raises:
        LeaseLost, ExportCancelled: if it is not ours to complete any more.
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
    _put(claim, destination, CARD, dataset_card(manifest, statistics).encode())
    manifest_sha256 = _put(claim, destination, MANIFEST, format_manifest(manifest))
    claim.require()
    destination.finish()
    totals = manifest["totals"]
    with claim.transaction() as (db, row):
        # In one transaction with the end: what was deleted before it is in no completed export.
        if not find_gone(db, row.tenant, plan.spec["workflow"], plan.sessions["session_id"]).ids:
            row.status, row.completed_at = "completed", clock.now()
            row.rows, row.frames, row.actions = totals["rows"], totals["frames"], totals["actions"]
            row.shards = totals["shards"]
            row.shard_size_bytes = max((shard["size_bytes"] for shard in manifest["shards"]), default=0)
            row.row_set_sha256, row.manifest_sha256 = manifest["row_set_sha256"], manifest_sha256
            settle(db, row, exported=totals["rows"])
            emit(db, row, runtime.settings, "export.completed")
            claim.lease.release(db)
            return row
    claim.require()
    destination.remove(MANIFEST)
    return None


def _put(claim: Claim, destination: Destination, path: str, data: bytes) -> str:
    """Write a file that says of the whole; gives its SHA-256.

    A run that stood still while another took over must not write beside or over that one's: the lease is made
    sure of first.
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


def _dagster_origin(workspace_id: str) -> Origin:
    """Return the origin of a user of Dagster's pages, which have no user names."""
    return Origin(workspace_id, "operator", "dagster")


def queue_export(runtime: Runtime, tenant: Tenant, body: ExportCreate, *, owner: str) -> str:
    """Queue an export for a run that begins at once; no other run can claim it in between.

    Returns:
        The id of the export, for `run_export` with the same owner.
    """
    row = create_export(
        runtime,
        tenant,
        body,
        origin=_dagster_origin(tenant.workspace_id),
        on_stored=lambda db, row: claim_export(runtime.database, db, row.id, owner=owner),
    )
    return row.id


def cancel_export(runtime: Runtime, export_id: str, *, owner: str) -> None:
    """End an export whose run was cancelled; a finished one stays as it is.

    No store is used: the next run removes the files that this run wrote (`files_left`).

    Raises:
        ExportBusy: if a run works on it.
    """
    with runtime.database.transaction(write=True) as db:
        if is_over(db.get_one(ExportRow, export_id)):
            return
        claim = claim_export(runtime.database, db, export_id, owner=owner)
        row = lock_export(db, export_id)
        assert row is not None
        if row.status in ("queued", "running"):
            text = "The run of this export was cancelled."
            end_as_failed(db, row, runtime.settings, ExportCancelled.code, text)
            origin = _dagster_origin(row.workspace_id)
            record(db, origin, "export.cancel", resource_type="export", resource_id=export_id)
        claim.lease.release(db)
