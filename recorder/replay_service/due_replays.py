"""Dry replays that need work, and the order in which a run lists them. Design §3."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, func, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.replay import ReplayRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.recovery_work import list_due_recoveries
from recorder.replay_service.rows import undeleted_session_conditions
from recorder.storage.conditions import in_tenant
from recorder.storage.leases import is_lease_held
from recorder.tenant import Tenant

#: Lease of the run that replays.
LEASE = "replays"


def has_waiting_replays(db: DbSession) -> bool:
    """Return whether replays or recoveries wait and no run is at work."""
    if is_lease_held(db, LEASE, now_ms=clock.now_ms()):
        return False
    has_replays = db.exec(select(ReplayRow.id).where(*_due_conditions()).limit(1)).first() is not None
    return has_replays or bool(list_due_recoveries(db, limit=1))


def _due_conditions() -> list[Any]:
    """Return the conditions of dry replays that need work; those of suspended workspaces wait."""
    active = select(WorkspaceRow.id).where(col(WorkspaceRow.status) == "active")
    return [
        ReplayRow.sandbox == "dry",
        col(ReplayRow.finished_at).is_(None),
        or_(col(ReplayRow.awaiting_step).is_(None), col(ReplayRow.awaiting_until) <= clock.now()),
        col(ReplayRow.workspace_id).in_(active),
        *undeleted_session_conditions(ReplayRow),
    ]


def list_due_replays(
    db: DbSession, *, limit: int, without: Sequence[str], full: Sequence[Tenant] = ()
) -> list[ReplayRow]:
    """Lock and return replays that need work: the oldest of each workspace first.

    Args:
        db: a write transaction.
        limit: most replays.
        without: ids of replays to leave out.
        full: workspaces and modes to leave out.
    """
    tenant = (col(ReplayRow.workspace_id), col(ReplayRow.mode))
    turn = func.row_number().over(partition_by=tenant, order_by=col(ReplayRow.id)).label("turn")
    others = [~and_(*in_tenant(ReplayRow, tenant)) for tenant in full]
    due = select(ReplayRow.id, turn).where(*_due_conditions(), col(ReplayRow.id).not_in(without), *others)
    turns = due.subquery()
    statement = (
        select(ReplayRow)
        .join(turns, turns.c.id == ReplayRow.id)
        .order_by(turns.c.turn, turns.c.id)
        .limit(limit)
        .with_for_update(of=ReplayRow)
    )
    return list(db.exec(statement))
