"""Connections that send slowly, or nothing, or no end of headers: cut off. Contract §1, hostile case 94.

`uvicorn --http api.gate.slow_clients:WatchedProtocol`; uvicorn itself waits for ever. Only what a client
owes is timed: an answer may take as long as it takes, and a stream stays open.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any, ClassVar, Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol

from api.bodies.body_limits import IS_LATE
from api.errors import problem
from api.gate.rate_limits import Header, Limiting
from api.gate.responses import first_headers
from recorder import limits
from recorder.errors import HeadTooLarge, MalformedRequest, RecorderError, RequestTimeout
from recorder.ids import IdCounter

#: Name of the limits in the state that the application's lifespan leaves for the server.
LIMITING: Final = "limiting"
#: What an answer calls, by the state of its request, to be rid of a client that does not take it.
ABORT: Final = "abort_connection"

# What a connection does now.
_HEAD: Final = "head"  # a request's head is owed, or the first byte of the connection
_BODY: Final = "body"  # a request's body is owed
_LATE: Final = "late"  # the route was told that the body does not come, and answers
_REST: Final = "rest"  # nothing is owed; how long it may rest says uvicorn's --timeout-keep-alive

#: `SO_LINGER` on, with no time: closing sends a reset instead of an end.
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
#: Bytes of a body pay for so many bytes of framing around them.
_FRAMING = 8
#: While the service does not read, it looks again this soon whether it does.
_PAUSE_S = 1.0


class WatchedProtocol(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with an eye on the clock and on what is no body."""

    head_s: ClassVar[float] = limits.REQUEST_HEAD_SECONDS
    body_s: ClassVar[float] = limits.REQUEST_BODY_SECONDS
    #: From the word that the body is late until the connection is closed, answered or not.
    grace_s: ClassVar[float] = 5.0

    _ids: ClassVar = IdCounter("req")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch."""
        super().connection_made(transport)
        self._phase, self._since = _HEAD, self.loop.time()
        self._is_silent = True
        self._surplus_bytes = 0
        #: Whether the rest of the connection is not read, because it cannot be, or was refused.
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(self.head_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._stop()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Leave a handshake that is one to the WebSocket protocol, which has its own pings."""
        if not self._is_handshake():
            self._phase = _HEAD
            self._refuse(MalformedRequest("Send a WebSocket handshake as a GET (RFC 6455 §4.1)."))
            return
        self._stop()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser does not take by a problem document, after the requests before it."""
        if self._phase is not _BODY:
            is_too_large = self._surplus_bytes > limits.REQUEST_HEAD_BYTES
            self._refuse(HeadTooLarge(limits.REQUEST_HEAD_BYTES) if is_too_large else MalformedRequest())
        elif self.pipeline or self.cycle.response_started:
            self._cut()
        else:  # the body is malformed: the route is told that its client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._phase, self.cycle = _HEAD, None  # type: ignore[assignment]
            self._refuse(MalformedRequest())

    def data_received(self, data: bytes) -> None:
        """Count what is no body; what comes while nothing is owed begins a head."""
        if self._is_refused:
            return
        if self._phase is _REST:
            self._phase, self._since = _HEAD, self.loop.time()
        self._is_silent = False
        self._surplus_bytes += len(data)
        super().data_received(data)
        if self._surplus_bytes > limits.REQUEST_HEAD_BYTES and not self._is_refused:
            self._refuse(HeadTooLarge(limits.REQUEST_HEAD_BYTES))

    def on_message_begin(self) -> None:
        """A request begins, perhaps right behind the last one."""
        super().on_message_begin()
        if self._phase is not _HEAD:
            self._phase, self._since = _HEAD, self.loop.time()

    def on_headers_complete(self) -> None:
        """Its head is there.

        Raises:
            HeadTooLarge: to the parser, which then takes nothing more.
        """
        if self._surplus_bytes > limits.REQUEST_HEAD_BYTES and self._head_bytes() > limits.REQUEST_HEAD_BYTES:
            raise HeadTooLarge(limits.REQUEST_HEAD_BYTES)
        self.scope["state"][ABORT] = self._reset
        super().on_headers_complete()  # raises where the address is none
        self._phase, self._since = _BODY, self.loop.time()

    def on_body(self, body: bytes) -> None:
        """A part of its body is there."""
        self._surplus_bytes = max(0, self._surplus_bytes - (1 + _FRAMING) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._phase, self._surplus_bytes = _REST, 0
        super().on_message_complete()

    def _look(self) -> None:
        """See what is overdue, and come again when something may be."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        wait_s = self._due(now) - now
        if wait_s <= 0:
            self._call_time()
            wait_s = self.grace_s
        if not self.transport.is_closing():
            self._timer = self.loop.call_later(wait_s, self._look)

    def _due(self, now: float) -> float:
        """When to look again, at the latest when what is owed must be there."""
        if self._phase is _HEAD and self._is_answering():
            self._since = now  # sent ahead: nobody asked for it yet
        if self._phase is _BODY and self.flow.read_paused:
            self._since = now  # it is for us to read
            return now + min(self.body_s, _PAUSE_S)
        owed_s = {_HEAD: self.head_s, _BODY: self.body_s, _LATE: self.grace_s}.get(self._phase)
        return now + self.head_s if owed_s is None else self._since + owed_s

    def _call_time(self) -> None:
        """Do what is due."""
        if self._phase is _BODY and not self.cycle.response_started:
            self._phase, self._since = _LATE, self.loop.time()
            self.scope["state"][IS_LATE] = True
            self.cycle.message_event.set()
        elif self._phase is _HEAD and not self._is_silent:
            self._refuse(RequestTimeout(limits.REQUEST_HEAD_SECONDS, part="head"))
        else:
            self._cut()

    def _refuse(self, error: RecorderError) -> None:
        """Answer what never became a request, and close; requests before it are answered first."""
        self._is_refused = True
        if self._phase is not _HEAD or self.transport.is_closing():
            self._cut()
        elif self._is_answering():
            self.cycle.keep_alive = False
        else:
            task = self.loop.create_task(self._write_problem(error))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _write_problem(self, error: RecorderError) -> None:
        """Write a problem with the headers of every answer, and close.

        The limit is that of the client's address, which malformed requests draw on too.
        """
        limiting: Limiting | None = self.app_state.get(LIMITING)
        headers: list[Header] = []
        if limiting is not None:  # else it is an application of another kind
            address = self.client[0] if self.client else "unknown"
            admission = await limiting.admit_address(address, is_signed=False)
            error, headers = admission.error or error, admission.headers
        if not self.transport.is_closing():
            request_id = self._ids.next()
            self.transport.write(_as_bytes(problem(error, request_id), request_id, headers))
        self._cut()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _is_handshake(self) -> bool:
        """Return whether the WebSocket protocol takes the request that asks for it."""
        lines = [name + b": " + value + b"\r\n" for name, value in self.headers]
        handshake = ServerProtocol()
        method = self.scope["method"].encode()
        handshake.receive_data(b"".join([method, b" ", self.url, b" HTTP/1.1\r\n", *lines, b"\r\n"]))
        asked = handshake.events_received()
        return bool(asked) and isinstance(asked[0], Request) and handshake.accept(asked[0]).status_code == 101

    def _cut(self) -> None:
        """Close; who does not even take the last words is not waited for."""
        self._stop()
        self.transport.close()
        self._timer = self.loop.call_later(self.grace_s, self.transport.abort)

    def _reset(self) -> None:
        """Cut the connection so that its client sees a failure, even where the body has no announced end."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):  # of another family than TCP, or closed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self.transport.abort()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _as_bytes(response: Response, request_id: str, limit_headers: list[Header]) -> bytes:
    headers: list[tuple[Any, Any]] = [*response.raw_headers, *first_headers(request_id), *limit_headers]
    if not any(name == b"connection" for name, _ in headers):
        headers.append((b"connection", b"close"))
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)
