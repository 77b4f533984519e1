"""Hearing early that the process is to stop: a server tells the app only when all connections are closed.

So streams that wait for that to end, and a server that waits for the streams, would wait for each other.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heard_stop(tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell` in the event loop when the server is asked to stop, while the block runs.

    The server's own handlers go on to do their work. Outside the main thread, or where the server has none,
    nothing is heard.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(tell)
        handle = before[signal.Signals(number)]
        if callable(handle):
            handle(number, frame)

    for number, handle in before.items():
        if callable(handle):
            signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handle in before.items():
            if signal.getsignal(number) is hear:
                signal.signal(number, handle)
