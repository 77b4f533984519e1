"""Expiry of hosted exports: their files are deleted 30 days after they were completed. Contract §5."""

from datetime import datetime, timedelta
from functools import partial

from sqlmodel import Session as DbSession
from sqlmodel import and_, col, or_, select

from recorder import limits
from recorder.datasets.formats import CARD, MANIFEST
from recorder.exports.destinations import open_destination
from recorder.exports.runner.export_lease import ExportBusy, ExportClaim, claim_export
from recorder.exports.runner.session_index import delete_export_index_rows
from recorder.exports.runner.shard_store import plan_folder, read_shard_rows
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease

_HOSTED = timedelta(days=limits.HOSTED_EXPORT_DAYS)


def list_expired_exports(db: DbSession, *, at: datetime, workspace_id: str) -> list[ExportRow]:
    """Return the hosted exports of a workspace whose files are due to be deleted at an instant.

    Failed ones are among them if the runs that had to remove their files could not.
    """
    # The plan goes last: an export that still has one was not cleaned up to the end.
    has_plan = col(ExportRow.plan_key).is_not(None)
    is_expired = and_(
        col(ExportRow.status) == "completed",
        col(ExportRow.completed_at) <= at - _HOSTED,
        or_(col(ExportRow.expired_at).is_(None), has_plan),
    )
    is_left = and_(col(ExportRow.status) == "failed", col(ExportRow.files_left).is_not(True), has_plan)
    statement = select(ExportRow).where(ExportRow.workspace_id == workspace_id, or_(is_expired, is_left))
    rows = db.exec(statement.order_by(col(ExportRow.id)))
    return [row for row in rows if row.destination["kind"] == "signed_url"]


def count_expired_export_bytes(db: DbSession, export_id: str) -> int:
    """Return the size of an export's shards."""
    return sum(shard.size_bytes or 0 for shard in read_shard_rows(db, export_id))


def delete_expired_export_files(runtime: Runtime, held: HeldLease, export_id: str, *, at: datetime) -> bool:
    """Delete the files and the plan of a hosted export; from the first moment they are no longer served.

    Args:
        runtime: the deployment.
        held: lease of the caller's run.
        export_id: a completed hosted export, or a failed one whose files no run removes any more.
        at: time of the deletion.

    Returns:
        Whether they are deleted; an export that is rewritten at the moment is left to a later call.

    Raises:
        LeaseLost: if another run took the lease.
        Unavailable: if the store does not answer; the next call deletes the rest.
    """
    owner = f"{held.lease.owner}-{held.fence}"
    try:
        with held.transaction(runtime.database) as db:
            claim = claim_export(runtime.database, db, export_id, owner=owner, lease_ms=held.ttl_ms)
    except ExportBusy:
        return False
    try:
        with claim.kept_alive():
            delete_claimed_export_files(runtime, claim, at=at)
    finally:
        claim.give_back()
    return True


def delete_claimed_export_files(runtime: Runtime, claim: ExportClaim, *, at: datetime) -> None:
    """Delete the files and the plan of a hosted export that the caller has claimed.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the store does not answer; the next call deletes the rest.
    """
    with claim.transaction_in_any_status() as (db, row):
        if row.status == "completed":
            row.expired_at = row.expired_at or at
        paths = [shard.path for shard in read_shard_rows(db, row.id)]
    destination = open_destination(row, runtime.settings)
    for path in (MANIFEST, CARD, *paths):
        claim.require_lease()
        destination.remove(path)
    destination.remove_unfinished_files()
    runtime.blobs.delete_below(plan_folder(row.workspace_id, row.id))
    delete_export_index_rows(partial(claim.lease.transaction, runtime.database), row.id)
    with claim.transaction_in_any_status() as (_, row):
        row.plan_key = None
