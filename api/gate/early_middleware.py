"""Middleware around the gate: HEAD requests (RFC 9110 §9.3.2), the Host header, assets. Contract §1."""

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import make_problem_response
from api.gate.rate_limiter import RateLimiter
from api.gate.refusal_delay import RefusalDelay
from api.gate.responses import GateSend, common_answer_headers, send_refusal
from recorder.errors import InvalidHost
from recorder.ids import IdCounter
from recorder.net.host_header import AllowedHosts

_NO_BODY: Final[Message] = {"type": "http.request", "body": b"", "more_body": False}
_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}
#: Load balancers request it with the address of a machine as host.
_PATH_FOR_ANY_HOST = "/healthz"


class HeadRequests:
    """Middleware that passes HEAD on as GET, and sends the answer without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})  # shared with the outer middleware
        exchange = _HeadExchange(send)
        await self._app({**scope, "method": "GET"}, exchange.receive, exchange.send)


class _HeadExchange:
    """A request without a body, and the head of its answer."""

    __slots__ = ("_is_read", "_send", "_sent")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_read = False
        #: Set once the head is sent: the route then sees its client as disconnected.
        self._sent = asyncio.Event()

    async def receive(self) -> Message:
        """Return an empty body, then, after the head was sent, a disconnect."""
        if not self._is_read:
            self._is_read = True
            return _NO_BODY
        await self._sent.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send the head, and end the answer.

        Raises:
            ClientDisconnect: by a body that has more parts, so that the others are not read.
        """
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send(_END)
            self._sent.set()
        elif message.get("more_body", False):
            raise ClientDisconnect


class AssetsWithoutRanges:
    """Middleware that sends assets of /docs whole: refusals of ranges would be no problem documents."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await self._app({**scope, "headers": headers}, receive, send)


class HostCheck:
    """Middleware that answers 400 `invalid_host`, to WebSocket handshakes too, unless the host is allowed."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, rate_limiter: RateLimiter) -> None:
        self._app = app
        self._hosts = hosts
        self._rate_limiter = rate_limiter
        self._ids = IdCounter("req")
        self._delay = RefusalDelay()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "lifespan"
            or self._hosts.allows(scope["headers"])
            or (scope["type"] == "http" and scope["path"] == _PATH_FOR_ANY_HOST)
        ):
            await self._app(scope, receive, send)
            return
        request_id = self._ids.next()
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, endpoint=None, caller=None, rate_decision=None)
        client_id = dict(scope["headers"]).get(b"x-request-id")
        headers = common_answer_headers(request_id, client_id)
        gate_send = GateSend(send, scope, self._rate_limiter, headers, self._delay)
        await send_refusal(make_problem_response(InvalidHost(), request_id), scope, receive, gate_send)
