"""Manifest of an export: built from plan and files, and read back with its digest. Spec §2.5, contract §5."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from recorder import clock
from recorder.datasets.formats import MANIFEST
from recorder.datasets.schemas import describe_dataset_schema, fingerprint_dataset_schema
from recorder.errors import NotFound
from recorder.exports.destinations import Destination
from recorder.exports.planning.plan import Plan, list_library_versions
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.writers import WrittenShard
from recorder.hashing import compute_sha256
from recorder.models.export import ExportRow


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Changes of the sessions since the parent export, and since this one was planned."""

    #: The parent export, whose files may be copied; None where there is none.
    parent_id: str | None = None
    sessions_added: int = 0
    sessions_removed: int = 0
    #: Sessions of the parent, or of an earlier form of the plan, that were deleted.
    erased: int = 0
    deleted: int = 0
    expired: int = 0


@dataclass(frozen=True, kw_only=True)
class ExportFacts:
    """Members of the manifest about the export itself."""

    export_id: str
    workspace_id: str
    created_at: datetime
    tag: str | None
    revision: int = 1
    lineage: Lineage = field(default_factory=Lineage)


def build_manifest(
    export: ExportFacts, plan: Plan, shards: list[tuple[PlannedShard, WrittenShard]]
) -> dict[str, Any]:
    """Return the manifest of a finished export, a function of plan and files alone.

    Args:
        export: members about the export itself.
        plan: plan of the export.
        shards: planned and written shards, in the order of the plan.
    """
    return {
        "manifest_version": 1,
        "revision": export.revision,
        "export_id": export.export_id,
        "workspace_id": export.workspace_id,
        "created_at": clock.to_iso(export.created_at),
        "format": plan.format,
        "tag": export.tag,
        "spec": plan.spec,
        "spec_sha256": compute_sha256(plan.spec),
        "plan_sha256": compute_sha256(plan.to_json()),
        "row_set_sha256": plan.row_set_sha256(),
        "source": {
            "tables": {kind: {"delta_version": plan.versions[kind]} for kind in sorted(plan.versions)},
            "graph": plan.graph,
        },
        "totals": sum_manifest_totals(plan, [written for _, written in shards]),
        "schema": {
            kind: {
                "fingerprint": fingerprint_dataset_schema(kind, plan.format),
                "fields": describe_dataset_schema(kind, plan.format),
            }
            for kind in plan.file_format.kinds
        },
        "writer": list_library_versions(),
        "layout": {workflow: {"bucket_bits": bits} for workflow, bits in plan.bucket_bits.items()},
        "shards": [_make_shard_entry(index, *shard) for index, shard in enumerate(shards)],
        "parent": _describe_parent_export(export.lineage, [written for _, written in shards]),
        "tombstones": {
            "erased": export.lineage.erased,
            "deleted": export.lineage.deleted,
            "expired": export.lineage.expired,
        },
    }


def _describe_parent_export(lineage: Lineage, shards: list[WrittenShard]) -> dict[str, Any] | None:
    if lineage.parent_id is None:
        return None
    return {
        "export_id": lineage.parent_id,
        "sessions_added": lineage.sessions_added,
        "sessions_removed": lineage.sessions_removed,
        "shards_reused": sum(shard.reused_from is not None for shard in shards),
    }


def sum_manifest_totals(plan: Plan, shards: list[WrittenShard]) -> dict[str, int]:
    """Return the figures of the whole dataset; `rows` are events, or the samples of a WebDataset."""
    actions = "sample_actions" if plan.format == "webdataset" else "actions"
    return {
        "sessions": plan.sessions.height,
        "rows": plan.rows,
        "frames": int(plan.sessions["frames"].sum()),
        "actions": int(plan.sessions[actions].sum()),
        "bytes": sum(shard.size_bytes for shard in shards),
        "shards": len(shards),
    }


def _make_shard_entry(index: int, planned: PlannedShard, written: WrittenShard) -> dict[str, Any]:
    """Return the entry of a shard in the manifest."""
    return {
        "index": index,
        "kind": planned.kind,
        "workflow": planned.workflow,
        "bucket": planned.bucket,
        "split": planned.split,
        "path": written.path,
        "size_bytes": written.size_bytes,
        "rows": written.rows,
        "sessions": planned.sessions.height,
        "sha256": written.sha256,
        "content_key": planned.content_key,
        "reused_from": written.reused_from,
    }


_BYTES = 16 * 1024 * 1024
_BYTES_PER_SHARD = 2048


def read_own_manifest(destination: Destination, row: ExportRow) -> bytes:
    """Return the manifest that the export wrote.

    Anyone with rights to the bucket may replace the file, so it is read up to a bound and compared with the
    digest that was stored when it was written.

    Raises:
        NotFound: if there is none, or another file in its place.
        Unavailable: if the store does not answer.
    """
    most = _BYTES + _BYTES_PER_SHARD * (row.shards or 0)
    try:
        size = destination.size(MANIFEST)
        data = b"" if size > most else b"".join(destination.read_range(MANIFEST, 0, size))
    except KeyError as error:
        raise NotFound("manifest", f"The manifest of {row.id} is gone.") from error
    # A rewriting that was cut short may have put the next one there.
    if hashlib.sha256(data).hexdigest() not in (row.manifest_sha256, row.next_manifest_sha256):
        detail = f"The file in place of the manifest of {row.id} is not the one that the export wrote."
        raise NotFound("manifest", detail)
    return data
