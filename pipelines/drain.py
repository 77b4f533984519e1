"""The loop of a drain run: seal batch after batch until nothing stops any more. Design §3 (sealing)."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from recorder.sealing import LeaseLost, SealedBatch, Sealer

Ending = Literal["idle", "time is up", "interrupted", "lease lost"]

_POLL_S = 0.025
_TIDY_EVERY_S = 30.0
_TIDY_UNDER_LOAD_EVERY_S = 300.0
_TIDY_AFTER_IDLE_S = 1.0


class Drain:
    """Seals under a lease that is already held, and says now and then what it has sealed."""

    def __init__(self, sealer: Sealer, *, idle_seconds: float, max_seconds: float) -> None:
        self._sealer = sealer
        self._idle_seconds = idle_seconds
        self._max_seconds = max_seconds
        self._is_stopping = False
        #: Why the loop ended.
        self.ending: Ending = "idle"

    def stop(self) -> None:
        """End after the batch at hand."""
        self._is_stopping = True

    def reports(self) -> Iterator[list[SealedBatch]]:
        """Seal, and hand out what was sealed since the last report; every batch is in exactly one.

        In the first seconds there is a report every second; in a long run they become rare (one in 30 s), so
        that an hour of traffic leaves a few hundred records in the run's log, not thousands.
        """
        began = worked = time.monotonic()
        reported, tidied = began - 1.0, began - _TIDY_EVERY_S
        batches: list[SealedBatch] = []
        while not self._is_over(began, worked):
            try:
                batch = self._sealer.seal_batch()
            except LeaseLost:
                self.ending = "lease lost"
                break
            now = time.monotonic()
            if batch is not None:
                batches.append(batch)
                worked = now
            if batches and now - reported >= _report_interval(now - began):
                yield batches
                batches, reported = [], time.monotonic()
            if batch is None and now - worked >= _TIDY_AFTER_IDLE_S:
                due = _TIDY_EVERY_S
            else:
                due = _TIDY_UNDER_LOAD_EVERY_S
            if now - tidied >= due:
                self._sealer.maintain()
                tidied = time.monotonic()
            elif batch is None:
                time.sleep(_POLL_S)
        if batches:
            yield batches

    def _is_over(self, began: float, worked: float) -> bool:
        now = time.monotonic()
        if self._is_stopping:
            self.ending = "interrupted"
        elif now - began >= self._max_seconds:
            self.ending = "time is up"
        elif now - worked < self._idle_seconds:
            return False
        return True


@contextmanager
def deferred_interrupts(on_interrupt: Callable[[], None]) -> Iterator[None]:
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


def _report_interval(run_seconds: float) -> float:
    return min(30.0, max(1.0, run_seconds / 20))
