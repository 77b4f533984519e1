"""WebSockets as the service speaks them: pings, shared frames, and an end for clients that take nothing.

`uvicorn --ws api.streams.websockets:WatchedSocket`. Messages of a stream are encoded once for all
its readers, down to the frames on the wire; to deflate them for each would cost more than all the rest.
"""

from typing import Any, ClassVar, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol

from recorder import limits

#: ASGI extension, and the type of its message: `bytes` holds whole text frames, to be written as they are.
SHARED_FRAMES: Final = "websocket.shared_frames"
#: Clients of streams have nothing to say.
_MESSAGE_BYTES: Final = 64 * 1024


class WatchedSocket(WebSocketsSansIOProtocol):
    """A WebSocket as uvicorn speaks it, with an eye on the clock."""

    ping_s: ClassVar[float] = limits.STREAM_KEEP_ALIVE_S
    #: A client that reads no ping for this long is gone; before that it was told that it is too slow.
    pong_s: ClassVar[float] = 20.0
    #: From the end of a WebSocket until its connection is cut, whether the client took the rest or not.
    grace_s: ClassVar[float] = 10.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Speak without extensions."""
        super().__init__(*arguments, **options)
        self.conn = ServerProtocol(max_size=_MESSAGE_BYTES, logger=self.logger)
        self.ping_interval, self.ping_timeout = self.ping_s, self.pong_s

    async def run_asgi(self) -> None:
        """Run the application, and see to it that the connection ends soon after."""
        await super().run_asgi()
        self.loop.call_later(self.grace_s, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """Nobody answers: cut the connection, also where data wait to be taken."""
        super().keepalive_timeout()
        self.loop.call_later(self.grace_s, self.transport.abort)

    def handle_connect(self, event: Request) -> None:
        """Begin, and tell the application what this server can do."""
        super().handle_connect(event)
        if not self.close_sent:  # else it was no handshake
            self.scope["extensions"][SHARED_FRAMES] = {}

    async def send(self, message: Any) -> None:
        """Send; a handshake that was answered by HTTP is complete (uvicorn logs it as an error)."""
        if message["type"] == SHARED_FRAMES:
            await self.writable.wait()
            if self.disconnected or self.close_sent:
                raise ClientDisconnected
            self.transport.write(message["bytes"])
            return
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
