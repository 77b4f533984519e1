"""Rewriting of a completed export without purged sessions: touched files, card, manifest, plan. Contract §7.

Everything is computed from the stored plan and rows, so that a rewriting that was killed is done again by the
next one. A file is replaced whole, or not at all; the row names the next manifest before it is written.
"""

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import orjson
import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.datasets.formats import CARD, MANIFEST
from recorder.datasets.manifest import format_manifest
from recorder.datasets.schemas import fingerprint_dataset_schema
from recorder.exports.card import dataset_card, read_statistics
from recorder.exports.destinations import Destination, open_destination
from recorder.exports.executor import open_executor
from recorder.exports.manifest_builder import ExportFacts, Lineage, build_manifest, read_own_manifest
from recorder.exports.planning.plan import Plan, plan_without_sessions
from recorder.exports.planning.sharding import PlannedShard, group_neighbouring_shards, plan_shards
from recorder.exports.runner.export_lease import ExportClaim
from recorder.exports.runner.session_index import delete_session_index_rows, has_indexed_session
from recorder.exports.runner.shard_store import (
    delete_other_export_plans,
    make_task_of_stored_plan,
    read_shard_rows,
    store_export_plan,
    written_shard_of_row,
)
from recorder.exports.writers import WrittenShard
from recorder.models.export import ExportRow, ExportShardRow
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.runtime import Runtime

#: Members of the manifest that a rewriting changes; the others are those of the first revision.
_CHANGED = (
    "revision",
    "plan_sha256",
    "row_set_sha256",
    "totals",
    "shards",
    "parent",
    "tombstones",
)
#: Members that it changes too if it writes all files again: they may be of an earlier release.
_OF_ALL_FILES = ("schema", "writer")


@dataclass(frozen=True)
class _Files:
    """Files of an export before and after, and those among them that had a dropped session."""

    planned: list[PlannedShard]
    rewritten: set[str]
    removed: set[str]


def rewrite_export(runtime: Runtime, claim: ExportClaim, plan: Plan, purged: dict[str, str]) -> None:
    """Write the files of a completed export that have purged sessions again, without these.

    Args:
        runtime: the deployment.
        claim: claim of the export.
        plan: the stored plan of the export.
        purged: sessions whose purge has begun, with its cause.

    Raises:
        NotFound: if the manifest is missing, or another file is in its place.
        LeaseLost: if another run took over.
        Unavailable: if a store does not answer.
    """
    dropped = sorted(set(plan.sessions["session_id"]) & purged.keys())
    with claim.transaction_in_any_status() as (_, row):
        pass
    if dropped:
        _Rewriting(runtime, claim, row).write(plan, {name: purged[name] for name in dropped})
    with claim.transaction_in_any_status() as (_, row):
        pass
    delete_other_export_plans(runtime.blobs, row)
    with claim.transaction_in_any_status() as (db, _):
        delete_session_index_rows(db, row.id, sorted(purged))


class _Rewriting:
    """The work of one rewriting, under a claim of the export."""

    def __init__(self, runtime: Runtime, claim: ExportClaim, row: ExportRow) -> None:
        self._runtime = runtime
        self._claim = claim
        self._row = row

    def write(self, plan: Plan, dropped: dict[str, str]) -> None:
        """Replace the touched files, then card and manifest, and store the new state."""
        runtime, row = self._runtime, self._row
        destination = open_destination(row, runtime.settings)
        destination.require_owner()
        text = read_own_manifest(destination, row)
        document: dict[str, Any] = orjson.loads(text)
        shorter = plan_without_sessions(plan, dropped)
        files = _compare_rewritten_files(plan, shorter, dropped, document)
        written = self._write_shards(shorter, files)
        lineage = self._make_lineage(dropped)
        with runtime.database.transaction(write=False) as db:
            known = {shard.path: shard for shard in read_shard_rows(db, row.id)}
        manifest = document | self._build_changes(shorter, files, written, known, lineage)
        data = format_manifest(manifest)
        self._announce_manifest(current=text, following=data)
        card = dataset_card(manifest, read_statistics(runtime.lake, row.tenant, shorter))
        self._replace_file(destination, CARD, card.encode())
        self._replace_file(destination, MANIFEST, data)
        for path in sorted(files.removed):
            self._claim.require_lease()
            destination.remove(path)
        destination.remove_unfinished_files()
        key, sha256 = store_export_plan(
            runtime.blobs, shorter, workspace_id=row.workspace_id, export_id=row.id
        )
        dropped_by_file = {
            shard.path: set(shard.sessions["session_id"]) & dropped.keys() for shard in plan_shards(plan)
        }
        self._store_state(
            manifest,
            data,
            plan=(key, sha256),
            lineage=lineage,
            written=written,
            dropped_by_file=dropped_by_file,
        )

    def _write_shards(self, plan: Plan, files: _Files) -> dict[str, WrittenShard]:
        """Write the touched files that still have sessions; each replaces the old one when it is whole."""
        executor = open_executor(self._runtime.settings.export_executor)
        to_write = [shard for shard in files.planned if shard.path in files.rewritten]
        tasks = [
            make_task_of_stored_plan(self._runtime, self._row, plan, portion, replaces_files=True)
            for portion in group_neighbouring_shards(to_write)
        ]
        written = {}
        self._claim.require_lease()
        for file in executor.run(tasks):
            self._claim.require_lease()
            written[file.path] = file
        return written

    def _make_lineage(self, dropped: dict[str, str]) -> Lineage:
        """Return the lineage with more tombstones; sessions that the parent never had are no longer added."""
        lineage = Lineage(**self._row.lineage or {})
        parent_id = lineage.parent_id
        added = 0
        if parent_id is not None:
            with self._runtime.database.transaction(write=False) as db:
                # Exports are rewritten from the newest to the oldest: the parent's rows are still there.
                # Once its files were deleted after their 30 days, its sessions are not known any more.
                parent = db.get(ExportRow, parent_id)
                if parent is not None and parent.plan_key is not None:
                    added = sum(not has_indexed_session(db, parent_id, session_id) for session_id in dropped)
        causes = list(dropped.values())
        expired = causes.count("retention") + causes.count("test_expiry")
        erased = causes.count("erasure")
        return replace(
            lineage,
            sessions_added=max(0, lineage.sessions_added - added),
            erased=lineage.erased + erased,
            expired=lineage.expired + expired,
            deleted=lineage.deleted + len(causes) - expired - erased,
        )

    def _build_changes(
        self,
        plan: Plan,
        files: _Files,
        written: dict[str, WrittenShard],
        known: dict[str, ExportShardRow],
        lineage: Lineage,
    ) -> dict[str, Any]:
        """Return the columns of the export's row that its next revision changes, with the manifest."""
        shards = []
        for shard in files.planned:
            file = written.get(shard.path)
            if file is None:
                # Written by an earlier release, perhaps: the key of its bytes stays.
                shard = replace(shard, content_key=known[shard.path].content_key)
                file = written_shard_of_row(known[shard.path])
            assert file is not None
            shards.append((shard, file))
        row = self._row
        facts = ExportFacts(
            export_id=row.id,
            workspace_id=row.workspace_id,
            created_at=row.created_at,
            tag=row.tag,
            revision=row.revision + 1,
            lineage=lineage,
        )
        built = build_manifest(facts, plan, shards)
        are_all_rewritten = all(shard.path in written for shard in files.planned)
        return {name: built[name] for name in (*_CHANGED, *(_OF_ALL_FILES if are_all_rewritten else ()))}

    def _announce_manifest(self, *, current: bytes, following: bytes) -> None:
        """Store the digests of the manifest that is there and of the one that follows."""
        with self._claim.transaction_in_any_status() as (_, row):
            row.manifest_sha256 = hashlib.sha256(current).hexdigest()
            row.next_manifest_sha256 = hashlib.sha256(following).hexdigest()

    def _replace_file(self, destination: Destination, path: str, data: bytes) -> None:
        self._claim.require_lease()
        with destination.create(path, replace=True) as file:
            file.write(data)

    def _store_state(
        self,
        manifest: dict[str, Any],
        data: bytes,
        *,
        plan: tuple[str, str],
        lineage: Lineage,
        written: dict[str, WrittenShard],
        dropped_by_file: dict[str, set[str]],
    ) -> None:
        """Store the state after the change, and count the files in which erasures found sessions.

        Args:
            manifest: the new manifest.
            data: its text.
            plan: key and digest of the new plan.
            lineage: the new lineage.
            written: files that were written again.
            dropped_by_file: dropped sessions by the file that had them.
        """
        entries = {entry["path"]: entry for entry in manifest["shards"]}
        totals = manifest["totals"]
        with self._claim.transaction_in_any_status() as (db, row):
            for shard in read_shard_rows(db, row.id):
                entry = entries.get(shard.path)
                if entry is None:
                    db.delete(shard)
                elif shard.path in written:
                    _update_rewritten_shard(shard, entry)
                    db.add(shard)
            row.plan_key, row.plan_sha256 = plan
            row.lineage, row.revision = asdict(lineage), manifest["revision"]
            row.rows, row.frames, row.actions = totals["rows"], totals["frames"], totals["actions"]
            row.shards = row.shards_total = row.shards_done = totals["shards"]
            row.shard_size_bytes = max((entry["size_bytes"] for entry in entries.values()), default=0)
            row.row_set_sha256 = manifest["row_set_sha256"]
            row.manifest_sha256 = hashlib.sha256(data).hexdigest()
            row.next_manifest_sha256 = None
            _count_rewritten_shards(db, dropped_by_file)


def _count_rewritten_shards(db: DbSession, dropped_by_file: dict[str, set[str]]) -> None:
    """Add to the counts of erasures the files that had their sessions, once each."""
    ids = sorted(set().union(*dropped_by_file.values()))
    purges = select(PurgeRow.session_id, PurgeRow.erasure_id).where(col(PurgeRow.session_id).in_(ids))
    erasures = dict(db.exec(purges).all())
    counts = Counter(
        erasure_id
        for session_ids in dropped_by_file.values()
        for erasure_id in {erasures.get(session_id) for session_id in session_ids} - {None}
    )
    locked = select(ErasureRow).where(col(ErasureRow.id).in_(counts)).order_by(col(ErasureRow.id))
    for erasure in db.exec(locked.with_for_update().execution_options(populate_existing=True)):
        erasure.counts = dict(Counter(erasure.counts) + Counter(shards=counts[erasure.id]))
        db.add(erasure)


def _compare_rewritten_files(
    plan: Plan, shorter: Plan, dropped: dict[str, str], document: dict[str, Any]
) -> _Files:
    """Return the files after the change; where this release has other columns, all are written again."""
    is_dropped = partial(pl.Series.is_in, other=list(dropped))
    before = plan_shards(plan)
    touched = {shard.path for shard in before if is_dropped(shard.sessions["session_id"]).any()}
    if any(
        document["schema"][kind]["fingerprint"] != fingerprint_dataset_schema(kind, plan.format)
        for kind in plan.file_format.kinds
    ):
        touched = {shard.path for shard in before}
    planned = plan_shards(shorter)
    left = {shard.path for shard in planned}
    return _Files(planned, rewritten=touched & left, removed=touched - left)


def _update_rewritten_shard(shard: ExportShardRow, entry: dict[str, Any]) -> None:
    shard.content_key, shard.reused_from = entry["content_key"], entry["reused_from"]
    shard.rows, shard.sessions = entry["rows"], entry["sessions"]
    shard.size_bytes, shard.sha256 = entry["size_bytes"], entry["sha256"]
