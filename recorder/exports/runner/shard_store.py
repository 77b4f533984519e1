"""Shard store: stored plan and shards of an export, and its rows reserved in the quota.

Design §3, spec §8.2.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import cast

import zstandard
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.access.quota import reserve_quota_rows, settle_quota_rows
from recorder.datasets.formats import FORMATS, FormatName
from recorder.errors import QuotaExceeded
from recorder.exports.destinations import resolve_export_location
from recorder.exports.manifest_builder import Lineage
from recorder.exports.planning.plan import Plan
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.runner.export_lease import ExportCancelled, ExportClaim
from recorder.exports.runner.session_index import delete_session_index_rows, index_export_sessions
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.hashing import compute_sha256
from recorder.models.export import CLIENT_DESTINATIONS, ExportRow, ExportShardRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs


def reserve_plan_rows(db: DbSession, row: ExportRow, rows: int) -> None:
    """Reserve the rows of an export's plan; an earlier plan's reservation stays if it is large enough.

    Raises:
        QuotaExceeded: if fewer are left; the transaction must then be rolled back.
    """
    if row.reserved_rows is not None and row.reserved_rows < rows:
        settle_reserved_export_rows(db, row, exported=0)
    if row.reserved_period is None:
        row.reserved_period = reserve_quota_rows(db, row.tenant, rows)
        row.reserved_rows = rows


def settle_reserved_export_rows(db: DbSession, row: ExportRow, *, exported: int) -> None:
    """Count the rows of an export that ended, and end its reservation; a second call changes nothing."""
    if row.reserved_period is not None and row.reserved_rows is not None:
        settle_quota_rows(
            db, row.workspace_id, row.reserved_period, reserved=row.reserved_rows, exported=exported
        )
    row.reserved_rows = row.reserved_period = None


def count_delivered_shard_rows(db: DbSession, row: ExportRow) -> int:
    """Return the rows in finished shards of an export whose destination is the client's own; else 0.

    The client may have read those files before they are removed. Hosted and `local` files are the service's
    and the operator's.
    """
    if row.destination["kind"] not in CLIENT_DESTINATIONS:
        return 0
    counted = FORMATS[cast(FormatName, row.format)].kinds[0]
    return sum(shard.rows for shard in read_shard_rows(db, row.id) if shard.is_done and shard.kind == counted)


def store_export_plan(blobs: Blobs, plan: Plan, *, workspace_id: str, export_id: str) -> tuple[str, str]:
    """Store a plan under a name of its content, before the row that names it; return key and digest."""
    text = plan.to_json()
    sha256 = compute_sha256(text)
    key = f"{plan_folder(workspace_id, export_id)}{sha256}.plan"
    blobs.put(key, zstandard.compress(text, 3))
    return key, sha256


def plan_folder(workspace_id: str, export_id: str) -> str:
    """Return the folder of an export's plans in the blob store."""
    return f"exports/{workspace_id}/{export_id}/"


def delete_other_export_plans(blobs: Blobs, row: ExportRow) -> None:
    """Delete all plans of an export but the present one: they name sessions that were dropped."""
    for key in list(blobs.keys(plan_folder(row.workspace_id, row.id))):
        if key != row.plan_key:
            blobs.delete(key)


def make_task_of_stored_plan(
    runtime: Runtime, row: ExportRow, plan: Plan, shards: list[PlannedShard], *, replaces_files: bool = False
) -> ShardTask:
    """Return the task that writes some shards of an export's plan.

    Args:
        runtime: open stores of the rows and pictures.
        row: the export.
        plan: its stored plan.
        shards: shards that are read together.
        replaces_files: whether files with the same paths and other bytes are replaced.
    """
    return ShardTask(
        tenant=row.tenant,
        shards=shards,
        format=plan.format,
        sampling=plan.sampling,
        lake_url=runtime.lake.url,
        blob_url=runtime.blobs.url,
        cold_url=runtime.settings.cold_url,
        target=resolve_export_location(row, runtime.settings),
        replaces_files=replaces_files,
    )


class PlanTooLarge(Exception):
    """A stored plan is larger than its reader allows."""


def read_stored_export_plan(blobs: Blobs, key: str, *, most_bytes: int | None = None) -> Plan | None:
    """Return the plan of a key; None for one that another release stored.

    Args:
        blobs: store of the plans.
        key: key of the plan.
        most_bytes: largest compressed plan that is read.

    Raises:
        KeyError: if there is none.
        PlanTooLarge: if it has more bytes.
        Unavailable: if the store does not answer.
    """
    data = blobs.get(key, length=None if most_bytes is None else most_bytes + 1)
    if most_bytes is not None and len(data) > most_bytes:
        raise PlanTooLarge
    return Plan.from_json(zstandard.decompress(data))


def read_shard_rows(db: DbSession, export_id: str) -> list[ExportShardRow]:
    """Return the planned shards of an export, by path."""
    statement = select(ExportShardRow).where(ExportShardRow.export_id == export_id)
    return list(db.exec(statement.order_by(col(ExportShardRow.path))))


class ShardStore:
    """Stored progress of one export, from which the next run continues."""

    def __init__(self, claim: ExportClaim, blobs: Blobs, *, workspace_id: str) -> None:
        self._claim = claim
        self._workspace_id = workspace_id
        self._blobs = blobs

    def load_plan(self) -> Plan | None:
        """Return the plan that an earlier run stored; None if this run has to make one."""
        with self._claim.transaction() as (_, row):
            key = row.plan_key
        return None if key is None else read_stored_export_plan(self._blobs, key)

    def lineage(self) -> Lineage:
        """Return the lineage that was stored with the plan."""
        with self._claim.transaction() as (_, row):
            return Lineage(**row.lineage or {})

    def store_plan(
        self,
        plan: Plan,
        shards: list[PlannedShard],
        lineage: Lineage,
        *,
        dropped: Sequence[str] | None = None,
    ) -> None:
        """Make this the export's plan; shards that stay the same stay done.

        The files of the others must be gone: their rows are deleted, and nothing else names them.

        Args:
            plan: the plan.
            shards: shards of the plan.
            lineage: changes of the sessions.
            dropped: sessions that the stored plan has and this one lacks; None for the first plan.

        Raises:
            QuotaExceeded: if it has more rows than are left.
        """
        if dropped is None:
            # Before the plan: a purge finds every export that has the session.
            index_export_sessions(self._open_transaction, self._claim.export_id, plan.sessions["session_id"])
        key, sha256 = store_export_plan(
            self._blobs, plan, workspace_id=self._workspace_id, export_id=self._claim.export_id
        )
        planned = {shard.path: shard for shard in shards}
        with self._discard_plan_if_refused(key), self._claim.transaction() as (db, row):
            before, row.plan_key, row.plan_sha256 = row.plan_key, key, sha256
            row.lineage, row.progressed_attempt = asdict(lineage), row.attempt
            row.is_indexed = True
            delete_session_index_rows(db, row.id, dropped or ())
            known = {shard.path: shard for shard in read_shard_rows(db, row.id)}
            for shard in _list_stale_shard_rows(known.values(), shards):
                db.delete(known.pop(shard.path))
            db.flush()
            db.add_all(_make_shard_row(row, shard) for path, shard in planned.items() if path not in known)
            row.shards_total = len(planned)
            row.shards_done = sum(shard.is_done for shard in known.values())
            db.flush()
            # Last, since the row of the usage is locked until the commit: the ingest writer waits for it with
            # batches of all workspaces.
            reserve_plan_rows(db, row, plan.rows)
        if before is not None and before != key:
            self._blobs.delete(before)

    def has_other_shards(self, shards: list[PlannedShard]) -> bool:
        """Return whether the stored shards differ from those of a plan, in a path or in the content."""
        with self._claim.transaction() as (db, row):
            stored = {shard.path: shard.content_key for shard in read_shard_rows(db, row.id)}
        return stored != {shard.path: shard.content_key for shard in shards}

    def reopen_stale(self, shards: list[PlannedShard]) -> list[str]:
        """Store that files which a plan lacks or changes are not written; return their paths.

        Args:
            shards: shards of the plan.
        """
        with self._claim.transaction() as (db, row):
            stale = [shard.path for shard in _list_stale_shard_rows(read_shard_rows(db, row.id), shards)]
        self.reopen(set(stale))
        return stale

    @contextmanager
    def _open_transaction(self) -> Iterator[DbSession]:
        with self._claim.transaction() as (db, _):
            yield db

    @contextmanager
    def _discard_plan_if_refused(self, key: str) -> Iterator[None]:
        """Delete the stored plan if the block finds the quota spent or the export cancelled."""
        try:
            yield
        except (QuotaExceeded, ExportCancelled):
            self._blobs.delete(key)
            raise

    def list_unfinished_paths(self) -> set[str]:
        """Return the paths of the shards that are still to be written."""
        with self._claim.transaction() as (db, row):
            return {shard.path for shard in read_shard_rows(db, row.id) if not shard.is_done}

    def note(self, written: WrittenShard) -> None:
        """Store that a shard is done."""
        with self._claim.transaction() as (db, row):
            shard = db.get_one(ExportShardRow, (row.id, written.path))
            # A repeated task reports a file again.
            row.shards_done += not shard.is_done
            shard.is_done, shard.size_bytes, shard.sha256 = True, written.size_bytes, written.sha256
            shard.reused_from = written.reused_from
            db.add(shard)
            row.progressed_attempt = row.attempt

    def reopen(self, paths: set[str]) -> None:
        """Store that some shards are still to be written."""
        with self._claim.transaction() as (db, row):
            for shard in read_shard_rows(db, row.id):
                if shard.path in paths:
                    row.shards_done -= shard.is_done
                    shard.is_done, shard.reused_from = False, None
                    db.add(shard)

    def written(self) -> dict[str, WrittenShard]:
        """Return the shards that are done, by path."""
        with self._claim.transaction() as (db, row):
            return {
                shard.path: done
                for shard in read_shard_rows(db, row.id)
                if (done := written_shard_of_row(shard))
            }


def written_shard_of_row(shard: ExportShardRow) -> WrittenShard | None:
    """Return the written file of a shard's row; None before it is done."""
    if shard.size_bytes is None or shard.sha256 is None:
        return None
    return WrittenShard(shard.path, shard.rows, shard.size_bytes, shard.sha256, shard.reused_from)


def _make_shard_row(export: ExportRow, shard: PlannedShard) -> ExportShardRow:
    return ExportShardRow(
        export_id=export.id,
        path=shard.path,
        kind=shard.kind,
        workflow=shard.workflow,
        bucket=shard.bucket,
        content_key=shard.content_key,
        rows=shard.rows,
        sessions=shard.sessions.height,
    )


def _list_stale_shard_rows(
    rows: Iterable[ExportShardRow], planned: Iterable[PlannedShard]
) -> list[ExportShardRow]:
    """Return the rows of shards that a plan lacks or has with other content."""
    keys = {shard.path: shard.content_key for shard in planned}
    return [row for row in rows if keys.get(row.path) != row.content_key]
