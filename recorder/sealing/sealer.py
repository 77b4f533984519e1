"""One sealing run: claim a batch, write the lake, index the graph, mark it sealed. Design §3 (sealing).

Order of effects: lake first (each number of a lane is taken once), then ONE transaction with the graph's
rows, `status = sealed` and the outbox. A run killed in between leaves an open batch that the next run does
again.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError
from recorder.memory.storing.indexing import GraphIndexer
from recorder.memory.storing.rebuilds import rebuild_graph
from recorder.models.session import SessionMetadataRow, SessionRow, SessionStatusRow
from recorder.recording.sessions import change_status, emit
from recorder.runtime import Runtime
from recorder.sealing import lane
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.lane import ClaimedBatch
from recorder.sealing.preparation import BatchPreparation
from recorder.sealing.rows import PreparedSession
from recorder.sealing.upkeep import Maintenance, maintain
from recorder.storage.lake import LakeAhead
from recorder.storage.leases import Lease, release_lease


@dataclass(frozen=True)
class SealedBatch:
    """What one batch sealed."""

    workspace_id: str
    mode: str
    workflows: list[str]
    sessions: int
    events: int
    frames: int
    seconds: float
    #: Stopped → sealed of each session, in seconds.
    lags_s: list[float] = field(repr=False)


class Sealer:
    """Seals batch after batch under the lease; one per run."""

    def __init__(self, runtime: Runtime, *, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner
        self._lease: Lease | None = None
        settings = runtime.settings
        self._pool = DigestPool(settings.blob_url, processes=settings.seal_processes)
        self._indexer = GraphIndexer()
        self._lanes: set[tuple[str, str]] = set()
        self._renew_at = 0.0

    def take(self) -> bool:
        """Take the sealing lease; False while another run holds it."""
        with self._runtime.database.transaction(write=True) as db:
            self._lease = lane.take(db, self._owner)
        return self._lease is not None

    def release(self) -> None:
        """Give the lease back."""
        self._pool.close()
        if self._lease is not None:
            with self._runtime.database.transaction(write=True) as db:
                release_lease(db, self._lease)

    def seal_batch(self) -> SealedBatch | None:
        """Seal the next batch of any lane; None when nothing waits.

        Raises:
            LeaseLost: if another run took over; nothing was marked.
            Unavailable: if a store does not answer; the batch stays open.
        """
        began = time.monotonic()
        batch = self._claim()
        if batch is None:
            return None
        with self._kept_lease():
            preparation = BatchPreparation(self._runtime, self._pool, batch, hold=self._hold)
            try:
                while not preparation.advance():
                    continue
            finally:
                preparation.close()
            if preparation.failures:
                raise preparation.failures[0]
            sessions = preparation.sessions
            self._commit_lake(batch, preparation)
            lags = self._mark(batch, sessions)
            preparation.discard()
            for scope in self._indexer.take_grown():
                # The batch is sealed by now; a rebuild that cannot be had is made up for at night.
                with suppress(RecorderError):
                    rebuild_graph(self._runtime.database, scope, "anchored")
        self._lanes.add((batch.workspace_id, batch.mode))
        return SealedBatch(
            workspace_id=batch.workspace_id,
            mode=batch.mode,
            workflows=sorted({facts.row.workflow for facts in sessions}),
            sessions=len(sessions),
            events=sum(facts.event_count for facts in sessions),
            frames=sum(facts.frame_count for facts in sessions),
            seconds=time.monotonic() - began,
            lags_s=lags,
        )

    def maintain(self) -> Maintenance:
        """Idle work: sweep hot rows whose streams cannot be resumed any more, compact what this run wrote.

        Raises:
            LeaseLost: if another run took over.
        """
        return maintain(self._runtime, self._held(), self._lanes)

    @contextmanager
    def _kept_lease(self) -> Iterator[None]:
        """Renew the lease while a batch is worked on: its pictures may take longer than the lease lasts.

        Without this the next run would begin the same batch again, and so would the one after it.
        """
        is_over = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(is_over,), name="lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            is_over.set()
            renewing.join()

    def _renew_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(lane.LEASE_MS / 3000):
            # A lease that is lost shows when the batch is marked.
            with suppress(RecorderError), self._runtime.database.transaction(write=True) as db:
                lane.hold(db, self._held())

    def _claim(self) -> ClaimedBatch | None:
        database = self._runtime.database
        with database.transaction(write=False) as db:
            is_idle = not lane.has_open_batch(db) and not lane.has_stopped(db)
        if is_idle and not self._renews_now():
            return None
        with database.transaction(write=True) as db:
            return lane.claim(db, self._held())

    def _renews_now(self) -> bool:
        """Whether the lease should be renewed although nothing waits: at a third of its time."""
        now = time.monotonic()
        if now < self._renew_at:
            return False
        self._renew_at = now + lane.LEASE_MS / 3000
        return True

    def _hold(self, db: DbSession) -> None:
        lane.hold(db, self._held())

    def _commit_lake(self, batch: ClaimedBatch, preparation: BatchPreparation) -> None:
        """Commit the files to the tables of the lane; each takes the batch's number once."""
        try:
            for kind, files in preparation.files.items():
                self._runtime.lake.commit(
                    kind, batch.workspace_id, batch.mode, files, lane=batch.lane, number=batch.number
                )
        except LakeAhead:
            # Most often another run went on with this lane: then the lease says so.
            with self._runtime.database.transaction(write=True) as db:
                self._hold(db)
            raise

    def _mark(self, batch: ClaimedBatch, sessions: list[PreparedSession]) -> list[float]:
        """Make the batch visible: graph, status and outbox in one transaction; returns the lags."""
        steps = {facts.row.id: facts.steps for facts in sessions}
        with self._runtime.database.transaction(write=False) as db:
            prepared = self._indexer.prepare(db, [facts.row for facts in sessions], steps)
        with self._runtime.database.transaction(write=True) as db:
            lane.hold(db, self._held())
            lane.finish(db, batch)
            rows = _lock_rows(db, list(steps))
            for row in rows:
                _mark_sealed(db, row, batch)
            self._indexer.commit(db, prepared, rows)
            stops = _stop_times(db, list(steps))
        return [(clock.now() - at).total_seconds() for at in stops]

    def _held(self) -> Lease:
        assert self._lease is not None, "take the lease first"
        return self._lease


def _lock_rows(db: DbSession, session_ids: list[str]) -> list[SessionRow]:
    statement = select(SessionRow).where(col(SessionRow.id).in_(session_ids), SessionRow.status == "stopped")
    rows = list(db.exec(statement.order_by(col(SessionRow.id)).with_for_update()))
    # One query for what each outbox event shows.
    db.exec(select(SessionMetadataRow).where(col(SessionMetadataRow.session_id).in_(session_ids))).all()
    return rows


def _mark_sealed(db: DbSession, row: SessionRow, batch: ClaimedBatch) -> None:
    now = clock.now()
    row.sealed_at, row.seal_seq, row.lake_date = now, batch.seal_seq(row.id), batch.date
    change_status(db, row, "sealed", now)
    if row.deleted_at is None:
        emit(db, row, "session.sealed")


def _stop_times(db: DbSession, session_ids: list[str]) -> list[datetime]:
    """When the sessions were stopped, by our clock: `stopped_at` of an import is its recording's."""
    statement = select(SessionStatusRow.at).where(
        col(SessionStatusRow.session_id).in_(session_ids), SessionStatusRow.status == "stopped"
    )
    return list(db.exec(statement))
