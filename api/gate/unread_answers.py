"""Deadline for clients that do not read their answer, and a cap on the bytes that they leave. Contract §1."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from api.gate.held_bytes import HeldBytes

#: Fewer bytes of a connection are not counted, which spares short answers the time.
_COUNTED_BYTES = 16_384
_UNSENT_BYTES = 16_384


class UnreadAnswer:
    """Watch over the bytes of a connection's answers that its client has not read yet.

    It runs while nothing is written, so that their number falls if the client reads.

    Attributes:
        held: counts the bytes of all connections; None for other applications.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        read_s: float,
        reset: Callable[[], None],
        find_owner: Callable[[], str],
    ) -> None:
        """Prepare the connection, so that the kernel shows what its client reads; `watch` begins the watch.

        Args:
            transport: holds the bytes.
            read_s: seconds within which a client must read something.
            reset: called if it reads nothing.
            find_owner: returns the workspace or the address that asked for the answer.
        """
        self.held: HeldBytes[UnreadAnswer] | None = None
        self._transport = transport
        self._read_s = read_s
        self.reset = reset
        self._find_owner = find_owner
        self._timer: asyncio.TimerHandle | None = None
        _limit_unsent_bytes(transport)

    def count_bytes(self) -> int:
        """Return how many bytes are left."""
        return self._transport.get_write_buffer_size()

    def watch(self) -> None:
        """Begin the deadline, if bytes are left and it is not running."""
        unread = self.count_bytes()
        if unread and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._read_s, self._check_progress, unread)
            if self.held is not None and unread >= _COUNTED_BYTES:
                self.held.hold(self, self._find_owner())

    def stop(self) -> None:
        """End the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._stop_counting_bytes()

    def forget_protocol(self) -> None:
        """End the deadline of a connection that is lost, and forget its protocol."""
        self.stop()
        self.reset, self._find_owner = _do_nothing, str

    def _stop_counting_bytes(self) -> None:
        if self.held is not None:
            self.held.drop(self)

    def _check_progress(self, before: int) -> None:
        """Reset the connection if its client read nothing since the last check."""
        self._timer = None
        self._stop_counting_bytes()
        if self.count_bytes() >= before:
            self.reset()
        else:
            self.watch()


def _limit_unsent_bytes(transport: asyncio.Transport) -> None:
    """Let the kernel take bytes again as soon as few are unsent, so that a client that reads is seen to read.

    Linux would wait until a third of its buffer is free, which grows to megabytes: a client that reads 64 kB
    in each second would count as one that reads nothing for ten seconds.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        with suppress(OSError, AttributeError):  # closed already, or a system without the option
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def _do_nothing() -> None:
    """Do nothing: the connection is lost."""
