"""Idle work of a sealing run: hot rows leave SQL once the lake alone serves them; small files are joined."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlmodel import col, delete, select, update

from recorder import clock, limits
from recorder.access.idempotency import purge_expired
from recorder.models.event import BatchKeyRow, EventBatchRow, EventKeyRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import lane
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.leases import Lease

# Short transactions: on SQLite each one stands in the way of the API's writer.
_SWEEP_CHUNK = 20
_KEYS_CHUNK = 500


@dataclass(frozen=True)
class Maintenance:
    """What was tidied."""

    swept_sessions: int
    dropped_batch_keys: int
    dropped_answers: int
    compacted_files: int


def maintain(runtime: Runtime, lease: Lease, lanes: Iterable[tuple[str, str]]) -> Maintenance:
    """Sweep what is due, and compact the tables of these lanes.

    Raises:
        LeaseLost: if another run took over.
    """
    return Maintenance(
        swept_sessions=_sweep(runtime, lease),
        dropped_batch_keys=_drop_batch_keys(runtime, lease),
        dropped_answers=_drop_answers(runtime, lease),
        compacted_files=sum(
            runtime.lake.compact(kind, workspace_id, mode) for workspace_id, mode in lanes for kind in LAYOUTS
        ),
    )


def _sweep(runtime: Runtime, lease: Lease) -> int:
    swept = 0
    while True:
        with runtime.database.transaction(write=True) as db:
            lane.hold(db, lease)
            due = lane.due_for_sweep(db, limit=_SWEEP_CHUNK)
            for table in (EventBatchRow, EventKeyRow, FrameRow):
                db.exec(delete(table).where(col(table.session_id).in_(due)))
            db.exec(update(SessionRow).where(col(SessionRow.id).in_(due)).values(is_hot=False))
        swept += len(due)
        if len(due) < _SWEEP_CHUNK:
            return swept


def _drop_batch_keys(runtime: Runtime, lease: Lease) -> int:
    """Forget batch ids after the idempotency window."""
    before = clock.to_ms(clock.now() - timedelta(hours=limits.IDEMPOTENCY_HOURS))
    with runtime.database.transaction(write=True) as db:
        lane.hold(db, lease)
        old = db.exec(
            select(BatchKeyRow).where(col(BatchKeyRow.received_ms) < before).limit(_KEYS_CHUNK)
        ).all()
        for row in old:
            db.delete(row)
    return len(old)


def _drop_answers(runtime: Runtime, lease: Lease) -> int:
    """Forget the answers of keyed requests after the same window, also where no new ones come."""
    with runtime.database.transaction(write=True) as db:
        lane.hold(db, lease)
        return purge_expired(db, limit=_KEYS_CHUNK)
