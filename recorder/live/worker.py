"""Replay worker: a process that stays, and does live replays as they are asked for. Decision 0045."""

import logging
import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Conflict
from recorder.live.claimed_replay import (
    claim_live_replay,
    end_lost_live_replays,
    list_next_live_replays,
    run_claimed_replay,
)
from recorder.live.replay_plan import LiveReplayPlanner
from recorder.models.operations import LeaseRow
from recorder.models.replay import ReplayRow
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, hold_lease, make_unexpired_condition

log = logging.getLogger("recorder.replays")

_PREFIX = "replay-worker/"
#: Workers that a deployment can have.
_MOST_WORKERS = 64
_LEASE_MS = 20_000
_RENEW_S = 5.0
_POLL_S = 0.5
#: Polls between two searches for replays whose worker is gone.
_POLLS_PER_SWEEP = 10
_KEPT_TURNS = 1_000


class TooManyWorkers(Conflict):
    """As many replay workers run as a deployment may have."""

    def __init__(self) -> None:
        super().__init__(
            f"{_MOST_WORKERS} replay workers run already; give one of them more RECORDER_LIVE_PLACES instead."
        )


def has_replay_worker(db: DbSession) -> bool:
    """Return whether a replay worker runs, so that Dagster leaves live replays to it."""
    statement = select(LeaseRow.name).where(
        col(LeaseRow.name).startswith(_PREFIX), make_unexpired_condition(clock.now_ms())
    )
    return db.exec(statement.limit(1)).first() is not None


@dataclass
class ReplayWorker:
    """Worker for up to `slots` live replays at a time, each in a thread with a browser of its own."""

    runtime: Runtime
    slots: int
    _running: dict[str, tuple[threading.Thread, str]] = field(default_factory=dict)
    #: Workspaces in the order in which they were served last.
    _served: OrderedDict[str, None] = field(default_factory=OrderedDict)
    #: Processes that wait for a recording to read.
    _planners: queue.SimpleQueue[LiveReplayPlanner] = field(default_factory=queue.SimpleQueue)
    _is_stopping: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Take no more replays, and end those under way at their next step."""
        self._is_stopping.set()

    def run(self, on_start: Callable[[], object] = lambda: None) -> None:
        """Work until `stop`.

        Args:
            on_start: called once the worker is registered.

        Raises:
            TooManyWorkers: if as many workers run as may.
        """
        owner = secrets.token_hex(8)
        held = self._hold_worker_lease(owner)
        try:
            with LeaseKeeper(self.runtime.database, lambda: [held], every_s=_RENEW_S):
                on_start()
                polls = 0
                while not self._is_stopping.is_set():
                    try:
                        if polls % _POLLS_PER_SWEEP == 0:
                            end_lost_live_replays(self.runtime.database)
                        while self._start_one(owner):
                            pass
                    except Exception:  # whatever it was: the next poll tries again
                        log.exception("replay worker")
                    polls += 1
                    self._is_stopping.wait(_POLL_S)
                for thread, _ in list(self._running.values()):
                    thread.join()
        finally:
            while not self._planners.empty():
                self._planners.get().end()
            with self.runtime.database.transaction(write=True) as db:
                held.release(db)

    def _hold_worker_lease(self, owner: str) -> HeldLease:
        for number in range(_MOST_WORKERS):
            with self.runtime.database.transaction(write=True) as db:
                held = hold_lease(db, f"{_PREFIX}{number}", owner, ttl_ms=_LEASE_MS)
            if held is not None:
                return held
        raise TooManyWorkers

    def _start_one(self, owner: str) -> bool:
        """Claim a replay and begin it; return whether there was one and a free slot."""
        for replay_id, (thread, _) in list(self._running.items()):
            if not thread.is_alive():
                del self._running[replay_id]
        if len(self._running) >= self.slots or self._is_stopping.is_set():
            return False
        busy = [workspace for _, workspace in self._running.values()]
        # Most polls find nothing, and other processes wait for a write transaction.
        with self.runtime.database.transaction(write=False) as db:
            waiting = list_next_live_replays(db, busy=busy, slots=self.slots, served=list(self._served))
        if not waiting:
            return False
        with self.runtime.database.transaction(write=True) as db:
            claimed = claim_live_replay(db, owner, waiting)
        if claimed is None:
            return False
        row, held = claimed
        self._served[row.workspace_id] = None
        self._served.move_to_end(row.workspace_id)
        while len(self._served) > _KEPT_TURNS:
            self._served.popitem(last=False)
        thread = threading.Thread(target=self._run_replay, args=(row, held), name=f"live-{row.id}")
        self._running[row.id] = (thread, row.workspace_id)
        thread.start()
        return True

    def _run_replay(self, row: ReplayRow, held: HeldLease) -> None:
        try:
            planner = self._planners.get_nowait()
        except queue.Empty:
            planner = LiveReplayPlanner()
        try:
            run_claimed_replay(self.runtime, row, held, planner, self._is_stopping.is_set)
        except Exception:  # the replay ends once its lease is seen to be gone
            log.exception("replay %s", row.id)
        finally:
            self._planners.put(planner)
