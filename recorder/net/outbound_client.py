"""HTTP client for POST requests to servers of tenants: guarded, and bounded in time and size. Spec §6.3."""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Literal, cast

import httpcore

from recorder.errors import InvalidUrl
from recorder.net.addresses import CalledAddress, parse_called_address
from recorder.net.bounded_stream import AnswerTooLong
from recorder.net.outbound_guard import AddressGuard, BlockedAddress, GuardedBackend, UnresolvedName

Failure = Literal["timeout", "dns", "tls", "connection", "blocked_address", "redirect"]

TOTAL_S = 10.0
BODY_BYTES = 4_096
_HEADERS_BYTES = 8_192
# Longest wait for a connection to close; a server that still sends is cut off.
_CLOSE_S = 0.5
_FIXED = {"Accept-Encoding": "identity", "Connection": "close"}


@dataclass
class OutboundExchange:
    """Result of a call; `status` is None where no answer began.

    Of answers that tenants may not read only the status is kept.
    """

    error: Failure | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    body_truncated: bool = False
    duration_ms: int = 0

    @property
    def is_success(self) -> bool:
        """Return whether the receiver answered 2xx within the time."""
        return self.error is None and self.status is not None and 200 <= self.status < 300


class OutboundClient:
    """HTTP client that follows no redirect and no proxy variable, and bounds every answer."""

    def __init__(
        self,
        guard: AddressGuard,
        *,
        total_s: float = TOTAL_S,
        ssl_context: ssl.SSLContext | None = None,
        dial: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """Create a client.

        Args:
            guard: checks every address before it is dialled.
            total_s: seconds from the name look-up to the last byte read.
            ssl_context: trusted certificates; by default those that browsers trust.
            dial: opens connections to checked addresses.
        """
        self._guard = guard
        self._total_s = total_s
        self._ssl = ssl_context or httpcore.default_ssl_context()
        self._dial = dial or httpcore.AnyIOBackend()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> OutboundExchange:
        """Send a body and read the beginning of the answer; the exchange holds any failure."""
        began = time.monotonic()
        exchange = OutboundExchange()
        try:
            async with asyncio.timeout(self._total_s):
                await self._send_request(parse_called_address(url), headers, body, exchange)
        except _EXPECTED as error:
            exchange.error = exchange.error or _classify_outbound_failure(error)
        exchange.duration_ms = round((time.monotonic() - began) * 1000)
        return exchange

    async def _send_request(
        self, target: CalledAddress, headers: Mapping[str, str], body: bytes, exchange: OutboundExchange
    ) -> None:
        backend = GuardedBackend(self._guard, target, self._dial)
        connection = httpcore.AsyncHTTPConnection(
            httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port),
            ssl_context=self._ssl,
            network_backend=backend,
        )
        try:
            response = await connection.handle_async_request(_build_outbound_request(target, headers, body))
            exchange.status = response.status
            if 300 <= response.status < 400:
                exchange.error = "redirect"
            if backend.dialled is None or not self._guard.may_keep_answer(target, backend.dialled):
                return
            exchange.headers = _read_outbound_response_headers(response.headers)
            await _read_outbound_response_body(response, exchange)
        finally:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await connection.aclose()


def _build_outbound_request(
    target: CalledAddress, headers: Mapping[str, str], body: bytes
) -> httpcore.Request:
    sent = {"Host": target.host_header, **headers, **_FIXED, "Content-Length": str(len(body))}
    url = httpcore.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )
    pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
    return httpcore.Request("POST", url, headers=pairs, content=body)


async def _read_outbound_response_body(response: httpcore.Response, exchange: OutboundExchange) -> None:
    """Keep the first 4 KB; one byte more shows that the body was cut, as does much framing."""
    # A generator, though its type does not say so; left open, the garbage collector would close it.
    stream = cast("AsyncGenerator[bytes]", response.aiter_stream())
    try:
        async with aclosing(stream) as parts:
            async for part in parts:
                exchange.body += part[: BODY_BYTES + 1 - len(exchange.body)]
                if len(exchange.body) > BODY_BYTES:
                    exchange.body, exchange.body_truncated = exchange.body[:BODY_BYTES], True
                    return
    except AnswerTooLong:
        exchange.body_truncated = True


def _read_outbound_response_headers(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers for storage: printable, each name once, at most 8 KB."""
    printable: dict[str, str] = {}
    size = 0
    for raw_name, raw_value in headers:
        name, value = (_replace_unprintable_header(raw) for raw in (raw_name.lower(), raw_value))
        size += len(name) + len(value)
        if size > _HEADERS_BYTES:
            break
        printable[name] = f"{printable[name]}, {value}" if name in printable else value
    return printable


def _replace_unprintable_header(raw: bytes) -> str:
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in raw.decode("latin-1")
    )


_FAILURES: tuple[tuple[type[Exception], Failure], ...] = (
    (BlockedAddress, "blocked_address"),
    (InvalidUrl, "blocked_address"),
    (UnresolvedName, "dns"),
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (httpcore.TimeoutException, "timeout"),
)
_EXPECTED: tuple[type[Exception], ...] = (
    *(kind for kind, _ in _FAILURES),
    httpcore.NetworkError,
    httpcore.ProtocolError,
    OSError,
)


def _classify_outbound_failure(error: BaseException) -> Failure:
    """Return the kind of an error or of its causes; a failed TLS handshake arrives as a connection error."""
    current: BaseException | None = error
    while current is not None:
        for kind, failure in _FAILURES:
            if isinstance(current, kind):
                return failure
        current = current.__cause__
    return "connection"
