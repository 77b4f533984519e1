"""Scheduling of one sealing run: its run lease, and the lane that it works on. Design §3.

A thread renews the run lease and that of the lane: one portion of work may take longer than a lease lasts.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.errors import Unavailable
from recorder.models.operations import SealBatchRow
from recorder.runtime import Runtime
from recorder.sealing import batches, lanes
from recorder.sealing.batches import ClaimedBatch
from recorder.sealing.lanes import Lane
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost


@dataclass(frozen=True)
class SealingTimes:
    """Times of a sealing run between lanes and between attempts."""

    #: A lane is released after so long while others wait.
    lane_seconds: float = 1.0
    #: A paused lane is reserved for its run for so long: another run would begin its batch again.
    reserved_for: timedelta = timedelta(seconds=10)
    #: No run takes a lane for so long after its store did not answer.
    store_retry_after: timedelta = timedelta(seconds=2)
    #: No run takes a lane for so long after its batch failed.
    batch_retry_after: timedelta = timedelta(milliseconds=200)


@dataclass(frozen=True)
class LaneWork:
    """Work on one lane: its lease, and the claimed batch."""

    lane: Lane
    lease: HeldLease
    batch: ClaimedBatch
    began: float = field(default_factory=time.monotonic)


class LaneScheduler:
    """Scheduler of one run's lanes: it takes them, renews their leases, and releases them.

    Attributes:
        current: the lane that the run works on now.
        paused: lanes whose batches the run paused, with the fences of their leases at that time. The run can
            resume a batch as long as no other run takes the lane.
        stopping: set it to end after the portion at hand.
        has_lost_run_lease: whether another run took this run's lease after it was not renewed in time.
        times: times between lanes and between attempts.
    """

    def __init__(
        self,
        runtime: Runtime,
        owner: str,
        *,
        times: SealingTimes | None = None,
        batch_limits: batches.SealingBatchLimits | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.times = times or SealingTimes()
        self.current: LaneWork | None = None
        self.paused: dict[Lane, int] = {}
        self.stopping = stopping or threading.Event()
        self.has_lost_run_lease = False
        self._runtime, self._owner, self._batch_limits = runtime, owner, batch_limits
        self._runs = runtime.settings.seal_runs
        self._lease_ms = int(runtime.settings.seal_lease_seconds * 1000)
        self._run_lease: HeldLease | None = None
        self._keeper = LeaseKeeper(
            runtime.database, self._list_leases, every_s=self._lease_ms / 3000, on_loss=self._note_lost_lease
        )

    def take_run_lease(self) -> bool:
        """Take a run lease; return False if all are taken."""
        with self._runtime.database.transaction(write=True) as db:
            self._run_lease = lanes.take_run_lease(db, self._owner, runs=self._runs, ttl_ms=self._lease_ms)
        if self._run_lease is not None:
            self._keeper.start()
        return self._run_lease is not None

    def close(self) -> None:
        """Release the lane and the run lease."""
        self._keeper.stop()
        with suppress(Unavailable):
            self.pause()
            if self._run_lease is not None:
                with self._runtime.database.transaction(write=True) as db:
                    self._run_lease.release(db)
        self._keeper.join()

    def take_lane(self) -> LaneWork | None:
        """Take the free lane that has waited longest, and claim its next batch; return None if none waits."""
        with self._runtime.database.transaction(write=False) as db:
            if not lanes.has_waiting_sessions(db):
                return None
            ready = lanes.list_ready_lanes(db, resumable=self.paused)
            if not lanes.list_takeable_lanes(db, self._owner, ready, runs=self._runs):
                return None
        with self._runtime.database.transaction(write=True) as db:
            taken = lanes.take_lane(db, self._owner, ready, runs=self._runs, ttl_ms=self._lease_ms)
            if taken is None:
                return None
            lane, lease = taken
            is_resumed = self.paused.get(lane) == lease.fence - 1
            batch = batches.claim_sealing_batch(
                db, lane, lease, limits=self._batch_limits, is_resumed=is_resumed
            )
            if batch is None:
                # Not released: the higher fence would keep the run that paused the lane from resuming it.
                db.rollback()
                return None
        self.current = LaneWork(lane, lease, batch)
        return self.current

    def require_lane(self, db: DbSession, lane: Lane) -> None:
        """Renew the lease of a lane; raise if this run lost it, as it may have been released in between.

        Raises:
            LeaseLost: if this run does not work on the lane now.
        """
        if self.current is None or self.current.lane != lane:
            raise LeaseLost
        self.current.lease.require(db)

    def continue_or_release(self, db: DbSession, work: LaneWork) -> LaneWork | None:
        """Claim the lane's next batch, or release the lane if other lanes wait or nothing is left.

        Returns:
            The work on the next batch, None if the lane was released: store it in `current` once the caller's
            transaction has committed.
        """
        if not self.stopping.is_set() and not (self._is_time_up(work) and self._do_others_wait(db, work)):
            batch = batches.claim_sealing_batch(db, work.lane, work.lease, limits=self._batch_limits)
            if batch is not None:
                return replace(work, batch=batch)
        self.release_lane(db, work)
        return None

    def release_lane(self, db: DbSession, work: LaneWork) -> None:
        """Release the lane in the caller's transaction, which holds its lease.

        Set `current` to None once that transaction has committed: until then the lane can still be postponed.
        """
        lanes.store_lane_service_time(db, work.lane)
        work.lease.release(db)

    def should_pause(self) -> bool:
        """Return whether the lane's time is up and another lane waits."""
        work = self.current
        if work is None or not self._is_time_up(work):
            return False
        with self._runtime.database.transaction(write=False) as db:
            return self._do_others_wait(db, work)

    def pause(self, *, reserved_for: timedelta = timedelta(0)) -> None:
        """Release the lane before its batch is sealed; the work on the batch goes on later.

        Args:
            reserved_for: how long other runs may not take the lane.

        Raises:
            Unavailable: if the database does not answer; the run still has the lane.
        """
        work = self.current
        if work is None:
            return
        with suppress(LeaseLost), self._runtime.database.transaction(write=True) as db:
            work.lease.require(db)
            _end_batch_attempt(db, work).not_before = clock.now() + reserved_for if reserved_for else None
            self.release_lane(db, work)
        self.current = None

    def postpone(self) -> None:
        """Release the lane until its store may answer again; nothing is counted against its sessions."""
        work, self.current = self.current, None
        if work is None:
            return
        with suppress(LeaseLost, Unavailable), self._runtime.database.transaction(write=True) as db:
            work.lease.require(db)
            _end_batch_attempt(db, work).not_before = clock.now() + self.times.store_retry_after
            self.release_lane(db, work)

    def _is_time_up(self, work: LaneWork) -> bool:
        return time.monotonic() - work.began >= self.times.lane_seconds

    def _do_others_wait(self, db: DbSession, work: LaneWork) -> bool:
        """Return whether lanes other than this one wait that this run could take."""
        ready = lanes.list_ready_lanes(db, except_for=frozenset([work.lane]), resumable=self.paused)
        return bool(lanes.list_takeable_lanes(db, self._owner, ready, runs=self._runs))

    def _list_leases(self) -> list[HeldLease]:
        work = self.current
        leases = (self._run_lease, work.lease if work is not None else None)
        return [lease for lease in leases if lease is not None]

    def _note_lost_lease(self, lease: HeldLease) -> None:
        # The loss of a lane is detected when its batch is marked.
        if lease is self._run_lease:
            self.has_lost_run_lease = True
            self.stopping.set()


def _end_batch_attempt(db: DbSession, work: LaneWork) -> SealBatchRow:
    """Store that the attempt at the claimed batch ended in order, so that it does not count as a kill."""
    row = batches.read_batch_row(db, work.batch)
    row.ended = row.begun
    db.add(row)
    return row
