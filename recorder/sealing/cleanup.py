"""Cleanup after sealing: sweep of hot rows, expired answers, done batches, compaction.

Design §3.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import tuple_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import clock
from recorder.access.idempotency_keys import delete_expired_keyed_answers
from recorder.errors import RecorderError
from recorder.models.operations import SealBatchRow
from recorder.runtime import Runtime
from recorder.sealing.lanes import has_waiting_sessions
from recorder.sealing.portions import RequireLease, discard_leftover_portions
from recorder.sealing.sweep import SweepCounts, has_rows_to_sweep, sweep_hot_rows
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.storage.leases import HeldLease, lease_for_block
from recorder.tenant import Tenant

log = logging.getLogger("recorder.sealing")

# Short transactions: on SQLite each one blocks the API's writer.
_KEYS_CHUNK = 500
_BATCHES_CHUNK = 500
_LEASE = "seal-maintenance"
_LEASE_MS = 120_000
_DONE_BATCHES_KEPT = timedelta(days=1)


def has_sealing_work(db: DbSession) -> bool:
    """Return whether a session waits to be sealed, or hot rows wait to be swept."""
    return has_waiting_sessions(db) or has_rows_to_sweep(db)


@dataclass(frozen=True)
class CleanupCounts:
    """Counts of the changes of one cleanup."""

    swept_sessions: int = 0
    requeued_sessions: int = 0
    dropped_answers: int = 0
    compacted_files: int = 0
    #: Whether hot rows were left because the time of the sweep was over.
    is_sweep_cut: bool = False


def clean_up_after_sealing(runtime: Runtime, owner: str, tenants: Iterable[Tenant]) -> CleanupCounts:
    """Delete hot rows and old keys, and compact tables, except for work that another run does now.

    The sweep has a bounded time, so that a backlog of hot rows delays nothing else.

    Args:
        runtime: the deployment.
        owner: name of the run.
        tenants: tenants with tables to compact. A table that fails stops no other one.
    """
    sweep, answers, compacted = SweepCounts(), 0, 0
    with lease_for_block(runtime.database, _LEASE, owner, ttl_ms=_LEASE_MS) as held:
        if held is not None:
            answers = _delete_expired_answers(runtime, held.require)
            _delete_done_batches(runtime, held.require)
            sweep = sweep_hot_rows(runtime, held.require)
            discard_leftover_portions(runtime, held.require)
    for tenant in sorted(tenants):
        for kind in LAYOUTS:
            try:
                compacted += _compact_table_in_cleanup(runtime, owner, tenant, kind)
            except Exception as error:
                trace = None if isinstance(error, RecorderError) else error
                log.warning("the %s of %s are compacted later: %r", kind, tenant, error, exc_info=trace)
    return CleanupCounts(sweep.swept, sweep.requeued, answers, compacted, sweep.is_cut)


def name_table_cleanup_lease(kind: LakeKind, tenant: Tenant) -> str:
    """Return the name of the lease under which files of a lake table are joined or deleted as unused."""
    return f"lake:{tenant.workspace_id}:{tenant.mode}:{kind}"


def _compact_table_in_cleanup(runtime: Runtime, owner: str, tenant: Tenant, kind: LakeKind) -> int:
    name = name_table_cleanup_lease(kind, tenant)
    with lease_for_block(runtime.database, name, owner, ttl_ms=_LEASE_MS) as held:
        if held is None:
            return 0
        return runtime.lake.compact(kind, tenant, check=partial(_check_cleanup_lease, runtime, held))


def _check_cleanup_lease(runtime: Runtime, held: HeldLease) -> None:
    """Check and renew a lease between two files of a compaction.

    Raises:
        LeaseLost: if another run took the lease.
    """
    with runtime.database.transaction(write=True) as db:
        held.require(db)


def _delete_expired_answers(runtime: Runtime, require_lease: RequireLease) -> int:
    """Delete the stored answers of keyed requests after their window, even without new requests."""
    with runtime.database.transaction(write=True) as db:
        require_lease(db)
        return delete_expired_keyed_answers(db, limit=_KEYS_CHUNK)


def _delete_done_batches(runtime: Runtime, require_lease: RequireLease) -> None:
    """Delete batches that were done a day ago, in short transactions: under load a pass is rare."""
    before: datetime = clock.now() - _DONE_BATCHES_KEPT
    batch = SealBatchRow
    key = (col(batch.workspace_id), col(batch.mode), col(batch.slot), col(batch.number))
    done = select(*key).where(batch.state == "done", col(batch.created_at) < before).limit(_BATCHES_CHUNK)
    deleted = _BATCHES_CHUNK
    while deleted == _BATCHES_CHUNK:
        with runtime.database.transaction(write=True) as db:
            require_lease(db)
            deleted = db.exec(delete(batch).where(tuple_(*key).in_(done))).rowcount
