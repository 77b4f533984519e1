"""Sealing run: take a lane, claim a batch, prepare its files, commit them, mark its sessions. Design §3.

The lake is committed first (it takes each number of a lane once). One transaction then stores the graph's
rows, `status = sealed` and the outbox. A batch that a killed run left open is done again by another run.
"""

import importlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError, Unavailable
from recorder.errors.panics import convert_panics
from recorder.garbage_collector import LARGE_BATCHES, reduced_garbage_collection
from recorder.memory.graph.capacity import GraphCapacity
from recorder.memory.storage.indexing import GraphIndexer, PreparedIndexing
from recorder.memory.storage.rebuilds import rebuild_graph
from recorder.memory.storage.session_paths import read_path_ids
from recorder.models.frame import FrameRow
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.recording.sessions import change_session_status, emit_session, session_to_wire
from recorder.runtime import Runtime
from recorder.sealing import batches, breaker, failures
from recorder.sealing.batches import ClaimedBatch, SealingBatchLimits
from recorder.sealing.cleanup import CleanupCounts, clean_up_after_sealing
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.lane_scheduling import LaneScheduler, LaneWork, SealingTimes
from recorder.sealing.portions import PortionLimits
from recorder.sealing.preparation import BatchPreparation, PausedPreparations
from recorder.storage.lake_tables import LakeAhead
from recorder.storage.leases import LeaseLost
from recorder.storage.store_regions import require_sealing_store_marks
from recorder.tenant import GraphScope, Tenant

log = logging.getLogger("recorder.sealing")

# The memory graph imports these where it needs them.
_LIBRARIES = ("networkx", "scipy.sparse", "sklearn.neighbors")


@dataclass(frozen=True)
class SealedBatch:
    """Counts and times of one sealed batch."""

    tenant: Tenant
    workflows: list[str]
    sessions: int
    events: int
    frames: int
    set_aside: int
    seconds: float
    #: Stopped → sealed of each session, in seconds.
    lags_s: list[float] = field(repr=False)

    @property
    def scopes(self) -> list[GraphScope]:
        """Identities of the workflows' memory graphs."""
        return [GraphScope(self.tenant, workflow) for workflow in self.workflows]


class Sealer:
    """Sealing of one run, batch after batch, lane after lane."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        owner: str,
        times: SealingTimes | None = None,
        batch_limits: SealingBatchLimits | None = None,
        portion_limits: PortionLimits | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """Prepare a run; no lease is taken yet.

        Args:
            runtime: the deployment.
            owner: name of the run.
            times: times between lanes and between attempts.
            batch_limits: size of a batch.
            portion_limits: size of one portion of work.
            stopping: ends the run after the current portion once it is set; by default an event of its own.
        """
        self._runtime = runtime
        self._owner = owner
        self._portion_limits = portion_limits
        self._scheduler = LaneScheduler(
            runtime, owner, times=times, batch_limits=batch_limits, stopping=stopping
        )
        self._digests = DigestPool(runtime.settings.blob_url, processes=runtime.settings.seal_processes)
        self._indexer = GraphIndexer(GraphCapacity.of_megabytes(runtime.settings.graph_memory_mb))
        self._paused = PausedPreparations()
        self._touched: set[Tenant] = set()
        self._has_checked_stores = False
        #: Seconds that the last `seal_batch` searched for a lane; 0 if it worked on one or raised.
        self.search_s = 0.0
        self._writers = ThreadPoolExecutor(4, thread_name_prefix="lake")

    @property
    def stopping(self) -> threading.Event:
        """Event that ends the run after the current portion once it is set."""
        return self._scheduler.stopping

    @property
    def has_lost_run_lease(self) -> bool:
        """Return whether another run took this run's lease after it was not renewed in time."""
        return self._scheduler.has_lost_run_lease

    def take(self) -> bool:
        """Take a run lease; return False if all run leases are taken."""
        return self._scheduler.take_run_lease()

    def release(self) -> None:
        """Release the lane and the run lease."""
        self._writers.shutdown()
        self._digests.close()
        self._scheduler.close()

    def seal_batch(self) -> SealedBatch | None:
        """Seal the next batch of any lane; return None if this run has nothing to seal now.

        Batches that fail are counted, divided or set aside; the others go on.

        Raises:
            LeaseLost: if another run took the lane; no session of the batch was marked.
            Unavailable: if a store or the database does not answer; the batch stays open, and its lane waits.
        """
        self.search_s, has_worked = 0.0, False
        while not self.stopping.is_set():
            began = time.monotonic()
            work = self._scheduler.current or self._scheduler.take_lane()
            if work is None:
                self.search_s = 0.0 if has_worked else time.monotonic() - began
                return None
            has_worked = True
            try:
                if not self._has_checked_stores:
                    require_sealing_store_marks(self._runtime.settings)
                    self._has_checked_stores = True
                sealed = self._seal_lane_batch(work)
            except LeaseLost:
                self._scheduler.current = None
                raise
            except Unavailable:
                self._scheduler.postpone()
                raise
            if sealed is not None:
                return sealed
        return None

    def has_stores(self) -> bool:
        """Return whether database, frames and lake answer now."""
        with suppress(Unavailable):
            self._runtime.database.ping()
            failures.require_stores_after_failure(self._runtime)
            return True
        return False

    def maintain(self) -> CleanupCounts:
        """Sweep hot rows, delete old keys, and compact the tables that this run wrote to."""
        return clean_up_after_sealing(self._runtime, self._owner, self._touched)

    def _seal_lane_batch(self, work: LaneWork) -> SealedBatch | None:
        """Work on the lane's batch until it is sealed, divided or paused; return None if it was not sealed.

        Raises:
            LeaseLost, Unavailable: as `seal_batch`.
        """
        batch = work.batch
        began = time.monotonic()
        if failures.must_divide(batch):
            failures.divide_failed_batch(self._runtime, self._scheduler, work)
            return None
        preparation = self._resume_batch(batch) or self._open_preparation(batch)
        try:
            with convert_panics():
                while not preparation.advance():
                    if self.stopping.is_set() or self._scheduler.should_pause():
                        self._pause_batch(work, preparation)
                        return None
                return self._seal_batch(work, preparation, began)
        except BaseException as error:
            preparation.close()
            if isinstance(error, LeaseLost | Unavailable) or not isinstance(error, Exception):
                raise
            if isinstance(error, LakeAhead):
                # Another run continued with this lane, or the stores were restored from different times.
                with self._runtime.database.transaction(write=True) as db:
                    work.lease.require(db)
                log.error("lane %s waits: %s", batch.lane.name, error)
                raise Unavailable("The lake") from error
            failures.require_stores_after_failure(self._runtime)
            failures.count_batch_failure(self._runtime, self._scheduler, work, error)
            return None

    def _seal_batch(self, work: LaneWork, preparation: BatchPreparation, began: float) -> SealedBatch:
        """Commit a prepared batch: compute the graph, commit the lake, mark the sessions."""
        with self._runtime.database.transaction(write=False) as db:
            rows = [session.row for session in preparation.sessions]
            steps = {session.row.id: session.steps for session in preparation.sessions}
            prepared = self._indexer.prepare(db, rows, steps)
            with_snapshots = _find_sealed_with_snapshots(db, [row.id for row in rows])
        if preparation.failures:
            failures.require_stores_after_failure(self._runtime)
        without_rows = self._commit_lake(work.batch, preparation)
        return self._mark_batch(work, preparation, prepared, with_snapshots, without_rows, began)

    def _open_preparation(self, batch: ClaimedBatch) -> BatchPreparation:
        require_lease = partial(self._scheduler.require_lane, lane=batch.lane)
        return BatchPreparation(
            self._runtime, self._digests, batch, require_lease=require_lease, limits=self._portion_limits
        )

    def _commit_lake(self, batch: ClaimedBatch, preparation: BatchPreparation) -> set[str]:
        """Commit the files to the lane's tables in parallel; each table takes the batch's number once.

        Returns:
            Ids of sessions without rows, since an earlier attempt, which could not read them, committed a
            table without them. Another batch seals them.
        """
        commits = {
            kind: self._writers.submit(
                self._runtime.lake.commit,
                kind,
                batch.tenant,
                files,
                lane=batch.lane.name,
                number=batch.number,
            )
            for kind, files in preparation.files.items()
            if files
        }
        taken_before = [kind for kind, commit in commits.items() if not commit.result()]
        without_rows = failures.find_sessions_without_rows(
            self._runtime, batch, preparation.sessions, taken_before
        )
        if batch.is_retry:
            # An earlier attempt may have committed rows of sessions that are left out now.
            left_out = set(batch.session_ids) - {session.row.id for session in preparation.sessions}
            failures.delete_batch_rows(self._runtime, batch, sorted(left_out | without_rows))
        self._touched.add(batch.tenant)
        return without_rows

    def _mark_batch(
        self,
        work: LaneWork,
        preparation: BatchPreparation,
        prepared: PreparedIndexing,
        with_snapshots: set[str],
        without_rows: set[str],
        began: float,
    ) -> SealedBatch:
        """Store graph, status and outbox of the batch in one transaction, then clean up."""
        batch, set_aside = work.batch, 0
        sealed = [session for session in preparation.sessions if session.row.id not in without_rows]
        with self._runtime.database.transaction(write=True) as db:
            work.lease.require(db)
            stored = batches.read_batch_row(db, batch)
            stored.state, stored.ended = "done", stored.begun
            db.add(stored)
            ids = [session.row.id for session in sealed]
            rows, metadata = _lock_sealed_session_rows(db, ids), _read_sealed_session_metadata(db, ids)
            now = clock.now()
            waiting = [row for row in rows if row.waiting_since is not None]
            fresh = [row for row in waiting if row.status == "stopped"]
            lags = [(now - row.waiting_since).total_seconds() for row in fresh if row.waiting_since]
            for row in rows:
                row.lake_date = batch.date  # deleted sessions too: a purge must find their rows
                db.add(row)
            for row in waiting:
                _mark_session_sealed(db, row, batch, has_snapshots=row.id in with_snapshots)
            self._indexer.commit(db, prepared, fresh)
            path_ids = read_path_ids(db, [row.id for row in fresh])
            for row in fresh:
                session = session_to_wire(row, metadata.get(row.id, {}), path_id=path_ids.get(row.id))
                emit_session(db, row, "session.sealed", session)
            if waiting:
                breaker.close_breaker(db)
            for failure in preparation.failures:
                set_aside += failures.count_session_failure(db, failure)
            next_work = self._scheduler.continue_or_release(db, work)
        # Not before the commit: if that fails, this batch is postponed.
        self._scheduler.current = next_work
        with suppress(LeaseLost):  # maintenance deletes progress that remains
            preparation.discard()
        deleted = {session.row.id for session in sealed} - {row.id for row in waiting}
        failures.delete_batch_rows(self._runtime, batch, sorted(deleted))
        for scope in self._indexer.take_grown():
            self._rebuild_graph(scope)
        return SealedBatch(
            tenant=batch.tenant,
            workflows=sorted({session.row.workflow for session in sealed}),
            sessions=len(waiting),
            events=sum(session.event_count for session in sealed),
            frames=sum(session.frame_count for session in sealed),
            set_aside=set_aside,
            seconds=time.monotonic() - began,
            lags_s=lags,
        )

    def _rebuild_graph(self, scope: GraphScope) -> None:
        # The batch is sealed by now; the nightly rebuild repeats a rebuild that fails here.
        began = time.monotonic()
        try:
            with suppress(RecorderError):
                rebuild_graph(self._runtime.database, scope, "anchored")
                self._indexer.record_rebuild(scope, time.monotonic() - began)
        except Exception:
            log.exception("the graph of %s could not be rebuilt", scope.workflow)

    def _pause_batch(self, work: LaneWork, preparation: BatchPreparation) -> None:
        """Release the lane before its batch is prepared, and keep the preparation to resume it."""
        # A run that stops releases its lanes to the others at once.
        times = self._scheduler.times
        self._scheduler.pause(reserved_for=timedelta(0) if self.stopping.is_set() else times.reserved_for)
        # Not before the lane is released: if that fails, the preparation is closed.
        self._paused.keep(work.batch, preparation, fence=work.lease.fence)
        self._scheduler.paused = self._paused.fences

    def _resume_batch(self, batch: ClaimedBatch) -> BatchPreparation | None:
        preparation = self._paused.take(batch)
        self._scheduler.paused = self._paused.fences
        return preparation


@contextmanager
def open_sealer(
    runtime: Runtime,
    owner: str,
    *,
    times: SealingTimes | None = None,
    batch_limits: SealingBatchLimits | None = None,
    portion_limits: PortionLimits | None = None,
    stopping: threading.Event | None = None,
) -> Iterator[Sealer | None]:
    """Open a sealer that holds a run lease; yield None if all run leases are taken."""
    _load_libraries()
    sealer = Sealer(
        runtime,
        owner=owner,
        times=times,
        batch_limits=batch_limits,
        portion_limits=portion_limits,
        stopping=stopping,
    )
    try:
        with reduced_garbage_collection(LARGE_BATCHES):
            yield sealer if sealer.take() else None
    finally:
        sealer.release()


def _load_libraries() -> None:
    """Load what the first batch would wait two seconds for; pyarrow loads pandas for its first values."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    pa.array([""])


def _lock_sealed_session_rows(db: DbSession, session_ids: list[str]) -> list[SessionRow]:
    """Lock and return the sessions of a batch, without those that were purged."""
    statement = select(SessionRow).where(col(SessionRow.id).in_(session_ids))
    ordered = statement.order_by(col(SessionRow.id)).with_for_update()
    return list(db.exec(ordered.execution_options(populate_existing=True)))


def _read_sealed_session_metadata(db: DbSession, session_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return the metadata of each session that has any."""
    statement = select(SessionMetadataRow).where(col(SessionMetadataRow.session_id).in_(session_ids))
    return {row.session_id: row.metadata_ for row in db.exec(statement)}


def _find_sealed_with_snapshots(db: DbSession, session_ids: list[str]) -> set[str]:
    """Return the sessions that have a DOM snapshot; the others have no replayability."""
    of_batch = (col(FrameRow.session_id).in_(session_ids), col(FrameRow.dom_object).is_not(None))
    return set(db.exec(select(FrameRow.session_id).where(*of_batch).distinct()))


def _mark_session_sealed(db: DbSession, row: SessionRow, batch: ClaimedBatch, *, has_snapshots: bool) -> None:
    """Mark a session as sealed; if it was sealed before, only the lake's rows changed."""
    now = clock.now()
    row.waiting_since, row.seal_failures = None, 0
    row.replayability, row.replayability_at = None, None if has_snapshots else now
    if row.status == "sealed":
        db.add(row)
        return
    row.sealed_at, row.seal_seq = now, batch.seal_seq(row.id)
    change_session_status(db, row, "sealed", now)
