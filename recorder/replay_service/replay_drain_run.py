"""Replay drain run: claims, computes and stores the waiting ones. Design §3.

One run at a time works, under a lease. Every transaction that writes checks it, so a run that lost it stores
nothing; the replays it left are replayed again, which touches nothing and gives the same result. Workspaces
take turns, and replays are computed in processes that the kernel ends: a recording that takes too long ends
its own replay alone. A replay that is not done soon is stopped, and computed beside the others.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

import msgspec
from sqlalchemy import delete, insert
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock
from recorder.errors import NotFound, Unavailable
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.replay_service.dry.dry_computation import ComputedReplay, DryComputation
from recorder.replay_service.dry.dry_process import DryOutcome
from recorder.replay_service.dry.dry_tasks import Refusal, needs_anchor_search
from recorder.replay_service.dry.process_replies import ReplayNotComputed
from recorder.replay_service.dry.result_cache import copy_cached_results, set_result_keys
from recorder.replay_service.due_replays import (
    LEASE,
    list_due_replays,
    list_late_replays,
    lock_due_replays,
    lock_late_replays,
)
from recorder.replay_service.recovery_search.candidate_search_process import SearchProcess
from recorder.replay_service.recovery_search.candidate_searches import CandidateSearches
from recorder.replay_service.recovery_search.recovery_work import (
    continue_recovery,
    fail_recovery,
    list_due_recoveries,
    list_recoveries_without_attempt,
    release_recoveries_without_attempt,
)
from recorder.replay_service.requests.deleted_session_replays import end_replays_of_deleted_sessions
from recorder.replay_service.requests.replay_wire_objects import queue_replay_events
from recorder.replay_service.requests.replays import (
    end_replay_as_failed,
    lock_open_replays,
    publish_ended_replays,
    set_replay_ended,
)
from recorder.replay_service.scheduling.replay_drain_counts import ReplayDrainCounts
from recorder.replay_service.scheduling.store_pauses import STORE_TIME_OVER, StorePauses
from recorder.replays.recorded_session import InvalidRecording
from recorder.replays.replay_policy import DECISION_TIME, NO_DECISION
from recorder.replays.replay_results import DryResult
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, hold_lease

log = logging.getLogger("recorder.replays")

LEASE_MS = 60_000
#: Replays that are claimed in one transaction.
_AT_ONCE = 100
#: After this time the run lists the waiting replays again, so that a workspace that came since has its turn.
_TURN_S = 0.5
#: Pause of a run that has nothing to do but searches and long replays.
_PAUSE_S = 0.05


class ReplayDrainRun:
    """The work of one run, under its lease, which a thread renews."""

    def __init__(
        self,
        runtime: Runtime,
        owner: str,
        *,
        turn_s: float = _TURN_S,
        computation: DryComputation | None = None,
        search_process: SearchProcess | None = None,
        pauses: StorePauses | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            owner: name of the run.
            turn_s: seconds after which the waiting replays are listed again.
            computation: computes the replays; by default one of its own.
            search_process: searches for candidates; by default one of its own.
            pauses: replays and recoveries that wait for a store; by default none.
        """
        self._runtime = runtime
        self._owner = owner
        self._turn_s = turn_s
        self._held: HeldLease | None = None
        self._keeper: LeaseKeeper | None = None
        self._computation = computation or DryComputation(runtime)
        #: Whether the last work was on replays that are not long, or on recoveries.
        self.is_busy = False
        self._pauses = pauses or StorePauses()
        self.report = ReplayDrainCounts()
        self._searches = CandidateSearches(runtime, self._pauses, self.report, process=search_process)

    def take(self) -> bool:
        """Take the lease; False while another run has it."""
        database = self._runtime.database
        # All recoveries with an open attempt are searched: not in the write transaction.
        with database.transaction(write=False) as db:
            recovery_ids = list_recoveries_without_attempt(db)
        with database.transaction(write=True) as db:
            held = self._held = hold_lease(db, LEASE, self._owner, ttl_ms=LEASE_MS)
            if held is not None and recovery_ids:
                release_recoveries_without_attempt(db, recovery_ids)
        if held is None:
            return False
        self._computation.start()  # while the lake is opened
        self._keeper = LeaseKeeper(database, lambda: [held], every_s=LEASE_MS / 4_000)
        self._keeper.start()
        # A process may have been killed between the deletion of a session and the end of its replays.
        end_replays_of_deleted_sessions(database)
        return True

    @property
    def held(self) -> HeldLease:
        """The lease, which was taken."""
        assert self._held is not None
        return self._held

    def release(self) -> None:
        """End the processes and the renewals, and release the lease."""
        self._computation.end()
        self._searches.end()
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper.join()
        if self._held is not None:
            with self._runtime.database.transaction(write=True) as db:
                self._held.release(db)
            self._held = self._keeper = None

    def work_on_due_replays(self) -> bool:
        """Continue recoveries, searches and long replays, and replay some of what waits; False without any.

        Raises:
            LeaseLost: if another run took over.
            Unavailable: if many replays of several workspaces wait for a store; what was claimed is replayed
                later.
        """
        assert self._held is not None
        until_s = time.monotonic() + self._turn_s
        is_waiting = self._searches.advance(self._held) or bool(self._computation.long)
        for computed in self._computation.advance_long():
            self._store([computed])
        has_recoveries = self._continue_recoveries(until_s)
        has_late = self._fail_late()
        self.is_busy = self._replay_due(until_s) or has_recoveries or has_late
        is_waiting = is_waiting or bool(self._computation.long)
        if is_waiting and not self.is_busy:
            time.sleep(_PAUSE_S)
        return is_waiting or self.is_busy

    def _continue_recoveries(self, until_s: float) -> bool:
        """Continue the recoveries that wait for no attempt; return False if there are none.

        Args:
            until_s: time of this process's monotonic clock after which none is begun.
        """
        assert self._held is not None
        with self._runtime.database.transaction(write=False) as db:
            due = list_due_recoveries(db, without=self._list_waiting(), full=self._pauses.list_tenants())
        has_continued = False
        for row in due:
            if row.candidates is None:
                has_continued |= self._searches.add(row)
                continue
            has_continued = True
            try:
                ended = continue_recovery(self._runtime, self._held, row)
            except LeaseLost:
                raise
            except Unavailable:
                self._pauses.add_pause(row)
                continue
            except Exception:  # a defect of the service: the run goes on with the others
                log.exception("recovery %s", row.id)
                ended = fail_recovery(self._runtime, self._held, row)
            self._pauses.forget(row.id)
            self.report.count_recovery(ended)
            if time.monotonic() > until_s:
                break
        return has_continued

    def _list_waiting(self) -> list[str]:
        """Return the ids that wait for a store, that are searched for, or that take long."""
        return [*self._pauses.list_ids(), *self._searches.list_ids(), *self._computation.long.list_ids()]

    def _replay_due(self, until_s: float) -> bool:
        """Replay what is due, as the turns of the workspaces have it; return False if nothing is."""
        full = [*self._computation.long.list_full_tenants(), *self._pauses.list_tenants()]
        with self._runtime.database.transaction(write=False) as db:
            due = list_due_replays(db, limit=_AT_ONCE, without=self._list_waiting(), full=full)
        if not due:
            return False
        with self._held_transaction() as db:
            rows = lock_due_replays(db, due)
            begun = [row for row in rows if row.status == "queued"]
            for row in begun:
                row.status, row.started_at = "running", clock.now()
                db.add(row)
            queue_replay_events(db, *begun)
            set_result_keys(db, rows)
            copied = copy_cached_results(db, rows)
        for row in copied.ended:
            self.report.count(row)
        left = {row.id for row in copied.left}
        rows = [row for row in rows if row.finished_at is None and row.id not in left]
        searched = [row for row in rows if needs_anchor_search(row)]
        has_begun = sum(map(self._searches.add, searched)) > 0
        waiting = [row for row in rows if row not in searched]
        with closing(self._computation.replay_each(waiting, until_s)) as groups:
            for computed in groups:
                self._store(computed)
        return bool(copied.ended or waiting) or has_begun

    def _fail_late(self) -> bool:
        """End replays whose time for a decision is over; return False if there are none."""
        with self._runtime.database.transaction(write=False) as db:
            late = list_late_replays(db, limit=_AT_ONCE)
        if not late:
            return False
        with self._held_transaction() as db:
            failed = lock_late_replays(db, late)
            for row in failed:
                end_replay_as_failed(db, row, "timeout", NO_DECISION)
        for row in failed:
            self.report.count(row)
        return True

    def _store(self, computed: Sequence[ComputedReplay]) -> None:
        """Store results together; if that fails, each alone.

        Raises:
            LeaseLost: if another run took over.
            Unavailable: if many replays of several workspaces wait for a store.
        """
        try:
            self._store_results([entry for entry in computed if isinstance(entry.outcome, DryResult)])
        except LeaseLost:
            raise
        except Unavailable:
            for entry in computed:
                self._pauses.add_pause(entry.row)
            return
        except Exception as error:  # a defect of the service: the run goes on with the others
            if len(computed) > 1:
                for entry in computed:
                    self._store([entry])
                return
            log.exception("replay %s", computed[0].row.id)
            self._end_or_pause_replay(computed[0].row, ReplayNotComputed(type(error).__name__))
            return
        for entry in computed:
            if isinstance(entry.outcome, DryResult):
                self._pauses.forget(entry.row.id)
            else:
                self._end_or_pause_replay(entry.row, entry.outcome)

    def _end_or_pause_replay(self, row: ReplayRow, outcome: DryOutcome | Refusal) -> None:
        """End a replay that has no result, or let it wait for its store."""
        if isinstance(outcome, InvalidRecording):
            self._fail_replay(row, "invalid_recording", str(outcome))
        elif isinstance(outcome, Unavailable):
            self._pause(row)
        elif isinstance(outcome, ReplayNotComputed):
            self._fail_replay(row, "internal", f"The replay could not be computed: {outcome}.")
        else:
            assert isinstance(outcome, NotFound)  # deleted: the purge of the session removes the replay

    def _pause(self, row: ReplayRow) -> None:
        """Let a replay wait, because a store did not answer; after some minutes it fails.

        Raises:
            Unavailable: if many replays of several workspaces wait for a store.
        """
        if not self._pauses.has_waited(row.id):
            self._pauses.add_pause(row)
        else:
            self._fail_replay(row, "internal", STORE_TIME_OVER)

    def _fail_replay(self, row: ReplayRow, type: str, message: str) -> None:
        self._pauses.forget(row.id)
        with self._held_transaction() as db:
            current = lock_open_replays(db, [row]).get(row.id)
            if current is not None:
                end_replay_as_failed(db, current, type, message)
                self.report.count(current)

    def _store_results(self, computed: Sequence[ComputedReplay]) -> None:
        """Store steps, results and events together, without replays that were ended or steered since."""
        if not computed:
            return
        ended = []
        with self._held_transaction() as db:
            current = lock_open_replays(db, [entry.row for entry in computed])
            db.connection().execute(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_(current)))
            steps = []
            for entry in computed:
                if entry.row.id in current and isinstance(entry.outcome, DryResult):
                    row = current[entry.row.id]
                    row.anchor_event = row.anchor_event or entry.anchor_event
                    steps += [
                        {"replay_id": row.id, **msgspec.to_builtins(step)} for step in entry.outcome.steps
                    ]
                    _set_drained_replay_result(row, entry.outcome)
                    db.add(row)
                    if row.finished_at is not None:
                        ended.append(row)
            publish_ended_replays(db, *ended)
            if steps:
                db.connection().execute(insert(ReplayStepRow), steps)
        for row in ended:
            self.report.count(row)

    def _held_transaction(self) -> AbstractContextManager[DbSession]:
        assert self._held is not None
        return self._held.transaction(self._runtime.database)


def _set_drained_replay_result(row: ReplayRow, result: DryResult) -> None:
    """Set the columns of a replay from its result."""
    row.summary = msgspec.to_builtins(result.summary)
    row.divergence = msgspec.to_builtins(result.divergence)
    row.step = row.steps = len(result.steps)
    if result.status == "awaiting":
        row.steps = None
        row.awaiting_step = result.awaiting_step
        row.awaiting_until = clock.now() + DECISION_TIME
    elif result.error is not None:
        row.error = {"type": result.error.type, "message": result.error.message}
        set_replay_ended(row, "failed")
    else:
        set_replay_ended(row, result.status)
