"""Lifespan of the application: the parts that run beside requests, and their end in order."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import anyio.to_thread
from fastapi import FastAPI

from api.fair_slots import WORKER_THREADS
from api.gate.open_connections import CONNECTIONS, OpenConnections, raise_descriptor_limit
from api.gate.slow_clients import RATE_LIMITER
from recorder import limits
from recorder.access.concurrency import ConcurrencyLimiter, ConcurrencyLimits
from recorder.garbage_collector import MANY_REQUESTS, reduced_garbage_collection
from recorder.recording.ingest import IngestWriter
from recorder.recording.streams import Hub
from recorder.recording.whole_reads import WholeReads
from recorder.runtime import Runtime

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """Start the ingest writer and the streams, and close all parts of `app.state` at the end."""
    state = app.state
    runtime: Runtime = state.runtime
    anyio.to_thread.current_default_thread_limiter().total_tokens = WORKER_THREADS
    state.whole_reads = WholeReads()
    state.large_searches = ConcurrencyLimiter(
        ConcurrencyLimits(
            per_workspace=limits.LARGE_SEARCHES_PER_WORKSPACE, per_process=limits.LARGE_SEARCHES_PER_PROCESS
        )
    )
    state.streams = hub = Hub(runtime, state.stream_times, state.whole_reads)
    hub.start()
    state.ingest = IngestWriter(
        runtime.database, on_commit=hub.deliver_committed_batches, session_size=runtime.settings.session_size
    )
    state.open_connections = _make_lifespan_connections(runtime)
    with reduced_garbage_collection(MANY_REQUESTS), call_on_stop_signal(hub.end_streams):
        yield {RATE_LIMITER: state.rate_limiter, CONNECTIONS: state.open_connections}
    await hub.close()
    state.whole_reads.close()
    await anyio.to_thread.run_sync(state.ingest.close)
    await state.stream_slots.close()
    await anyio.to_thread.run_sync(state.masking.close)
    await state.rate_limiter.close()
    runtime.close()


def _make_lifespan_connections(runtime: Runtime) -> OpenConnections:
    """Return the counts of open connections, with the limits per address and process.

    All have at most three quarters of the process's descriptors, since files, stores and the database need
    some; one address has at most half.
    """
    settings = runtime.settings
    descriptors = raise_descriptor_limit()
    per_process = min(settings.connections.per_process, descriptors * 3 // 4)
    per_address = min(settings.connections.per_address, descriptors // 2, per_process)
    return OpenConnections(per_address, per_process, trusted_proxies=settings.trusted_proxies)


@contextmanager
def call_on_stop_signal(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` in the event loop when the process receives SIGINT or SIGTERM, while the block runs.

    A server runs the end of the lifespan only after all connections are closed. Streams that wait for that
    end, and a server that waits for the streams, would wait for each other. The server's own handlers still
    run. Outside the main thread, or where the server has no handlers, nothing is called.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}

    def handle_stop(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(callback)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, handle_stop)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is handle_stop:
                signal.signal(number, handler)
