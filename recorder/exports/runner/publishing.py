"""The last step of an export: its card and its manifest, which makes the files a dataset. Spec §2.5."""

from recorder import clock
from recorder.errors import InvalidDestination
from recorder.exports.card import dataset_card, read_statistics
from recorder.exports.destinations import Destination, FileConflict
from recorder.exports.formats import CARD, MANIFEST
from recorder.exports.manifest import ExportFacts, build_manifest, manifest_bytes
from recorder.exports.planning.plan import Plan
from recorder.exports.planning.selection import find_gone
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.requests.wire_objects import emit
from recorder.exports.runner.lease import Claim
from recorder.exports.runner.quota import settle
from recorder.exports.runner.shard_store import Ledger
from recorder.models.export import ExportRow
from recorder.runtime import Runtime


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
    manifest_sha256 = _put(claim, destination, MANIFEST, manifest_bytes(manifest))
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
