"""Loop of a sealing drain run: seals batches until no session has stopped for some minutes. Design §3."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from recorder.errors import Unavailable
from recorder.sealing import SealedBatch, Sealer
from recorder.storage.leases import LeaseLost

log = logging.getLogger("recorder.sealing")

SealingDrainEnding = Literal["idle", "time is up", "interrupted", "lease lost"]

_POLL_S = 0.025
# A run without work for some time looks less often: 0.5 % of a core instead of 8 %.
_IDLE_POLL_S, _IDLE_AFTER_S = 0.5, 10.0
# A search for work that takes long (many lanes wait) is repeated less often: 10 % of a core, up to a pause
# that no waiting session notices.
_POLL_PER_SEARCH, _LONGEST_SEARCH_PAUSE_S = 10, 0.5
_TIDY_EVERY_S = 30.0
_TIDY_UNDER_LOAD_EVERY_S = 300.0
_TIDY_AFTER_IDLE_S = 1.0
_FIRST_STORE_PAUSE_S, _LONGEST_STORE_PAUSE_S = 1.0, 15.0


class SealingDrainLoop:
    """Loop of a sealing drain run, which seals and regularly reports what it has sealed."""

    def __init__(self, sealer: Sealer, *, idle_seconds: float, max_seconds: float) -> None:
        self._sealer = sealer
        self._idle_seconds = idle_seconds
        self._max_seconds = max_seconds
        self._store_pause_s = _FIRST_STORE_PAUSE_S
        #: Why the loop ended.
        self.ending: SealingDrainEnding = "idle"

    def stop(self) -> None:
        """End after the portion at hand."""
        self._sealer.stopping.set()

    def seal_and_report(self) -> Iterator[list[SealedBatch]]:
        """Seal, and yield what was sealed since the last report; every batch is in exactly one report.

        A report may be empty: what the one before could not show is shown then.
        In the first seconds there is a report every second; in a long run they become rare (one in 30 s), so
        that an hour of traffic leaves a few hundred records in the run's log, not thousands. Idle work runs
        beside the sealing: it must not keep a session waiting, and a batch that fails must not stop it.
        """
        began = worked = time.monotonic()
        reported, tidied = began - 1.0, began - _TIDY_EVERY_S
        batches: list[SealedBatch] = []
        tidying: Future[bool] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="maintenance") as maintenance:
            while not self._is_over(began, worked):
                batch = self._seal()
                now = time.monotonic()
                if batch is not None:
                    batches.append(batch)
                    worked = now
                if now - reported >= _compute_drain_report_interval(now - began):
                    yield batches
                    batches, reported = [], time.monotonic()
                is_idle = batch is None and now - worked >= _TIDY_AFTER_IDLE_S
                pause_s = _TIDY_EVERY_S if is_idle else _TIDY_UNDER_LOAD_EVERY_S
                if tidying is not None and tidying.done() and tidying.result():
                    pause_s = 0.0
                if now - tidied >= pause_s and (tidying is None or tidying.done()):
                    tidying = maintenance.submit(self._maintain)
                    tidied = time.monotonic()
                if batch is None:
                    self._sealer.stopping.wait(
                        choose_sealing_pause(self._sealer.search_s, idle_s=now - worked)
                    )
        if batches:
            yield batches

    def _seal(self) -> SealedBatch | None:
        """Seal the next batch; None where there is none, or where a lane or store was lost."""
        try:
            batch = self._sealer.seal_batch()
        except LeaseLost as error:
            log.warning("%s", error)
            return None
        except Unavailable as error:
            if self._sealer.has_stores():
                # A table, or a deadlock that has passed: other lanes need not wait for this one.
                log.warning("%s The lane waits, other lanes go on. Cause: %s", error, error.__cause__)
                return None
            # The cause names the part that is gone.
            log.warning("%s Sealing waits %.0f s. Cause: %s", error, self._store_pause_s, error.__cause__)
            self._sealer.stopping.wait(self._store_pause_s)
            self._store_pause_s = min(_LONGEST_STORE_PAUSE_S, 2 * self._store_pause_s)
            return None
        self._store_pause_s = _FIRST_STORE_PAUSE_S
        return batch

    def _maintain(self) -> bool:
        """Clean up; return True if hot rows are left that can be swept at once."""
        try:
            return self._sealer.maintain().is_sweep_cut
        except Exception:  # whatever fails here must not end the run; it is tried again
            log.exception("maintenance of the lake failed")
            return False

    def _is_over(self, began: float, worked: float) -> bool:
        """Return whether the run ends now: stopped, out of time, without its lease, or idle for long."""
        now = time.monotonic()
        if self._sealer.stopping.is_set():
            self.ending = "lease lost" if self._sealer.has_lost_run_lease else "interrupted"
        elif now - began >= self._max_seconds:
            self.ending = "time is up"
        elif now - worked < self._idle_seconds:
            return False
        return True


def choose_sealing_pause(search_s: float, *, idle_s: float) -> float:
    """Return the seconds until the next search for work.

    Args:
        search_s: seconds that the last search took; 0 if there was work, or an error.
        idle_s: seconds since the run last sealed a batch.
    """
    poll_s = _IDLE_POLL_S if search_s and idle_s >= _IDLE_AFTER_S else _POLL_S
    return max(poll_s, min(_LONGEST_SEARCH_PAUSE_S, _POLL_PER_SEARCH * search_s))


@contextmanager
def defer_interrupts(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Let the block finish in order when SIGINT or SIGTERM arrives.

    Dagster answers both (a cancelled run, a service that stops) by raising in the middle of whatever runs;
    here the batch at hand is completed and the lease given back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def _note(number: int, frame: FrameType | None) -> None:
        on_interrupt()

    previous = {number: signal.signal(number, _note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _compute_drain_report_interval(run_seconds: float) -> float:
    return min(30.0, max(1.0, run_seconds / 20))
