"""How an export ends without a dataset: failed or cancelled, its rows given back, its files taken away. §3.2.

The status changes at once, for whoever asks. The files are taken away afterwards, by the run that has the
lease or by the next one: `files_left` says that it is still to be done.
"""

import logging

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.audit.log import Origin, record
from recorder.errors import InvalidState, NotFound, RecorderError
from recorder.exports.destinations import FileConflict, open_destination
from recorder.exports.formats import CARD, MANIFEST
from recorder.exports.requests.wire_objects import emit
from recorder.exports.runner.lease import Claim, ExportCancelled, lock_export
from recorder.exports.runner.quota import settle
from recorder.exports.runner.shard_store import read_shards
from recorder.models.export import ExportRow
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
