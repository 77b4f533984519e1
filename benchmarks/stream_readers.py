"""Readers of streams in a process of their own: `python -m benchmarks.stream_readers`, orders on stdin.

They read every message, and check nothing but the positions: each must follow the one before it.
"""

import asyncio
import re
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Literal, cast

import orjson
import uvloop

Kind = Literal["sse", "websocket"]

# How a message begins on the wire; nothing that an event of ours holds looks like it.
_POSITIONS = {"sse": re.compile(rb"\nid: (\d+)\nevent"), "websocket": re.compile(rb'\{"id":(\d+),"event":')}
_LONGEST_BEGINNING = 64


@dataclass(frozen=True)
class Wanted:
    """One stream to read: of which session, and with which key."""

    session_id: str
    key: str


@dataclass
class Received:
    """Messages that one reader got."""

    session_id: str
    messages: int = 0
    first: int = 0
    last: int = 0
    #: Messages that did not follow the one before.
    misplaced: int = 0


@dataclass
class _Order:
    """Orders to the process."""

    host: str
    port: int
    kind: Kind
    readers: list[Wanted] = field(default_factory=list)


class _Reader(asyncio.Protocol):
    def __init__(
        self, order: _Order, wanted: Wanted, received: Received, opened: "asyncio.Future[None]"
    ) -> None:
        self._order = order
        self._wanted = wanted
        self._received = received
        self._opened = opened
        self._position = _POSITIONS[order.kind]
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(_request(self._order, self._wanted))

    def data_received(self, data: bytes) -> None:
        text = self._rest + data
        end = 0
        for item in self._position.finditer(text):
            self._take(int(item[1]))
            end = item.end()
        self._rest = text[max(end, len(text) - _LONGEST_BEGINNING) :]
        if not self._opened.done():
            self._see(text)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(RuntimeError("a stream was not opened"))

    def _take(self, position: int) -> None:
        received = self._received
        if received.messages and position != received.last + 1:
            received.misplaced += 1
        received.first = received.first or position
        received.last = position
        received.messages += 1

    def _see(self, text: bytes) -> None:
        # A stream of events begins with a block of its own, a WebSocket with its headers.
        if b"\nretry: " in text or text.startswith(b"HTTP/1.1 101"):
            self._opened.set_result(None)
        elif not text.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")):
            self._opened.set_exception(RuntimeError(text[:200].decode(errors="replace")))


def _request(order: _Order, wanted: Wanted) -> bytes:
    path = f"/v1/sessions/{wanted.session_id}/events/{'stream' if order.kind == 'sse' else 'ws'}"
    head = f"GET {path} HTTP/1.1\r\nHost: {order.host}\r\nAuthorization: Bearer {wanted.key}\r\n"
    if order.kind == "websocket":
        head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        head += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    return f"{head}\r\n".encode()


async def _read(order: _Order) -> list[Received]:
    loop = asyncio.get_running_loop()
    all_received = []
    for wanted in order.readers:
        received, opened = Received(wanted.session_id), loop.create_future()
        all_received.append(received)
        await loop.create_connection(
            partial(_Reader, order, wanted, received, opened), order.host, order.port
        )
        await opened
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    return all_received


def main() -> None:
    """Open the streams that a line on stdin names, print `ready`, and print the messages at the next line."""
    output = orjson.loads(sys.stdin.readline())
    readers = [Wanted(**item) for item in output.pop("readers")]
    result = uvloop.run(_read(_Order(**output, readers=readers)))
    print(orjson.dumps([asdict(item) for item in result]).decode(), flush=True)


if __name__ == "__main__":
    main()
