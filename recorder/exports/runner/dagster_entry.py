"""Exports that an operator starts or calls off at Dagster's pages. Spec §4.3."""

from recorder.audit.log import Origin, record
from recorder.exports.requests.queue import probe_destination, require_known, store_export
from recorder.exports.requests.validation import draft_export
from recorder.exports.runner.finalize import end_as_failed
from recorder.exports.runner.lease import ExportCancelled, claim_export, is_over, lock_export
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.runtime import Runtime
from recorder.tenant import Tenant


def _at_dagster(workspace_id: str) -> Origin:
    """Whoever works at Dagster's pages, which know no names."""
    return Origin(workspace_id, "operator", "dagster")


def queue_export(runtime: Runtime, tenant: Tenant, body: ExportCreate, *, owner: str) -> str:
    """Make an export for a run that begins at once; no other run can take it up in between.

    Returns:
        Its id, for `run_export` with the same owner.
    """
    draft = draft_export(tenant, body)
    with runtime.database.transaction(write=False) as db:
        require_known(db, draft)
    probe_destination(draft, runtime.settings)
    with runtime.database.transaction(write=True) as db:
        row = store_export(db, runtime.settings, draft, origin=_at_dagster(tenant.workspace_id))
        claim_export(runtime.database, db, row.id, owner=owner)
    return row.id


def cancel_export(runtime: Runtime, export_id: str, *, owner: str) -> None:
    """End an export whose run was cancelled; a finished one stays as it is.

    No store is asked: what the run wrote is taken away by the next run (`files_left`).

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
            origin = _at_dagster(row.workspace_id)
            record(db, origin, "export.cancel", resource_type="export", resource_id=export_id)
        claim.lease.release(db)
