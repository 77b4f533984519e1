"""Reads of whole sessions in this process: their number, threads and memory. Contract §1, §2."""

import asyncio
import ctypes
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import pyarrow as pa

from recorder import limits
from recorder.access.concurrency import ConcurrencyLimiter, ConcurrencyLimits
from recorder.access.keys import Caller
from recorder.fair_scheduling import RoundRobinQueue

_Result = TypeVar("_Result")

# Decoding holds the interpreter's lock: a second thread only made other requests wait longer for it.
_THREADS = 1
# While several reads are under way, the thread rests as long as it worked, within these bounds. Reading a
# portion of a sealed session takes a millisecond, and the event loop works longer on sending it.
_LEAST_REST_S, _LONGEST_REST_S = 0.003, 0.02
#: A refused client tries again after this: reads of usual sessions end sooner.
_RETRY_S = 5


class WholeReads:
    """Whole-session reads of one process; used from its event loop."""

    def __init__(self) -> None:
        self._limiter = ConcurrencyLimiter(
            ConcurrencyLimits(
                per_key=limits.WHOLE_READS_PER_KEY,
                per_workspace=limits.WHOLE_READS_PER_WORKSPACE,
                per_process=limits.WHOLE_READS_PER_PROCESS,
            ),
            retry_after_s=_RETRY_S,
        )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="whole-reads")
        self._lock = _RoundRobinLock()

    @property
    def count(self) -> int:
        """Reads under way."""
        return self._limiter.count

    @contextmanager
    def hold(self, caller: Caller) -> Iterator[None]:
        """Count a read for as long as the block runs; after the last one, memory returns to the system.

        Raises:
            RateLimited: if the key, the workspace or the process has as many under way as it may.
        """
        with self._limiter.acquire(caller.key_id, caller.workspace_id):
            yield
        if self._limiter.count == 0:
            self.submit(release_memory)

    async def run(self, workspace_id: str, work: Callable[[], _Result]) -> _Result:
        """Run a portion of work in the thread of whole reads; workspaces take turns, then their reads."""
        await self._lock.acquire(workspace_id)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._work_and_rest, work)
        finally:
            self._lock.release()

    def submit(self, work: Callable[[], object]) -> None:
        """Run something in the thread of whole reads without waiting for it."""
        with suppress(RuntimeError):  # the process stops
            self._threads.submit(work)

    def _work_and_rest(self, work: Callable[[], _Result]) -> _Result:
        began = time.perf_counter()
        try:
            return work()
        finally:
            if self._limiter.count > 1:
                worked_s = time.perf_counter() - began
                time.sleep(min(max(worked_s, _LEAST_REST_S), _LONGEST_REST_S))

    def close(self) -> None:
        """Drop what has not begun, at the end of the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _RoundRobinLock:
    """Lock for which workspaces wait round robin; used from the event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting = RoundRobinQueue[asyncio.Future[None]]()

    async def acquire(self, workspace_id: str) -> None:
        """Wait for the lock; call `release` at the end."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(workspace_id, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Pass the lock to the next workspace, or free it if none waits."""
        while (taken := self._waiting.take()) is not None:
            _, turn = taken
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


def let_threads_run() -> None:
    """Let the threads that wait for the interpreter's lock run: the event loop above all."""
    time.sleep(0)


def release_memory() -> None:
    """Return free memory to the system: Arrow's pool first, then the heap of the C library."""
    pa.default_memory_pool().release_unused()
    # Another C library than glibc has no such function, and keeps less.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
