"""Answers on their way back through the gate: headers of every answer, refusals. Contract §1 (errors)."""

import re
from collections.abc import Awaitable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from api.bodies.body_limits import LargeBody
from api.gate.bucket_decisions import BucketDecision, Header
from api.gate.endpoints import Endpoint
from api.gate.rate_limiter import RateLimiter, find_client_network
from api.gate.refusal_delay import RefusalDelay
from api.gate.versions import DEPRECATIONS, VERSION_HEADER
from recorder.access.keys import Caller

_FIRST_MESSAGES = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")
#: Close code of a WebSocket that fails by an error of the service.
_SERVER_ERROR: Final = 1011
#: Statuses of refusals that cost a client nothing to repeat: of invalid requests, and for want of a scope.
_REFUSED_STATUSES: Final = frozenset({400, 403, 413, 415, 422})
#: The same of a request that no limit was applied to, which may be for an address that does not exist.
_UNLIMITED_REFUSED_STATUSES: Final = _REFUSED_STATUSES | {404}
_HTTP_ANSWER_EXTENSION: Final = "websocket.http.response"


class GateSend:
    """An ASGI `send` that adds the gate's headers, delays refusals and records how far the answer is."""

    __slots__ = (
        "_delay",
        "_headers",
        "_rate_limiter",
        "_scope",
        "_send",
        "_state",
        "has_closed",
        "has_started",
    )

    def __init__(
        self, send: Send, scope: Scope, rate_limiter: RateLimiter, headers: list[Header], delay: RefusalDelay
    ) -> None:
        self._send = send
        self._delay = delay
        self._scope = scope
        self._state = scope["state"]
        self._rate_limiter = rate_limiter
        self._headers = headers
        self.has_started = False
        self.has_closed = False

    def send(self, message: Message) -> Awaitable[None]:
        """Send the next message."""
        kind = message["type"]
        if kind in _FIRST_MESSAGES:
            self.has_started = True
            body: LargeBody | None = self._state.get("large_body")
            if body is not None and not body.is_complete:
                _add_close_header(message)
            rate_decision: BucketDecision | None = self._state["rate_decision"]
            if rate_decision is None:
                return self._start_without_rate_decision(message)
            message["headers"] = [*message.get("headers", ()), *self._headers, *rate_decision.headers]
            if message.get("status") in _REFUSED_STATUSES:
                return self._start_refusal(message)
        elif kind == "websocket.close":
            self.has_closed = True
        return self._send(message)

    async def _start_refusal(self, message: Message) -> None:
        """Start the refusal of a request when it is due."""
        await self._delay.wait(find_refused_client(self._scope))
        await self._send(message)

    async def _start_without_rate_decision(self, message: Message) -> None:
        """Start an answer to a request that no limit was applied to, with the limit of its address."""
        rate_decision = await self._rate_limiter.peek_address(read_client_address(self._scope))
        message["headers"] = [*message.get("headers", ()), *self._headers, *rate_decision.headers]
        if message.get("status") in _UNLIMITED_REFUSED_STATUSES:
            await self._start_refusal(message)
        else:
            await self._send(message)


def _add_close_header(message: Message) -> None:
    """End the connection with this answer, so that the server does not read the rest of the body."""
    headers = message.get("headers", ())
    if not any(name.lower() == b"connection" for name, _ in headers):
        message["headers"] = [*headers, (b"connection", b"close")]


def common_answer_headers(
    request_id: str, client_id: bytes | None = None, endpoint: Endpoint | None = None
) -> list[Header]:
    """Return the headers of every answer; the client's own request id only if it is printable ASCII."""
    headers = [(b"x-request-id", request_id.encode()), VERSION_HEADER]
    if client_id is not None and _CLIENT_ID.fullmatch(client_id):
        headers.append((b"x-client-request-id", client_id))
    if DEPRECATIONS and endpoint is not None:
        deprecation = DEPRECATIONS.get((endpoint.method, endpoint.path))
        headers += [] if deprecation is None else deprecation.headers()
    return headers


async def send_refusal(response: Response, scope: Scope, receive: Receive, gate_send: GateSend) -> None:
    """Send a refusal; a WebSocket gets it by HTTP before it is accepted, and by its close code afterwards.

    Nothing is sent once the status line of an HTTP answer was: the connection then ends early.
    """
    is_socket = scope["type"] == "websocket"
    if is_socket and gate_send.has_started and not gate_send.has_closed:
        status = response.status_code
        code = _SERVER_ERROR if status >= 500 else choose_close_code(status)
        await gate_send.send({"type": "websocket.close", "code": code})
    elif is_socket and not gate_send.has_started:
        await send_handshake_refusal(response, scope, receive, gate_send.send)
    elif not gate_send.has_started:
        await response(scope, receive, gate_send.send)


def read_client_address(scope: Scope) -> str:
    """Return the client's address; for requests of a trusted proxy, the address that the proxy names."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def find_refused_client(scope: Scope) -> str:
    """Return the key under which refusals are counted: the workspace, else the network of the client."""
    caller: Caller | None = scope["state"]["caller"]
    return find_client_network(read_client_address(scope)) if caller is None else caller.workspace_id


def choose_close_code(status: int) -> int:
    """Return the close code that corresponds to an HTTP status, such as 4401."""
    return 4000 + status


async def send_handshake_refusal(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a handshake with an HTTP response instead of a WebSocket.

    A server without this extension (uvicorn has it) accepts the WebSocket and closes it with the status.
    """
    if _HTTP_ANSWER_EXTENSION in scope.get("extensions", {}):
        await response(scope, receive, send)
        return
    await receive()  # `websocket.connect`
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": choose_close_code(response.status_code)})


def serialize_answer(response: Response, request_id: str, limit_headers: list[Header]) -> bytes:
    """Return the bytes of an answer that ends its connection, for a request that no application gets."""
    headers: list[tuple[Any, Any]] = [
        *response.raw_headers,
        *common_answer_headers(request_id),
        *limit_headers,
    ]
    if not any(name == b"connection" for name, _ in headers):
        headers.append((b"connection", b"close"))
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)
