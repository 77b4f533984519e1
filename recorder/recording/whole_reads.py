"""Reads of whole sessions in this process: their number, threads and memory. Contract §1, §2."""

import asyncio
import ctypes
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import pyarrow as pa

from recorder import limits
from recorder.access.concurrency import ConcurrencyLimiter, ConcurrencyLimits
from recorder.access.keys import Caller

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Decoding holds the interpreter's lock, so more threads would only let other requests wait longer for it.
_THREADS = 2
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

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run a portion of work in the threads of whole reads; portions of all reads take turns."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def submit(self, work: Callable[[], object]) -> None:
        """Run something in the threads of whole reads without waiting for it."""
        with suppress(RuntimeError):  # the process stops
            self._threads.submit(work)

    def close(self) -> None:
        """Drop what has not begun, at the end of the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def pause() -> None:
    """Let the threads that wait for the interpreter's lock run: the event loop above all."""
    time.sleep(0)


def release_memory() -> None:
    """Return free memory to the system: Arrow's pool first, then the heap of the C library."""
    pa.default_memory_pool().release_unused()
    # Another C library than glibc has no such function, and keeps less.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
