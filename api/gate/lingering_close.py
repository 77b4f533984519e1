"""Lingering close: a client that still sends its body can read the answer. RFC 9112 §9.6, contract §1.

A connection that is closed while bytes of its client are unread is reset by the system, and the reset may
delete the answer before the client has read it. Writing is ended first instead, and what arrives is dropped
for a while. The connections that linger share the bounds of `LingeringConnections`.
"""

import asyncio
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from recorder import limits

#: `SO_LINGER` on, with no time: closing sends a reset instead of an end.
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
#: Reading is not paused for less than this.
_PAUSE_S = 0.02


class LingeringConnections:
    """Bounds of the connections that linger, in one process; used from its event loop."""

    def __init__(
        self,
        most: int = limits.LINGERING_CONNECTIONS,
        *,
        most_bytes: int = limits.LINGERING_BYTES,
        bytes_per_s: int = limits.LINGERING_BYTES_PER_SECOND,
        silence_s: float = limits.LINGERING_SILENCE_SECONDS,
        longest_s: float = limits.LINGERING_SECONDS,
    ) -> None:
        """Begin without connections.

        Args:
            most: connections that linger; for a further one, the one that has lingered longest is closed.
            most_bytes: bytes that one connection drops.
            bytes_per_s: bytes that all of them drop in a second; reading is paused to keep to it.
            silence_s: time after which a client that sends nothing is closed.
            longest_s: time after which any connection is closed.
        """
        self.most_bytes = most_bytes
        self.silence_s, self.longest_s = silence_s, longest_s
        self._most, self._bytes_per_s = most, bytes_per_s
        #: The connection that has lingered longest is the first.
        self._closing: OrderedDict[LingeringTransport, None] = OrderedDict()
        #: When all bytes so far are paid for, on the event loop's clock.
        self._paid_at = 0.0

    def add(self, transport: "LingeringTransport") -> None:
        """Add a connection that begins to linger; close another one if there are too many."""
        self._closing[transport] = None
        if len(self._closing) > self._most:
            next(iter(self._closing)).end()

    def remove(self, transport: "LingeringTransport") -> None:
        """Remove a connection, if it is one of them."""
        self._closing.pop(transport, None)

    def pay(self, count: int, now: float) -> float:
        """Count dropped bytes; return the seconds until the next ones may be read."""
        self._paid_at = max(self._paid_at, now) + count / self._bytes_per_s
        return self._paid_at - now


class LingeringTransport(asyncio.Transport):
    """Transport whose `close` lingers where the client still sends."""

    def __init__(
        self,
        transport: asyncio.Transport,
        connections: LingeringConnections | None,
        is_client_sending: Callable[[], bool],
    ) -> None:
        """Wrap a transport.

        Args:
            transport: the connection's.
            connections: bounds of the process; None closes at once.
            is_client_sending: returns whether the client may have more to send.
        """
        super().__init__()
        self.wrapped = transport
        self._connections = connections
        self._is_client_sending = is_client_sending
        self._loop = asyncio.get_running_loop()
        self._lingers = False
        self._dropped_bytes = self._checked_bytes = 0
        self._ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close the connection, at once or after the client has ended; a second call does not wait."""
        if self._lingers or self._connections is None or not self._is_client_sending():
            self.end()
        elif not self.wrapped.is_closing():
            self._begin_lingering(self._connections)

    def end(self) -> None:
        """Close the connection once what was written is sent."""
        self.stop()
        self.wrapped.close()

    def forget_protocol(self) -> None:
        """End the deadlines of a connection that is lost, and forget its protocol."""
        self.stop()
        self._is_client_sending = _is_lost_client_sending

    def stop(self) -> None:
        """End the deadlines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connections is not None:
            self._connections.remove(self)

    def drop(self, count: int) -> None:
        """Count bytes that arrived and are dropped; pause reading, or close, where they are too many."""
        if not self._lingers or self._connections is None or self.wrapped.is_closing():
            return
        self._dropped_bytes += count
        wait_s = self._connections.pay(count, self._loop.time())
        if self._dropped_bytes > self._connections.most_bytes:
            self.end()
        elif wait_s > _PAUSE_S:
            self.wrapped.pause_reading()
            self._loop.call_later(wait_s, self._resume_reading)

    def reset(self) -> None:
        """Reset the connection so that its client sees a failure, even for a body without a known length."""
        connection = self.wrapped.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):  # of another family than TCP, or closed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self.abort()

    def _begin_lingering(self, connections: LingeringConnections) -> None:
        """Close the sending half, and drop what the client still sends for a limited time."""
        if not self.wrapped.can_write_eof():
            self.end()
            return
        self._lingers = True
        self._ends_at = self._loop.time() + connections.longest_s
        self._timer = self._loop.call_later(connections.silence_s, self._check_silence, connections)
        connections.add(self)
        self.wrapped.write_eof()
        self._resume_reading()

    def _check_silence(self, connections: LingeringConnections) -> None:
        """Close the connection if the client was silent since the last check or the time is up."""
        is_silent = self._dropped_bytes == self._checked_bytes
        self._checked_bytes = self._dropped_bytes
        left_s = self._ends_at - self._loop.time()
        if is_silent or left_s <= 0:
            self.end()
        else:
            self._timer = self._loop.call_later(
                min(connections.silence_s, left_s), self._check_silence, connections
            )

    def _resume_reading(self) -> None:
        if not self.wrapped.is_closing() and not self.wrapped.is_reading():
            self.wrapped.resume_reading()

    # The methods of the transport that a protocol calls.

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or lingers."""
        return self._lingers or self.wrapped.is_closing()

    def abort(self) -> None:
        """Close the connection without the bytes that were not sent yet."""
        self.stop()
        self.wrapped.abort()

    def write(self, data: Any) -> None:
        """Send bytes; those of a connection that lingers are dropped."""
        if not self._lingers:
            self.wrapped.write(data)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes were not sent yet."""
        return self.wrapped.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information on the connection."""
        return self.wrapped.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more."""
        self.wrapped.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.wrapped.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass what arrives to another protocol."""
        self.wrapped.set_protocol(protocol)


def _is_lost_client_sending() -> bool:
    """Return that a client whose connection is lost sends nothing more."""
    return False
