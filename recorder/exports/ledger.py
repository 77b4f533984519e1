"""What an export is to write and what it has written: stored plan and shard rows. Design §3 (exports)."""

from collections.abc import Iterator
from contextlib import contextmanager

import zstandard
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.digest import sha256_of
from recorder.errors import QuotaExceeded
from recorder.exports.allowance import hold_rows
from recorder.exports.claims import Claim
from recorder.exports.manifest import WrittenShard
from recorder.exports.plan import Plan, PlannedShard
from recorder.models.export import ExportRow, ExportShardRow
from recorder.storage.blobs import Blobs


class Ledger:
    """The progress of one export, kept so that the next run can go on where one ended."""

    def __init__(self, claim: Claim, blobs: Blobs, *, workspace_id: str) -> None:
        self._claim = claim
        self._workspace_id = workspace_id
        self._blobs = blobs

    def load_plan(self) -> Plan | None:
        """The plan that an earlier run stored."""
        with self._claim.transaction() as (_, row):
            key = row.plan_key
        return None if key is None else Plan.from_json(zstandard.decompress(self._blobs.get(key)))

    def store_plan(self, plan: Plan, shards: list[PlannedShard]) -> list[str]:
        """Make this the export's plan; shards that stay the same stay done.

        Returns:
            Paths of shards that the plan before had, and that this one lacks or fills otherwise.

        Raises:
            QuotaExceeded: if it holds more rows than are left.
        """
        text = plan.to_json()
        sha256 = sha256_of(text)
        key = f"exports/{self._workspace_id}/{self._claim.export_id}/{sha256}.plan"
        # Named by its content, and there before the row that names it.
        self._blobs.put(key, zstandard.compress(text, 3))
        planned = {shard.path: shard for shard in shards}
        with self._discarded_if_refused(key), self._claim.transaction() as (db, row):
            hold_rows(db, row, plan.rows)
            before, row.plan_key, row.plan_sha256 = row.plan_key, key, sha256
            known = {shard.path: shard for shard in _rows(db, row.id)}
            stale = [shard for path, shard in known.items() if not _is_same(shard, planned.get(path))]
            for shard in stale:
                db.delete(known.pop(shard.path))
            db.flush()
            db.add_all(_row(row, shard) for path, shard in planned.items() if path not in known)
            row.shards_total = len(planned)
            row.shards_done = sum(shard.is_done for shard in known.values())
        if before is not None and before != key:
            self._blobs.delete(before)
        return [shard.path for shard in stale]

    @contextmanager
    def _discarded_if_refused(self, key: str) -> Iterator[None]:
        try:
            yield
        except QuotaExceeded:
            self._blobs.delete(key)
            raise

    def open_paths(self) -> set[str]:
        """Paths of the shards that are still to be written."""
        with self._claim.transaction() as (db, row):
            return {shard.path for shard in _rows(db, row.id) if not shard.is_done}

    def note(self, written: WrittenShard) -> None:
        """Take down a shard as done."""
        with self._claim.transaction() as (db, row):
            shard = db.get_one(ExportShardRow, (row.id, written.path))
            shard.is_done, shard.size_bytes, shard.sha256 = True, written.size_bytes, written.sha256
            db.add(shard)
            row.shards_done += 1

    def written(self) -> dict[str, WrittenShard]:
        """The shards that are done, by path."""
        with self._claim.transaction() as (db, row):
            return {
                shard.path: WrittenShard(shard.path, shard.rows, shard.size_bytes, shard.sha256)
                for shard in _rows(db, row.id)
                if shard.size_bytes is not None and shard.sha256 is not None
            }


def _rows(db: DbSession, export_id: str) -> list[ExportShardRow]:
    statement = select(ExportShardRow).where(ExportShardRow.export_id == export_id)
    return list(db.exec(statement.order_by(col(ExportShardRow.path))))


def _row(export: ExportRow, shard: PlannedShard) -> ExportShardRow:
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


def _is_same(row: ExportShardRow, planned: PlannedShard | None) -> bool:
    return planned is not None and planned.content_key == row.content_key
