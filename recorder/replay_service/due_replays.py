"""Dry replays that need work, and the order in which a run lists them. Design §3."""

from collections.abc import Collection, Sequence

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.replay import ReplayRow
from recorder.replay_service.recovery_search.recovery_work import list_due_recoveries
from recorder.replay_service.requests.replay_and_recovery_rows import make_undeleted_session_conditions
from recorder.replay_service.scheduling.waiting_rows_by_tenant import (
    DRY_REPLAYS_TO_RUN,
    LATE_DRY_REPLAYS,
    list_waiting_rows_by_tenant,
)
from recorder.storage.leases import is_lease_held
from recorder.storage.waiting_rows import WaitingRows
from recorder.tenant import Tenant

#: Lease of the run that replays.
LEASE = "replays"


def has_due_replays(db: DbSession) -> bool:
    """Return whether replays or recoveries wait and no run is at work."""
    if is_lease_held(db, LEASE, now_ms=clock.now_ms()):
        return False
    return bool(
        list_due_replays(db, limit=1) or list_late_replays(db, limit=1) or list_due_recoveries(db, limit=1)
    )


def list_due_replays(
    db: DbSession, *, limit: int, without: Collection[str] = (), full: Collection[Tenant] = ()
) -> list[ReplayRow]:
    """Return replays that can run: the oldest of each workspace first; those of suspended ones wait.

    Those that await a decision are passed over.

    Args:
        db: database session.
        limit: most replays.
        without: ids of replays to leave out.
        full: workspaces and modes to leave out.
    """
    due = [col(ReplayRow.id).not_in(without), *make_undeleted_session_conditions(ReplayRow)]
    return list_waiting_rows_by_tenant(db, DRY_REPLAYS_TO_RUN, due, limit=limit, full=full)


def list_late_replays(db: DbSession, *, limit: int) -> list[ReplayRow]:
    """Return replays whose time for a decision is over, of each active workspace some."""
    return list_waiting_rows_by_tenant(
        db, LATE_DRY_REPLAYS, make_undeleted_session_conditions(ReplayRow), limit=limit
    )


def lock_due_replays(db: DbSession, rows: Sequence[ReplayRow]) -> list[ReplayRow]:
    """Lock and return the replays among these that can still run, in order. Needs a write transaction."""
    return _lock_rows(db, rows, DRY_REPLAYS_TO_RUN)


def lock_late_replays(db: DbSession, rows: Sequence[ReplayRow]) -> list[ReplayRow]:
    """Lock and return the replays among these that still lack a decision. Needs a write transaction."""
    return _lock_rows(db, rows, LATE_DRY_REPLAYS)


def _lock_rows(db: DbSession, rows: Sequence[ReplayRow], kind: WaitingRows[ReplayRow]) -> list[ReplayRow]:
    """Lock and return the replays among these that still wait as this kind, in their order."""
    ids = [row.id for row in rows]
    statement = select(ReplayRow).where(
        col(ReplayRow.id).in_(ids), kind.make_conditions(), *make_undeleted_session_conditions(ReplayRow)
    )
    locked = {row.id: row for row in db.exec(statement.order_by(col(ReplayRow.id)).with_for_update())}
    return [locked[row_id] for row_id in ids if row_id in locked]
