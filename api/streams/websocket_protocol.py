"""WebSocket protocol for uvicorn: pings, shared frames, and limits for clients that read or send badly.

`uvicorn --ws api.streams.websocket_protocol:WatchedSocket`. Messages of a stream are encoded as frames once
for all its readers; compression for each reader would cost more than all other work.
"""

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from api.gate.open_connections import CONNECTIONS, OpenConnections
from recorder import limits

#: ASGI extension, and the type of its message: `bytes` holds complete text frames to write unchanged.
SHARED_FRAMES: Final = "websocket.shared_frames"
#: Clients of streams send no messages of use. Each takes 10 µs, however small; a read may hold 40,000.
_MESSAGE_BYTES: Final = 64 * 1024
#: Bytes that are read at once, and then each second; as many as a message may wait.
_READ_BYTES: Final = 1_024
_READ_PAUSE_S: Final = 0.25


class WatchedSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with deadlines."""

    ping_s: ClassVar[float] = limits.STREAM_KEEP_ALIVE_S
    #: A client that answers no ping for this long is disconnected; its stream was closed as too slow before.
    pong_s: ClassVar[float] = 20.0
    #: From the end of a WebSocket until its connection is aborted, whether or not the client read the rest.
    grace_s: ClassVar[float] = 10.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Create the protocol without extensions."""
        super().__init__(*arguments, **options)
        self.conn = ServerProtocol(max_size=_MESSAGE_BYTES, logger=self.logger)
        self.ping_interval, self.ping_timeout = self.ping_s, self.pong_s

    def connection_made(self, transport: Any) -> None:
        """Count the connection, which the HTTP protocol has admitted."""
        super().connection_made(transport)
        #: Bytes that arrived and were not read yet; those that may be read, as of a moment.
        self._arrived = bytearray()
        self._may_read, self._read_at = float(_READ_BYTES), self.loop.time()
        self._next_read: asyncio.TimerHandle | None = None
        self._counts: OpenConnections | None = self.app_state.get(CONNECTIONS)
        if self._counts is not None and self.client is not None:
            self._counts.add(self.client[0])

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no longer."""
        super().connection_lost(exc)
        if self._next_read is not None:
            self._next_read.cancel()
        if self._counts is not None and self.client is not None:
            self._counts.close(self.client[0])

    def data_received(self, data: bytes) -> None:
        """Read the handshake at once, and what follows it slowly; close a connection that sends much."""
        if not self.handshake_initiated:
            super().data_received(data)
            return
        if self.transport.is_closing():
            return
        self._arrived += data
        if len(self._arrived) > _MESSAGE_BYTES + _READ_BYTES:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "clients of streams send no messages")
            self.handle_parser_exception()
        elif self._next_read is None:
            self._read_arrived()

    def _read_arrived(self) -> None:
        """Read as many of the bytes that arrived as may be read now, and the others later."""
        self._next_read = None
        now = self.loop.time()
        self._may_read = min(_READ_BYTES, self._may_read + (now - self._read_at) * _READ_BYTES)
        self._read_at = now
        count = min(len(self._arrived), int(self._may_read))
        self._may_read -= count
        portion = bytes(self._arrived[:count])
        del self._arrived[:count]
        super().data_received(portion)
        if self._arrived and not self.transport.is_closing():
            self._next_read = self.loop.call_later(_READ_PAUSE_S, self._read_arrived)

    async def run_asgi(self) -> None:
        """Run the application, and abort the connection a grace period later."""
        await super().run_asgi()
        self.loop.call_later(self.grace_s, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that answers no ping, also while data wait to be sent."""
        super().keepalive_timeout()
        self.loop.call_later(self.grace_s, self.transport.abort)

    def handle_connect(self, event: Request) -> None:
        """Start the application; its scope says that it may send frames that several sockets share."""
        super().handle_connect(event)
        if not self.close_sent:  # otherwise the handshake was invalid
            self.scope["extensions"][SHARED_FRAMES] = {}

    async def send(self, message: Any) -> None:
        """Send a message; mark a handshake with an HTTP answer as complete (uvicorn logs it as an error)."""
        if message["type"] == SHARED_FRAMES:
            await self.writable.wait()
            if self.disconnected or self.close_sent:
                raise ClientDisconnected
            self.transport.write(message["bytes"])
            return
        if message["type"] == "websocket.close" and self.close_sent:
            return  # a client that answered no ping was disconnected before the stream ended
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
