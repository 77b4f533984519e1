"""Calls that reach nothing: a resolver by script, a dialer that only notes, servers of raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpcore

from recorder.net.addresses import AllowList
from recorder.net.outbound_client import OutboundClient, OutboundExchange
from recorder.net.outbound_guard import AddressGuard

PUBLIC = "93.184.216.34"
# Reading all authorities takes 30 ms, and hundreds of calls are made.
TRUST = httpcore.default_ssl_context()


class Resolver:
    """Answers from a script; the last answer repeats."""

    def __init__(self, *answers: Iterable[str]) -> None:
        self.answers = [list(answer) for answer in answers]
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Dialer(httpcore.AsyncNetworkBackend):
    """Notes what would have been dialled, and dials nothing."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.dialled.append((host, port))
        raise httpcore.ConnectError("recorded")


def call(url: str, *, allowed: tuple[str, ...] = (), resolve: Any = None, **options: Any) -> OutboundExchange:
    """Send a POST to a URL, and return the result."""
    guard = AddressGuard(AllowList.parse(allowed), resolve or Resolver([PUBLIC]))
    client = OutboundClient(guard, **{"ssl_context": TRUST, **options})
    return asyncio.run(client.post(url, {"Content-Type": "application/json"}, b"{}"))


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def serving(serve: Serve, **options: Any) -> AsyncIterator[int]:
    """Yield a server of raw bytes on a free port; `serve` is called once the request's head is here."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    heads: list[str] = []
    host = options.pop("host", "127.0.0.1")
    server = await asyncio.start_server(handle, host, 0, **options)
    port: int = server.sockets[0].getsockname()[1]
    HEADS[port] = heads
    try:
        yield port
    finally:
        server.close()


#: Port → heads of the requests that came there.
HEADS: dict[int, list[str]] = {}


def call_server(
    serve: Serve, *, scheme: str = "http", total_s: float = 5.0, **options: Any
) -> OutboundExchange:
    """Return the result of a call to a server that behaves so."""
    ssl_context = options.pop("trust", TRUST)

    async def run() -> OutboundExchange:
        async with serving(serve, **options) as port:
            allowed = AllowList.parse(("loopback", f"hooks.example:{port}"))
            guard = AddressGuard(allowed, Resolver(["127.0.0.1"]))
            client = OutboundClient(guard, total_s=total_s, ssl_context=ssl_context)
            return await client.post(f"{scheme}://hooks.example:{port}/in?a=1", {"X-Mine": "1"}, b"{}")

    return asyncio.run(run())


def answering(*parts: bytes, pause_s: float = 0.0) -> Serve:
    """Return the function of a server that answers with these bytes."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return serve
