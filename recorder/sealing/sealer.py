"""One sealing run: take a lane, claim a batch, write the lake, index the graph, mark it sealed. Design §3.

Order of effects: lake first (each number of a lane is taken once), then ONE transaction with the graph's
rows, `status = sealed` and the outbox. A run killed in between leaves an open batch that another run does
again.
"""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError, Unavailable
from recorder.memory.building.nodes import GraphScope
from recorder.memory.storing.indexing import GraphIndexer, Prepared
from recorder.memory.storing.rebuilds import rebuild_graph
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.recording.sessions import change_status, emit
from recorder.runtime import Runtime
from recorder.sealing import batches, lanes, places, quarantine
from recorder.sealing.batches import ClaimedBatch, Lane
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import SealErrorCode
from recorder.sealing.lanes import LeaseLost
from recorder.sealing.maintenance import Maintenance, maintain
from recorder.sealing.preparation import BatchPreparation
from recorder.storage.lake import LakeAhead
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.leases import Lease, release_lease, renew_lease

log = logging.getLogger("recorder.sealing")

#: A lane is given back after so long while others wait.
LANE_SECONDS = 1.0
#: A batch is divided after so many failures, or after so many runs were killed while they worked on it.
_MAX_FAILURES = 3
#: A single session is set aside after so many kills of the run that worked on it. More than failures, since a
#: run may be killed for another reason.
_MAX_KILLS = 6
_RETRY_AFTER = timedelta(milliseconds=200)
_STORE_RETRY_AFTER = timedelta(seconds=2)
#: Preparations of large sessions that wait for their lane's next turn in this process.
_MAX_PAUSED = 4


@dataclass(frozen=True)
class SealedBatch:
    """Counts and times of one sealed batch."""

    workspace_id: str
    mode: str
    workflows: list[str]
    sessions: int
    events: int
    frames: int
    set_aside: int
    seconds: float
    #: Stopped → sealed of each session, in seconds.
    lags_s: list[float] = field(repr=False)


@dataclass
class _Turn:
    """The lane that the run works on now."""

    lane: Lane
    lease: Lease
    began: float = field(default_factory=time.monotonic)
    batch: ClaimedBatch | None = None


class Sealer:
    """Seals batch after batch, lane after lane; one per run."""

    def __init__(self, runtime: Runtime, *, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner
        self._runs = runtime.settings.seal_runs
        self._lease_ms = int(runtime.settings.seal_lease_seconds * 1000)
        self._place: Lease | None = None
        self._turn: _Turn | None = None
        self._digests = DigestPool(runtime.settings.blob_url, processes=runtime.settings.seal_processes)
        self._indexer = GraphIndexer()
        #: Paused preparations with the fence of the lease under which they were paused.
        self._paused: dict[tuple[Lane, int], tuple[int, BatchPreparation]] = {}
        self._touched: set[tuple[str, str]] = set()
        self._writers = ThreadPoolExecutor(4, thread_name_prefix="lake")
        self._is_closed = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="leases", daemon=True)
        #: Set it to end after the portion at hand.
        self.stopping = threading.Event()
        #: Whether another run took this one's place, since this one did not renew it in time.
        self.has_lost_place = False

    def take(self) -> bool:
        """Take a place among the runs that seal side by side; False where all are taken."""
        with self._runtime.database.transaction(write=True) as db:
            self._place = places.take_place(db, self._owner, runs=self._runs, ttl_ms=self._lease_ms)
        if self._place is not None:
            self._renewer.start()
        return self._place is not None

    def release(self) -> None:
        """Give the lane and the place back."""
        self._is_closed.set()
        self._writers.shutdown()
        self._digests.close()
        with suppress(Unavailable):
            self._leave_lane()
            if self._place is not None:
                with self._runtime.database.transaction(write=True) as db:
                    release_lease(db, self._place)
        if self._renewer.is_alive():
            self._renewer.join()

    def seal_batch(self) -> SealedBatch | None:
        """Seal the next batch of any lane; None when there is nothing to seal for this run now.

        Batches that fail are counted, divided or set aside on the way; the others go on.

        Raises:
            LeaseLost: if another run took the lane; nothing of the batch was marked.
            Unavailable: if a store or the database does not answer; the batch stays open.
        """
        while not self.stopping.is_set():
            turn = self._turn or self._take_lane()
            if turn is None:
                return None
            try:
                sealed = self._work(turn)
            except LeaseLost:
                self._turn = None
                raise
            except Unavailable:
                self._postpone(turn)
                raise
            if sealed is not None:
                return sealed
        return None

    def maintain(self) -> Maintenance:
        """Do idle work: sweep hot rows, forget old keys, compact the tables that this run wrote to."""
        return maintain(self._runtime, self._owner, self._touched)

    def _take_lane(self) -> _Turn | None:
        """Take the free lane that has waited longest, and claim its next batch."""
        with self._runtime.database.transaction(write=False) as db:
            if not lanes.has_waiting(db) or not lanes.free_lanes(db, self._owner, runs=self._runs):
                return None
        with self._runtime.database.transaction(write=True) as db:
            taken = lanes.take_lane(db, self._owner, runs=self._runs, ttl_ms=self._lease_ms)
            if taken is None:
                return None
            lane, lease = taken
            batch = batches.claim_batch(db, lane, lease)
            if batch is None:
                release_lease(db, lease)
                return None
        self._turn = _Turn(lane, lease, batch=batch)
        return self._turn

    def _work(self, turn: _Turn) -> SealedBatch | None:
        """Do the next piece of work of a lane; None where that sealed nothing.

        Raises:
            LeaseLost, Unavailable: as `seal_batch`.
        """
        batch = turn.batch
        assert batch is not None
        began = time.monotonic()
        if batch.state == "undoing":
            self._undo(turn, batch)
            return None
        if self._is_given_up(turn, batch):
            return None
        preparation = self._resume(batch) or self._open_preparation(batch)
        try:
            while not preparation.advance():
                if self.stopping.is_set() or self._should_leave(turn):
                    self._pause(turn, batch, preparation)
                    return None
            return self._seal(turn, batch, preparation, began)
        except BaseException as error:
            preparation.close()
            if isinstance(error, LeaseLost | Unavailable) or not isinstance(error, Exception):
                raise
            if isinstance(error, LakeAhead):
                # Most often another run went on with this lane; else the stores are of different times.
                self._hold(turn)
                log.error("lane %s waits: %s", batch.lane.name, error)
                raise Unavailable("The lake") from error
            quarantine.require_stores(self._runtime)
            self._count_failure(turn, batch, error)
            return None

    def _seal(
        self, turn: _Turn, batch: ClaimedBatch, preparation: BatchPreparation, began: float
    ) -> SealedBatch:
        """Seal what is prepared: the graph is computed, the lake written, then everything marked at once."""
        with self._runtime.database.transaction(write=False) as db:
            rows = [found.row for found in preparation.sessions]
            steps = {found.row.id: found.steps for found in preparation.sessions}
            prepared = self._indexer.prepare(db, rows, steps)
        if any(failure.code.startswith("content_") for failure in preparation.failures):
            quarantine.require_stores(self._runtime)
        self._write_lake(turn, batch, preparation)
        return self._mark(turn, batch, preparation, prepared, began)

    def _open_preparation(self, batch: ClaimedBatch) -> BatchPreparation:
        def hold(db: DbSession) -> None:
            # The lane may have been given back and taken again since: its lease of now counts.
            turn = self._turn
            if turn is None or turn.lane != batch.lane:
                raise LeaseLost
            lanes.hold(db, turn.lease, self._lease_ms)

        return BatchPreparation(self._runtime, self._digests, batch, hold=hold)

    def _write_lake(self, turn: _Turn, batch: ClaimedBatch, preparation: BatchPreparation) -> None:
        """Commit the files to the tables of the lane side by side: each takes the batch's number once."""
        commits = [
            self._writers.submit(
                self._runtime.lake.commit,
                kind,
                batch.workspace_id,
                batch.mode,
                files,
                lane=batch.lane.name,
                number=batch.number,
            )
            for kind, files in preparation.files.items()
            if files
        ]
        for commit in commits:
            commit.result()
        if batch.is_retry:
            # An earlier attempt may have written a table already, with sessions that are left out now.
            left_out = set(batch.session_ids) - {found.row.id for found in preparation.sessions}
            self._delete_rows(batch, sorted(left_out))
        self._touched.add((batch.workspace_id, batch.mode))

    def _mark(
        self,
        turn: _Turn,
        batch: ClaimedBatch,
        preparation: BatchPreparation,
        prepared: Prepared,
        began: float,
    ) -> SealedBatch:
        """Make the batch visible: graph, status and outbox in one transaction."""
        set_aside = 0
        with self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)
            stored = batches.read_batch(db, batch)
            stored.state, stored.ended = "done", stored.begun
            db.add(stored)
            ids = [found.row.id for found in preparation.sessions]
            rows, metadata = _lock_rows(db, ids), _read_metadata(db, ids)
            now = clock.now()
            waiting = [row for row in rows if row.waiting_since is not None]
            fresh = [row for row in waiting if row.status == "stopped"]
            lags = [(now - row.waiting_since).total_seconds() for row in fresh if row.waiting_since]
            for row in rows:
                row.lake_date = batch.date  # of deleted ones too: a purge must find what was written
                db.add(row)
            for row in waiting:
                _mark_sealed(db, row, batch, metadata.get(row.id, {}))
            self._indexer.commit(db, prepared, fresh)
            for failure in preparation.failures:
                set_aside += quarantine.count_failure(db, failure)
            self._continue_or_leave(db, turn)
        with suppress(LeaseLost):  # what stays behind is found by the maintenance
            preparation.discard()
        gone = {found.row.id for found in preparation.sessions} - {row.id for row in waiting}
        self._delete_rows(batch, sorted(gone))
        for scope in self._indexer.take_grown():
            self._rebuild(scope)
        return SealedBatch(
            workspace_id=batch.workspace_id,
            mode=batch.mode,
            workflows=sorted({found.row.workflow for found in preparation.sessions}),
            sessions=len(waiting),
            events=sum(found.event_count for found in preparation.sessions),
            frames=sum(found.frame_count for found in preparation.sessions),
            set_aside=set_aside,
            seconds=time.monotonic() - began,
            lags_s=lags,
        )

    def _rebuild(self, scope: GraphScope) -> None:
        # The batch is sealed by now; a rebuild that cannot be had is made up for at night.
        try:
            rebuild_graph(self._runtime.database, scope, "anchored")
        except RecorderError:
            pass
        except Exception:
            log.exception("the graph of %s could not be rebuilt", scope.workflow)

    def _continue_or_leave(self, db: DbSession, turn: _Turn) -> None:
        """Claim the lane's next batch, or give the lane back where others wait or nothing is left."""
        turn.batch = None
        if not self.stopping.is_set() and not (self._is_over(turn) and self._do_others_wait(db, turn)):
            turn.batch = batches.claim_batch(db, turn.lane, turn.lease)
        if turn.batch is None:
            lanes.note_served(db, turn.lane)
            release_lease(db, turn.lease)
            self._turn = None

    def _is_over(self, turn: _Turn) -> bool:
        return time.monotonic() - turn.began >= LANE_SECONDS

    def _should_leave(self, turn: _Turn) -> bool:
        """Return whether the lane was worked on long enough and another one waits."""
        if not self._is_over(turn):
            return False
        with self._runtime.database.transaction(write=False) as db:
            return self._do_others_wait(db, turn)

    def _do_others_wait(self, db: DbSession, turn: _Turn) -> bool:
        except_for = frozenset([turn.lane])
        return bool(lanes.free_lanes(db, self._owner, runs=self._runs, except_for=except_for))

    def _pause(self, turn: _Turn, batch: ClaimedBatch, preparation: BatchPreparation) -> None:
        """Give the lane back in the middle of a large session; its next turn goes on from here."""
        while len(self._paused) >= _MAX_PAUSED:
            self._paused.pop(next(iter(self._paused)))[1].close()
        self._paused[batch.lane, batch.number] = turn.lease.fence, preparation
        self._leave_lane()

    def _resume(self, batch: ClaimedBatch) -> BatchPreparation | None:
        """Return the paused preparation of a batch; None where another run worked on it since."""
        fence, preparation = self._paused.pop((batch.lane, batch.number), (0, None))
        if preparation is None or batch.fence == fence + 1:
            return preparation
        preparation.close()
        return None

    def _leave_lane(self) -> None:
        """Give the lane back; the work on its batch ended in order."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        with suppress(LeaseLost), self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)
            if turn.batch is not None:
                row = batches.read_batch(db, turn.batch)
                row.ended = row.begun
                db.add(row)
            lanes.note_served(db, turn.lane)
            release_lease(db, turn.lease)

    def _postpone(self, turn: _Turn) -> None:
        """Let the lane wait for a store: nothing is counted against its sessions."""
        batch = turn.batch
        with suppress(LeaseLost, Unavailable), self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)
            if batch is not None:
                row = batches.read_batch(db, batch)
                row.ended, row.not_before = row.begun, clock.now() + _STORE_RETRY_AFTER
                db.add(row)
            release_lease(db, turn.lease)
        self._turn = None

    def _count_failure(self, turn: _Turn, batch: ClaimedBatch, error: Exception) -> None:
        """Count a failure of the batch that no session of it is known to have caused."""
        log.exception("batch %d of lane %s failed", batch.number, batch.lane.name)
        with self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)
            row = batches.read_batch(db, batch)
            row.failures, row.ended = row.failures + 1, row.begun
            row.not_before = clock.now() + _RETRY_AFTER
            if row.failures >= _MAX_FAILURES:
                row.state = "undoing"
                row.last_error = type(error).__name__
            db.add(row)
            lanes.note_served(db, turn.lane)
            release_lease(db, turn.lease)
        self._turn = None

    def _is_given_up(self, turn: _Turn, batch: ClaimedBatch) -> bool:
        """Begin to undo a batch whose runs were killed again and again."""
        if batch.kills < (_MAX_FAILURES if len(batch.session_ids) > 1 else _MAX_KILLS):
            return False
        with self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)
            row = batches.read_batch(db, batch)
            row.state, row.last_error = "undoing", _KILLED
            db.add(row)
        self._undo(turn, batch)
        return True

    def _undo(self, turn: _Turn, batch: ClaimedBatch) -> None:
        """Delete what a batch wrote, then divide it; a session that is alone is set aside."""
        self._delete_rows(batch, batch.session_ids)
        with self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)
            row = batches.read_batch(db, batch)
            if len(batch.session_ids) > 1:
                batches.split_batch(db, batch)
            else:
                row.state, row.ended = "done", row.begun
                db.add(row)
                quarantine.set_aside(db, batch.session_ids[0], *_reason(row.last_error))
            self._continue_or_leave(db, turn)

    def _delete_rows(self, batch: ClaimedBatch, session_ids: list[str]) -> None:
        """Delete the sessions' rows of this batch from the lake."""
        if not session_ids:
            return
        with self._runtime.database.transaction(write=False) as db:
            rows = select(SessionRow.workflow).where(col(SessionRow.id).in_(session_ids)).distinct()
            workflows = list(db.exec(rows))
        for kind in LAYOUTS:
            for workflow in workflows:
                self._runtime.lake.delete_sessions(
                    kind,
                    batch.workspace_id,
                    batch.mode,
                    workflow=workflow,
                    date=batch.date,
                    session_ids=session_ids,
                )

    def _hold(self, turn: _Turn) -> None:
        with self._runtime.database.transaction(write=True) as db:
            lanes.hold(db, turn.lease, self._lease_ms)

    def _renew(self) -> None:
        """Renew the leases of place and lane: a portion may take longer than a lease lasts."""
        while not self._is_closed.wait(self._lease_ms / 3000):
            with suppress(RecorderError), self._runtime.database.transaction(write=True) as db:
                if self._place is not None and not self._renew_lease(db, self._place):
                    self.has_lost_place = True
                    self.stopping.set()
                turn = self._turn
                if turn is not None:
                    # A lane that is lost shows when its batch is marked.
                    self._renew_lease(db, turn.lease)

    def _renew_lease(self, db: DbSession, lease: Lease) -> bool:
        now_ms = clock.now_ms()
        return renew_lease(db, lease, now_ms=now_ms, ttl_ms=self._lease_ms, only_if_held=True)


_KILLED = "killed"


def _reason(last_error: str | None) -> tuple[SealErrorCode, str]:
    if last_error == _KILLED:
        return "worker_killed", (
            "The process that sealed this session was killed each time. Look for memory limits in the "
            "operator's logs, then reseal it."
        )
    return "content_unreadable", (
        f"Sealing this session failed each time ({last_error}). The operator's log has the details."
    )


@contextmanager
def open_sealer(runtime: Runtime, owner: str) -> Iterator[Sealer | None]:
    """Open a sealer that has a place; None where all places are taken."""
    sealer = Sealer(runtime, owner=owner)
    try:
        yield sealer if sealer.take() else None
    finally:
        sealer.release()


def _lock_rows(db: DbSession, session_ids: list[str]) -> list[SessionRow]:
    """Lock the sessions of a batch; those purged meanwhile are left out."""
    statement = select(SessionRow).where(col(SessionRow.id).in_(session_ids))
    ordered = statement.order_by(col(SessionRow.id)).with_for_update()
    return list(db.exec(ordered.execution_options(populate_existing=True)))


def _read_metadata(db: DbSession, session_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return the metadata of each session that has any."""
    statement = select(SessionMetadataRow).where(col(SessionMetadataRow.session_id).in_(session_ids))
    return {row.session_id: row.metadata_ for row in db.exec(statement)}


def _mark_sealed(db: DbSession, row: SessionRow, batch: ClaimedBatch, metadata: dict[str, Any]) -> None:
    """Mark one session; one that was sealed before only has its rows in another place now."""
    row.waiting_since, row.seal_failures = None, 0
    if row.status == "sealed":
        db.add(row)
        return
    now = clock.now()
    row.sealed_at, row.seal_seq = now, batch.seal_seq(row.id)
    change_status(db, row, "sealed", now)
    emit(db, row, "session.sealed", metadata=metadata)
