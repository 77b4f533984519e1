"""Leases with a fencing number: who may do a piece of work, checked again at its commit."""

from dataclasses import dataclass

from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder.models.outbox import LeaseRow
from recorder.storage.upsert import insert_if_missing


@dataclass(frozen=True)
class Lease:
    """A right that was taken: work under it carries its `fence`."""

    name: str
    owner: str
    fence: int


def take_lease(db: DbSession, name: str, owner: str, *, now_ms: int, ttl_ms: int) -> Lease | None:
    """Take a free or expired lease; None while another owner holds it. Needs a write transaction."""
    if db.get(LeaseRow, name) is None:
        # Of two who take it for the first time at once, one inserts the row and both go on to lock it.
        insert_if_missing(db, LeaseRow, {"name": name, "owner": "", "fence": 0, "expires_ms": 0})
    locked = select(LeaseRow).where(LeaseRow.name == name).with_for_update()
    row = db.exec(locked.execution_options(populate_existing=True)).one()
    if row.owner != owner and row.expires_ms > now_ms:
        return None
    row.owner, row.fence, row.expires_ms = owner, row.fence + 1, now_ms + ttl_ms
    db.add(row)
    db.flush()
    return Lease(name, owner, row.fence)


def renew_lease(db: DbSession, lease: Lease, *, now_ms: int, ttl_ms: int, only_if_held: bool = False) -> bool:
    """Hold on to a lease; False once another owner took it. Call it in the transaction it guards.

    Args:
        only_if_held: leave a lease alone that was released.
    """
    statement = (
        update(LeaseRow)
        .where(col(LeaseRow.name) == lease.name, col(LeaseRow.fence) == lease.fence)
        .values(expires_ms=now_ms + ttl_ms)
    )
    if only_if_held:
        statement = statement.where(col(LeaseRow.expires_ms) > 0)
    return bool(db.connection().execute(statement).rowcount)


def release_lease(db: DbSession, lease: Lease) -> None:
    """Give a lease back, so that the next owner need not wait until it runs out."""
    renew_lease(db, lease, now_ms=0, ttl_ms=0)


def is_lease_held(db: DbSession, name: str, *, now_ms: int) -> bool:
    """Whether somebody holds this lease now."""
    row = db.get(LeaseRow, name)
    return row is not None and row.expires_ms > now_ms
