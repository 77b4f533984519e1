"""Turns of one sealing run: its place among the runs, and the lane that it works on. Design §3.

Both are leases, which a thread renews: one portion of work may take longer than a lease lasts.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.errors import Unavailable
from recorder.models.operations import SealBatchRow
from recorder.runtime import Runtime
from recorder.sealing import batches, lanes
from recorder.sealing.batches import ClaimedBatch, Lane
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost

#: A lane is given back after so long while others wait.
LANE_SECONDS = 1.0
#: A lane that a run paused is left to that run for so long: another one would begin its batch again.
KEPT_FOR = timedelta(seconds=10)
#: A lane whose store did not answer is left alone for so long.
STORE_RETRY_AFTER = timedelta(seconds=2)


@dataclass
class Turn:
    """Work on one lane: its lease, and the batch that is claimed."""

    lane: Lane
    lease: HeldLease
    batch: ClaimedBatch
    began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether the lane is given back as soon as another one waits."""
        return time.monotonic() - self.began >= LANE_SECONDS


class Turns:
    """Takes lanes, keeps their leases, and gives them back.

    Attributes:
        current: the lane that the run works on now.
        paused: lanes whose batches the run paused, and can go on with.
        stopping: set it to end after the portion at hand.
        has_lost_place: whether another run took this one's place, since this one did not renew it in time.
    """

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self.current: Turn | None = None
        self.paused: frozenset[Lane] = frozenset()
        self.stopping = threading.Event()
        self.has_lost_place = False
        self._runtime, self._owner = runtime, owner
        self._runs = runtime.settings.seal_runs
        self._lease_ms = int(runtime.settings.seal_lease_seconds * 1000)
        self._place: HeldLease | None = None
        self._keeper = LeaseKeeper(
            runtime.database, self._held_leases, every_s=self._lease_ms / 3000, on_loss=self._note_loss
        )

    def take_place(self) -> bool:
        """Take a place among the runs that seal side by side; return False where all are taken."""
        with self._runtime.database.transaction(write=True) as db:
            self._place = lanes.take_place(db, self._owner, runs=self._runs, ttl_ms=self._lease_ms)
        if self._place is not None:
            self._keeper.start()
        return self._place is not None

    def close(self) -> None:
        """Give the lane and the place back."""
        self._keeper.stop()
        with suppress(Unavailable):
            self.leave()
            if self._place is not None:
                with self._runtime.database.transaction(write=True) as db:
                    self._place.release(db)
        self._keeper.join()

    def take(self) -> Turn | None:
        """Take the free lane that has waited longest, and claim its next batch; None where none waits."""
        with self._runtime.database.transaction(write=False) as db:
            if not lanes.has_waiting(db) or not self._free_lanes(db):
                return None
        with self._runtime.database.transaction(write=True) as db:
            taken = lanes.take_lane(
                db, self._owner, runs=self._runs, ttl_ms=self._lease_ms, resumable=self.paused
            )
            if taken is None:
                return None
            lane, lease = taken
            batch = batches.claim_batch(db, lane, lease, is_resumed=lane in self.paused)
            if batch is None:
                lease.release(db)
                return None
        self.current = Turn(lane, lease, batch)
        return self.current

    def hold(self, db: DbSession, turn: Turn) -> None:
        """Keep the lane's lease; call it in every transaction that writes.

        Raises:
            LeaseLost: if another run took the lane.
        """
        turn.lease.require(db)

    def hold_lane(self, db: DbSession, lane: Lane) -> None:
        """Keep the lease of a lane, which may have been given back and taken again since.

        Raises:
            LeaseLost: if this run does not work on the lane now.
        """
        if self.current is None or self.current.lane != lane:
            raise LeaseLost
        self.hold(db, self.current)

    def continue_or_end(self, db: DbSession, turn: Turn) -> None:
        """Claim the lane's next batch, or give the lane back where others wait or nothing is left."""
        if not self.stopping.is_set() and not (turn.is_over and self._do_others_wait(db, turn)):
            batch = batches.claim_batch(db, turn.lane, turn.lease)
            if batch is not None:
                turn.batch = batch
                return
        self.end(db, turn)

    def end(self, db: DbSession, turn: Turn) -> None:
        """Give the lane back in the caller's transaction, which holds its lease."""
        lanes.note_served(db, turn.lane)
        turn.lease.release(db)
        self.current = None

    def should_leave(self) -> bool:
        """Return whether the lane was worked on long enough and another one waits."""
        turn = self.current
        if turn is None or not turn.is_over:
            return False
        with self._runtime.database.transaction(write=False) as db:
            return self._do_others_wait(db, turn)

    def leave(self, *, kept_for: timedelta = timedelta(0)) -> None:
        """Give the lane back; the work on its batch ended in order and goes on later.

        Args:
            kept_for: how long other runs leave the lane to this one.
        """
        turn, self.current = self.current, None
        if turn is None:
            return
        with suppress(LeaseLost), self._runtime.database.transaction(write=True) as db:
            self.hold(db, turn)
            _end_work(db, turn).not_before = clock.now() + kept_for if kept_for else None
            self.end(db, turn)

    def postpone(self) -> None:
        """Give the lane back until its store may answer again: nothing is counted against its sessions."""
        turn, self.current = self.current, None
        if turn is None:
            return
        with suppress(LeaseLost, Unavailable), self._runtime.database.transaction(write=True) as db:
            self.hold(db, turn)
            _end_work(db, turn).not_before = clock.now() + STORE_RETRY_AFTER
            turn.lease.release(db)

    def _do_others_wait(self, db: DbSession, turn: Turn) -> bool:
        return bool(self._free_lanes(db, except_for=frozenset([turn.lane])))

    def _free_lanes(self, db: DbSession, *, except_for: frozenset[Lane] = frozenset()) -> list[Lane]:
        return lanes.free_lanes(
            db, self._owner, runs=self._runs, except_for=except_for, resumable=self.paused
        )

    def _held_leases(self) -> list[HeldLease]:
        turn = self.current
        leases = (self._place, turn.lease if turn is not None else None)
        return [lease for lease in leases if lease is not None]

    def _note_loss(self, lease: HeldLease) -> None:
        # The loss of a lane shows when its batch is marked.
        if lease is self._place:
            self.has_lost_place = True
            self.stopping.set()


def _end_work(db: DbSession, turn: Turn) -> SealBatchRow:
    """Note that the work on the claimed batch ended in order: it is not counted as a kill."""
    row = batches.read_batch(db, turn.batch)
    row.ended = row.begun
    db.add(row)
    return row
