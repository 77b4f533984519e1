"""Dry replays that need work, and the order in which a run lists them. Design §3."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.replay import ReplayRow
from recorder.replay_service.recovery_search.recovery_work import list_due_recoveries
from recorder.replay_service.requests.replay_rows import undeleted_session_conditions
from recorder.replay_service.scheduling.open_tenants import list_first_rows
from recorder.storage.leases import is_lease_held
from recorder.tenant import Tenant

#: Lease of the run that replays.
LEASE = "replays"


def has_waiting_replays(db: DbSession) -> bool:
    """Return whether replays or recoveries wait and no run is at work."""
    if is_lease_held(db, LEASE, now_ms=clock.now_ms()):
        return False
    return bool(list_due_replays(db, limit=1) or list_due_recoveries(db, limit=1))


def list_due_replays(
    db: DbSession, *, limit: int, without: Collection[str] = (), full: Collection[Tenant] = ()
) -> list[ReplayRow]:
    """Return replays that need work: the oldest of each workspace first; those of suspended ones wait.

    Args:
        db: database session.
        limit: most replays.
        without: ids of replays to leave out.
        full: workspaces and modes to leave out.
    """
    due = [*_due_conditions(), col(ReplayRow.id).not_in(without)]
    return list_first_rows(db, ReplayRow, due, limit=limit, full=full)


def lock_due_replays(db: DbSession, rows: Sequence[ReplayRow]) -> list[ReplayRow]:
    """Lock and return those of some replays that need work, in their order. Needs a write transaction."""
    ids = [row.id for row in rows]
    statement = select(ReplayRow).where(col(ReplayRow.id).in_(ids), *_due_conditions())
    locked = {row.id: row for row in db.exec(statement.order_by(col(ReplayRow.id)).with_for_update())}
    return [locked[row_id] for row_id in ids if row_id in locked]


def _due_conditions() -> list[Any]:
    """Return the conditions of dry replays that need work."""
    return [
        ReplayRow.sandbox == "dry",
        col(ReplayRow.finished_at).is_(None),
        or_(col(ReplayRow.awaiting_step).is_(None), col(ReplayRow.awaiting_until) <= clock.now()),
        *undeleted_session_conditions(ReplayRow),
    ]
