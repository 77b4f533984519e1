"""The way back through the gate: headers of every answer, and how a refusal is told. Contract §1 (errors)."""

import re
from collections.abc import Awaitable
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.bodies.body_limits import LargeBody
from api.gate.endpoints import Endpoint
from api.gate.rate_limits import Admission, Header, Limiting
from api.gate.versions import DEPRECATIONS, VERSION_HEADER, deprecation_headers

_BEGINNINGS = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
#: Close code of a WebSocket that fails for no fault of its client.
_OUR_FAULT: Final = 1011


class Answer:
    """Adds the gate's headers to what is sent, and notes how far it is."""

    __slots__ = ("_headers", "_limiting", "_scope", "_send", "_state", "has_ended", "has_started")

    def __init__(self, send: Send, scope: Scope, limiting: Limiting, headers: list[Header]) -> None:
        self._send = send
        self._scope = scope
        self._state = scope["state"]
        self._limiting = limiting
        self._headers = headers
        self.has_started = False
        self.has_ended = False

    def send(self, message: Message) -> Awaitable[None]:
        """Send the next part; for the framework it is what the server gave."""
        kind = message["type"]
        if kind in _BEGINNINGS:
            self.has_started = True
            body: LargeBody | None = self._state.get("large_body")
            if body is not None and not body.is_complete:
                _close_connection(message)
            admission: Admission | None = self._state["admission"]
            if admission is None:
                return self._look_and_begin(message)
            message["headers"] = [*message.get("headers", ()), *self._headers, *admission.headers]
        elif kind == "websocket.close":
            self.has_ended = True
        return self._send(message)

    async def _look_and_begin(self, message: Message) -> None:
        """Begin an answer before which no limit had its say."""
        admission = await self._limiting.look_address(client_address(self._scope))
        message["headers"] = [*message.get("headers", ()), *self._headers, *admission.headers]
        await self._send(message)


def _close_connection(message: Message) -> None:
    """Let a connection end with this answer: else the server would read, and throw away, what still comes."""
    headers = message.get("headers", ())
    if not any(name.lower() == b"connection" for name, _ in headers):
        message["headers"] = [*headers, (b"connection", b"close")]


def first_headers(
    request_id: str, client_id: bytes | None = None, endpoint: Endpoint | None = None
) -> list[Header]:
    """What every answer carries, whatever becomes of the request; the caller's own id only if it is sane."""
    headers = [(b"x-request-id", request_id.encode()), VERSION_HEADER]
    if client_id is not None and _SANE_ID.fullmatch(client_id):
        headers.append((b"x-client-request-id", client_id))
    if DEPRECATIONS and endpoint is not None:
        headers += deprecation_headers(endpoint)
    return headers


async def refuse(response: Response, scope: Scope, receive: Receive, answer: Answer) -> None:
    """Tell a refusal; a WebSocket is told by HTTP where it was not accepted yet, and then by its close code.

    Once the status line of an HTTP answer is out, all that is left is to cut the connection.
    """
    is_socket = scope["type"] == "websocket"
    if is_socket and answer.has_started and not answer.has_ended:
        status = response.status_code
        await answer.send(
            {"type": "websocket.close", "code": _OUR_FAULT if status >= 500 else close_code(status)}
        )
    elif is_socket and not answer.has_started:
        await refuse_handshake(response, scope, receive, answer.send)
    elif not answer.has_started:
        await response(scope, receive, answer.send)


def client_address(scope: Scope) -> str:
    """The client's address; of a trusted proxy's request the one that the proxy names."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


_HTTP_ANSWERS = "websocket.http.response"


def close_code(status: int) -> int:
    """The close code that says what an HTTP status says, such as 4401."""
    return 4000 + status


async def refuse_handshake(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a handshake with this response instead of a WebSocket.

    A server that cannot answer so (uvicorn can) opens it and closes it with the status as its code.
    """
    if _HTTP_ANSWERS in scope.get("extensions", {}):
        await response(scope, receive, send)
        return
    await receive()  # the message that asks to connect
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": close_code(response.status_code)})
