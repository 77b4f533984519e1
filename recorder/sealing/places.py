"""Places of sealing runs: so many runs seal side by side. Design §3."""

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.outbox import LeaseRow
from recorder.storage.leases import HeldLease, hold_lease

_PREFIX = "seal-run:"


def take_place(db: DbSession, owner: str, *, runs: int, ttl_ms: int) -> HeldLease | None:
    """Take the first free place of a run; None where all are taken."""
    for number in range(runs):
        lease = hold_lease(db, f"{_PREFIX}{number}", owner, ttl_ms=ttl_ms)
        if lease is not None:
            return lease
    return None


def list_runs(db: DbSession) -> list[str]:
    """Return the names of the runs that hold a place now."""
    statement = select(LeaseRow.owner).where(
        col(LeaseRow.name).startswith(_PREFIX),
        col(LeaseRow.expires_ms) > clock.now_ms(),
    )
    return list(db.exec(statement))


def is_sealing(db: DbSession) -> bool:
    """Return whether any run holds a place."""
    return bool(list_runs(db))
