"""Connections of streams: server-sent events and WebSockets, each from its start to its end. Contract §3."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.gate.responses import choose_close_code
from api.gate.slow_clients import ABORT
from api.streams.websocket_protocol import SHARED_FRAMES
from recorder import limits
from recorder.access.keys import Caller
from recorder.access.rate_limits.stream_slots import StreamSlots
from recorder.errors import RecorderError
from recorder.metrics import STREAM_READERS
from recorder.recording.streams import Ending, Hub, Reader, StreamSegment, StreamStart

_CLOSE_CODES = {
    Ending.FINISHED: 1000,
    Ending.TOO_SLOW: 1008,
    Ending.RESTARTING: 1012,
    Ending.UNAVAILABLE: 1013,
    Ending.KEY_REFUSED: choose_close_code(401),
    Ending.WORKSPACE_DISABLED: choose_close_code(403),
    Ending.DELETED: choose_close_code(404),
}
#: The client has this long to read the rest of a stream and its end.
_END_PATIENCE_S = 5.0
_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store, no-transform",
    # Keeps proxies from buffering the messages.
    "X-Accel-Buffering": "no",
}
_DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class EventStream(Response):
    """Answer that sends the messages of a session as server-sent events while the client stays."""

    def __init__(
        self, hub: Hub, slots: StreamSlots, caller: Caller, session_id: str, start: StreamStart
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._hub = hub
        self._slots = slots
        self._caller = caller
        self._session_id = session_id
        self._start = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the stream and write it to its end; errors are raised before the answer begins."""
        async with self._slots.hold(self._caller):
            reader = await self._hub.open(self._caller, self._session_id, self._start)
            if reader is None:
                await Response(status_code=204)(scope, receive, send)
                return
            try:
                with STREAM_READERS.labels("sse").track_inprogress():
                    await self._write_event_stream(reader, scope, receive, send)
            finally:
                self._hub.leave(reader)

    async def _write_event_stream(self, reader: Reader, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["Last-Event-ID"] = str(reader.position)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send(make_connection_body_part(self._make_preamble(reader)))

        async def write(segment: StreamSegment) -> None:
            await send(make_connection_body_part(segment.sse))

        ending = await _run_stream_connection(reader, write, receive)
        if ending is not None and not await _end_stream_body(ending, send):
            abort = scope["state"].get(ABORT)
            if abort is not None:
                abort()
                await wait_until_disconnected(receive)

    def _make_preamble(self, reader: Reader) -> bytes:
        """Return the pause before a reconnect, and the position to resume from before the first message."""
        lines = b"retry: %d\n" % limits.STREAM_RETRY_MS
        if not self._start.is_from_start:
            lines += b"id: %d\n" % reader.position
        return lines + b"\n"


async def _end_stream_body(ending: Ending, send: Send) -> bool:
    """Send the end of the body; return False if the client does not read the part before it in time."""
    if ending is Ending.TOO_SLOW:
        return False
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_PATIENCE_S):
            await send(make_connection_body_part(b"", is_last=True))
            return True
    return False


async def run_websocket_connection(reader: Reader, scope: Scope, receive: Receive, send: Send) -> None:
    """Write the stream to an accepted WebSocket, and close it with the code of its ending."""

    async def write_texts(segment: StreamSegment) -> None:
        for text in segment.texts:
            await send({"type": "websocket.send", "text": text})

    async def write_frames(segment: StreamSegment) -> None:
        if segment.messages:
            await send({"type": SHARED_FRAMES, "bytes": segment.frames})

    write = write_frames if SHARED_FRAMES in scope.get("extensions", {}) else write_texts
    with STREAM_READERS.labels("websocket").track_inprogress():
        ending = await _run_stream_connection(reader, write, receive)
    if ending is not None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_END_PATIENCE_S):
                await close_websocket_connection(ending, send)


async def close_websocket_connection(ending: Ending, send: Send) -> None:
    """Close a WebSocket with the code and the reason of an ending."""
    await send({"type": "websocket.close", "code": _CLOSE_CODES[ending], "reason": ending.value})


async def _run_stream_connection(
    reader: Reader, write: Callable[[StreamSegment], Awaitable[None]], receive: Receive
) -> Ending | None:
    """Write until the stream ends, and return its ending; None if the client disconnected."""
    writing = asyncio.create_task(_write_stream_to_connection(reader, write))
    leaving = asyncio.create_task(wait_until_disconnected(receive))
    reader.abort = writing.cancel
    try:
        await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        is_gone = leaving.done()
    finally:
        writing.cancel()
        leaving.cancel()
        outcomes = await asyncio.gather(writing, leaving, return_exceptions=True)
    for outcome in outcomes:
        # Servers raise OSError when the client has disconnected.
        if isinstance(outcome, Exception) and not isinstance(outcome, OSError):
            raise outcome
    return None if is_gone else reader.ending


async def _write_stream_to_connection(
    reader: Reader, write: Callable[[StreamSegment], Awaitable[None]]
) -> None:
    while (segment := await reader.next()) is not None:
        await write(segment)


async def wait_until_disconnected(receive: Receive) -> None:
    """Return when the client has disconnected; messages that it sends before are ignored."""
    with suppress(RecorderError):  # raised for a body, which no stream takes
        while (await receive())["type"] not in _DISCONNECTS:
            continue


def make_connection_body_part(body: bytes, *, is_last: bool = False) -> dict[str, object]:
    """Return the ASGI message of a part of a body."""
    return {"type": "http.response.body", "body": body, "more_body": not is_last}
