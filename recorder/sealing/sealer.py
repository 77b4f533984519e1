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
from functools import partial
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError, Unavailable
from recorder.memory.grouping.nodes import GraphScope
from recorder.memory.storage.indexing import GraphIndexer, Prepared
from recorder.memory.storage.rebuilds import rebuild_graph
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.recording.sessions import change_status, emit
from recorder.runtime import Runtime
from recorder.sealing import batches, failures
from recorder.sealing.batches import ClaimedBatch, Lane
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.maintenance import Maintenance, maintain
from recorder.sealing.preparation import BatchPreparation
from recorder.sealing.scheduling import KEPT_FOR, Turn, Turns
from recorder.storage.lake import LakeAhead
from recorder.storage.leases import LeaseLost
from recorder.tenant import Tenant

log = logging.getLogger("recorder.sealing")

#: Preparations that wait for their lane's next turn. Those of large sessions hold much memory.
_MAX_PAUSED, _MAX_PAUSED_LARGE = 32, 4


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


class Sealer:
    """Seals batch after batch, lane after lane; one per run."""

    def __init__(self, runtime: Runtime, *, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner
        self._turns = Turns(runtime, owner)
        self._digests = DigestPool(runtime.settings.blob_url, processes=runtime.settings.seal_processes)
        self._indexer = GraphIndexer()
        #: Paused preparations with the fence of the lease under which they were paused.
        self._paused: dict[tuple[Lane, int], tuple[int, BatchPreparation]] = {}
        self._touched: set[Tenant] = set()
        self._writers = ThreadPoolExecutor(4, thread_name_prefix="lake")

    @property
    def stopping(self) -> threading.Event:
        """Set it to end after the portion at hand."""
        return self._turns.stopping

    @property
    def has_lost_place(self) -> bool:
        """Whether another run took this one's place, since this one did not renew it in time."""
        return self._turns.has_lost_place

    def take(self) -> bool:
        """Take a place among the runs that seal side by side; return False where all are taken."""
        return self._turns.take_place()

    def release(self) -> None:
        """Give the lane and the place back."""
        self._writers.shutdown()
        self._digests.close()
        self._turns.close()

    def seal_batch(self) -> SealedBatch | None:
        """Seal the next batch of any lane; None when there is nothing to seal for this run now.

        Batches that fail are counted, divided or set aside on the way; the others go on.

        Raises:
            LeaseLost: if another run took the lane; nothing of the batch was marked.
            Unavailable: if a store or the database does not answer; the batch stays open.
        """
        while not self.stopping.is_set():
            turn = self._turns.current or self._turns.take()
            if turn is None:
                return None
            try:
                sealed = self._work(turn)
            except LeaseLost:
                self._turns.current = None
                raise
            except Unavailable:
                self._turns.postpone()
                raise
            if sealed is not None:
                return sealed
        return None

    def maintain(self) -> Maintenance:
        """Do idle work: sweep hot rows, forget old keys, compact the tables that this run wrote to."""
        return maintain(self._runtime, self._owner, self._touched)

    def _work(self, turn: Turn) -> SealedBatch | None:
        """Do the next piece of work of a lane; None where that sealed nothing.

        Raises:
            LeaseLost, Unavailable: as `seal_batch`.
        """
        batch = turn.batch
        began = time.monotonic()
        if failures.is_given_up(batch):
            failures.divide(self._runtime, self._turns, turn)
            return None
        preparation = self._resume(batch) or self._open_preparation(batch)
        try:
            while not preparation.advance():
                if self.stopping.is_set() or self._turns.should_leave():
                    self._pause(turn, preparation)
                    return None
            return self._seal(turn, preparation, began)
        except BaseException as error:
            preparation.close()
            if isinstance(error, LeaseLost | Unavailable) or not isinstance(error, Exception):
                raise
            if isinstance(error, LakeAhead):
                # Most often another run went on with this lane; else the stores are of different times.
                with self._runtime.database.transaction(write=True) as db:
                    self._turns.hold(db, turn)
                log.error("lane %s waits: %s", batch.lane.name, error)
                raise Unavailable("The lake") from error
            failures.require_stores(self._runtime)
            failures.count_batch_failure(self._runtime, self._turns, turn, error)
            return None

    def _seal(self, turn: Turn, preparation: BatchPreparation, began: float) -> SealedBatch:
        """Seal what is prepared: the graph is computed, the lake written, then everything marked at once."""
        with self._runtime.database.transaction(write=False) as db:
            rows = [found.row for found in preparation.sessions]
            steps = {found.row.id: found.steps for found in preparation.sessions}
            prepared = self._indexer.prepare(db, rows, steps)
        if any(failure.code.startswith("content_") for failure in preparation.failures):
            failures.require_stores(self._runtime)
        self._write_lake(turn.batch, preparation)
        return self._mark(turn, preparation, prepared, began)

    def _open_preparation(self, batch: ClaimedBatch) -> BatchPreparation:
        hold = partial(self._turns.hold_lane, lane=batch.lane)
        return BatchPreparation(self._runtime, self._digests, batch, hold=hold)

    def _write_lake(self, batch: ClaimedBatch, preparation: BatchPreparation) -> None:
        """Commit the files to the tables of the lane side by side: each takes the batch's number once."""
        commits = [
            self._writers.submit(
                self._runtime.lake.commit,
                kind,
                batch.tenant,
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
            failures.delete_rows(self._runtime, batch, sorted(left_out))
        self._touched.add(batch.tenant)

    def _mark(
        self, turn: Turn, preparation: BatchPreparation, prepared: Prepared, began: float
    ) -> SealedBatch:
        """Make the batch visible: graph, status and outbox in one transaction."""
        batch, set_aside = turn.batch, 0
        with self._runtime.database.transaction(write=True) as db:
            self._turns.hold(db, turn)
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
                set_aside += failures.count_session_failure(db, failure)
            self._turns.continue_or_end(db, turn)
        with suppress(LeaseLost):  # what stays behind is found by the maintenance
            preparation.discard()
        gone = {found.row.id for found in preparation.sessions} - {row.id for row in waiting}
        failures.delete_rows(self._runtime, batch, sorted(gone))
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

    def _pause(self, turn: Turn, preparation: BatchPreparation) -> None:
        """Give the lane back before its batch is prepared; its next turn goes on from here."""
        large = [key for key, (_, one) in self._paused.items() if one.has_large_session]
        if preparation.has_large_session and len(large) >= _MAX_PAUSED_LARGE:
            self._paused.pop(large[0])[1].close()
        elif len(self._paused) >= _MAX_PAUSED:
            self._paused.pop(next(iter(self._paused)))[1].close()
        self._paused[turn.lane, turn.batch.number] = turn.lease.fence, preparation
        self._note_paused()
        # A run that stops leaves its lanes to the others at once.
        self._turns.leave(kept_for=timedelta(0) if self.stopping.is_set() else KEPT_FOR)

    def _note_paused(self) -> None:
        self._turns.paused = frozenset(lane for lane, _ in self._paused)

    def _resume(self, batch: ClaimedBatch) -> BatchPreparation | None:
        """Return the paused preparation of a batch; None where another run worked on it since."""
        fence, preparation = self._paused.pop((batch.lane, batch.number), (0, None))
        self._note_paused()
        if preparation is None or batch.fence == fence + 1:
            return preparation
        preparation.close()
        return None


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
