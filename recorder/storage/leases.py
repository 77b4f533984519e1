"""Leases with a fencing number: exclusive rights to pieces of work, checked again at the commit. Design §3.

A run takes a lease, a thread renews it while the work goes on, and every transaction that writes checks it.
Each time a lease is taken its fencing number rises, so a run whose lease expired and was taken by another
run cannot commit. Two kinds of work are claimed by columns of their own rows instead: deliveries (`due_ms`),
of which hundreds are claimed in one statement, and ticks of recipes (`next_at`), whose work ends in the
claiming transaction.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from sqlalchemy import ColumnElement
from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder import clock
from recorder.errors import Conflict
from recorder.models.operations import LeaseRow
from recorder.storage.database import Database
from recorder.storage.upsert import insert_if_missing

log = logging.getLogger("recorder.leases")

#: Longest time for which a lease is taken. One that ends later was taken before the clock was set back, and
#: is free: its process may have been killed long ago. If it lives, its next transaction is refused.
LONGEST_TTL_MS = 300_000


class LeaseLost(Conflict):
    """The lease of a piece of work expired and another run took it; this run must not write."""

    code = "lease_lost"

    def __init__(self) -> None:
        super().__init__("The lease of this work ran out and another run took it; the other run goes on.")


@dataclass(frozen=True)
class Lease:
    """Lease that was taken; work under it carries its `fence`."""

    name: str
    owner: str
    fence: int


def take_lease(db: DbSession, name: str, owner: str, *, now_ms: int, ttl_ms: int) -> Lease | None:
    """Take a free or expired lease in a write transaction; return None while another owner holds it.

    Raises:
        ValueError: if it would be taken for longer than `LONGEST_TTL_MS`.
    """
    if ttl_ms > LONGEST_TTL_MS:
        raise ValueError(f"A lease is taken for at most {LONGEST_TTL_MS} ms.")
    if db.get(LeaseRow, name) is None:
        # If two owners take it for the first time at once, one inserts the row and both then lock it.
        insert_if_missing(db, LeaseRow, {"name": name, "owner": "", "fence": 0, "expires_ms": 0})
    locked = select(LeaseRow).where(LeaseRow.name == name).with_for_update()
    row = db.exec(locked.execution_options(populate_existing=True)).one()
    if row.owner != owner and is_unexpired(row, now_ms):
        return None
    row.owner, row.fence, row.expires_ms = owner, row.fence + 1, now_ms + ttl_ms
    db.add(row)
    db.flush()
    return Lease(name, owner, row.fence)


def renew_lease(db: DbSession, lease: Lease, *, now_ms: int, ttl_ms: int, only_if_held: bool = False) -> bool:
    """Renew a lease in the transaction that it guards; return False once another owner took it.

    Args:
        db: a write transaction.
        lease: the lease.
        now_ms: the time of the renewal.
        ttl_ms: how long the lease is held from then on.
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
    """Release a lease, so that the next owner need not wait until it runs out."""
    renew_lease(db, lease, now_ms=0, ttl_ms=0)


def is_lease_held(db: DbSession, name: str, *, now_ms: int) -> bool:
    """Return whether any owner holds this lease now."""
    row = db.get(LeaseRow, name)
    return row is not None and is_unexpired(row, now_ms)


def is_unexpired(row: LeaseRow, now_ms: int) -> bool:
    """Return whether a lease is held at this time."""
    return now_ms < row.expires_ms <= now_ms + LONGEST_TTL_MS


def make_unexpired_condition(now_ms: int) -> ColumnElement[bool]:
    """Return the condition that a lease is held at this time."""
    return col(LeaseRow.expires_ms).between(now_ms + 1, now_ms + LONGEST_TTL_MS)


@dataclass
class HeldLease:
    """A lease that this process took, with the time of its last renewal.

    A process that was suspended for a whole lease counts it as lost by its own clock, without a query.
    """

    lease: Lease
    ttl_ms: int
    #: Time of the last renewal in seconds of this process's monotonic clock; -inf once the lease was lost.
    renewed_s: float = field(default_factory=time.monotonic, compare=False)

    @property
    def fence(self) -> int:
        """Fencing number of the lease."""
        return self.lease.fence

    def renew(self, db: DbSession, *, only_if_held: bool = False) -> bool:
        """Renew the lease; return False once another owner took it.

        Args:
            db: a write transaction.
            only_if_held: leave the lease alone, and return False, if it was released.
        """
        now_ms = clock.now_ms()
        return renew_lease(db, self.lease, now_ms=now_ms, ttl_ms=self.ttl_ms, only_if_held=only_if_held)

    def require(self, db: DbSession) -> None:
        """Check the lease and renew it; call it in every transaction that writes.

        Raises:
            LeaseLost: if another owner took it.
        """
        if not self.renew(db):
            raise LeaseLost

    def require_time(self) -> None:
        """Check the lease by this process's clock alone.

        Raises:
            LeaseLost: if it was not renewed for as long as it lasts.
        """
        if time.monotonic() - self.renewed_s > self.ttl_ms / 1000:
            raise LeaseLost

    @contextmanager
    def transaction(self, database: Database) -> Iterator[DbSession]:
        """Open a write transaction that holds the lease until it commits.

        Raises:
            LeaseLost: if the lease ran out by this process's clock, or another owner took it.
        """
        self.require_time()
        now_s = time.monotonic()
        with database.transaction(write=True) as db:
            self.require(db)
            yield db
        self.note_renewal(now_s)

    def note_renewal(self, now_s: float) -> None:
        """Store the time at which a committed renewal began; of two renewals the later one counts."""
        self.renewed_s = max(self.renewed_s, now_s)

    def note_loss(self) -> None:
        """Mark the lease as lost to another owner."""
        self.renewed_s = -math.inf

    def release(self, db: DbSession) -> None:
        """Release the lease, so that the next owner need not wait until it runs out."""
        release_lease(db, self.lease)


def hold_lease(db: DbSession, name: str, owner: str, *, ttl_ms: int) -> HeldLease | None:
    """Take a lease from now on in a write transaction; return None while another owner holds it."""
    began_s = time.monotonic()
    lease = take_lease(db, name, owner, now_ms=clock.now_ms(), ttl_ms=ttl_ms)
    return None if lease is None else HeldLease(lease, ttl_ms, began_s)


@contextmanager
def lease_for_block(database: Database, name: str, owner: str, *, ttl_ms: int) -> Iterator[HeldLease | None]:
    """Hold a lease for the block, which must renew it; yield None while another owner holds it."""
    with database.transaction(write=True) as db:
        held = hold_lease(db, name, owner, ttl_ms=ttl_ms)
    if held is None:
        yield None
        return
    try:
        yield held
    finally:
        with database.transaction(write=True) as db:
            held.release(db)


class LeaseKeeper:
    """Thread that renews leases during long work; those of a killed process expire.

    A lease that was released in between stays released. A renewal that fails, for whatever reason, is logged
    and tried again at the next beat.
    """

    def __init__(
        self,
        database: Database,
        list_leases: Callable[[], Iterable[HeldLease]],
        *,
        every_s: float,
        on_loss: Callable[[HeldLease], object] = HeldLease.note_loss,
    ) -> None:
        """Prepare the thread.

        Args:
            database: where the leases are.
            list_leases: returns the leases to renew, asked at every beat.
            every_s: seconds between two beats; a small part of what the leases last.
            on_loss: called with a lease that this process lost.
        """
        self._database, self._list_leases = database, list_leases
        self._every_s, self._on_loss = every_s, on_loss
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew_repeatedly, name="leases", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End the renewals; a renewal under way may still complete."""
        self._is_stopped.set()

    def join(self) -> None:
        """Wait for the thread, if it was started."""
        if self._thread.is_alive():
            self._thread.join()

    def _renew_repeatedly(self) -> None:
        while not self._is_stopped.wait(self._every_s):
            now_s = time.monotonic()
            try:
                with self._database.transaction(write=True) as db:
                    renewed = [(held, held.renew(db, only_if_held=True)) for held in self._list_leases()]
            except Exception as error:  # any error: without renewals the leases expire
                log.warning("leases could not be renewed; trying again: %r", error)
                continue
            for held, is_held in renewed:
                if is_held:
                    held.note_renewal(now_s)
                else:
                    self._on_loss(held)
