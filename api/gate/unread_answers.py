"""Deadline for clients that do not read their answer. Contract §1."""

import asyncio
from collections.abc import Callable


class UnreadAnswer:
    """Watch over the bytes of a connection's answers that its client has not read yet.

    It runs while nothing is written, so that their number falls if the client reads.
    """

    def __init__(self, transport: asyncio.Transport, *, read_s: float, reset: Callable[[], None]) -> None:
        """Create the watch; it does nothing before `watch`.

        Args:
            transport: holds the bytes.
            read_s: seconds within which a client must read something.
            reset: called if it reads nothing.
        """
        self._transport = transport
        self._read_s = read_s
        self._reset = reset
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin the deadline, if bytes are left and it is not running."""
        unread = self._transport.get_write_buffer_size()
        if unread and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._read_s, self._check_progress, unread)

    def stop(self) -> None:
        """End the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_progress(self, before: int) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= before:
            self._reset()
        else:
            self.watch()
