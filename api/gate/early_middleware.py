"""Refusal of requests to a foreign host name, before anything else is read. Contract §1."""

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem
from api.gate.rate_limits import Limiting
from api.gate.responses import Answer, first_headers, refuse
from recorder.errors import InvalidHost
from recorder.ids import IdCounter
from recorder.net.host_names import AllowedHosts

#: Balancers ask for it under the address of a machine.
_EXEMPT = "/healthz"


class HostCheck:
    """Middleware that answers 400 `invalid_host`, to WebSocket handshakes too, unless the name is allowed."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, limiting: Limiting) -> None:
        self._app = app
        self._hosts = hosts
        self._limiting = limiting
        self._ids = IdCounter("req")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "lifespan"
            or self._hosts.allows(scope["headers"])
            or (scope["type"] == "http" and scope["path"] == _EXEMPT)
        ):
            await self._app(scope, receive, send)
            return
        request_id = self._ids.next()
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, endpoint=None, caller=None, admission=None)
        client_id = dict(scope["headers"]).get(b"x-request-id")
        answer = Answer(send, scope, self._limiting, first_headers(request_id, client_id))
        await refuse(problem(InvalidHost(), request_id), scope, receive, answer)


_NO_BODY: Final[Message] = {"type": "http.request", "body": b"", "more_body": False}
_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class HeadRequests:
    """Middleware that lets what follows see a GET, and sends the head of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})  # shared with the layers outside
        exchange = _Exchange(send)
        await self._app({**scope, "method": "GET"}, exchange.receive, exchange.send)


class _Exchange:
    """One request without a body, and its answer."""

    __slots__ = ("_is_read", "_send", "_sent")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_read = False
        #: Set once the head is sent: for the route its client is gone then.
        self._sent = asyncio.Event()

    async def receive(self) -> Message:
        """Return an empty body, then, after the head was sent, that the client is gone."""
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
