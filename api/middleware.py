"""What every request passes before its body is read: id, key, body size. Contract §1 (order of checks)."""

import re
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.callers import Callers
from api.errors import internal_problem, problem
from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import InvalidApiKey, MissingAuthorization, NotFound, PayloadTooLarge, RecorderError
from recorder.ids import new_id
from recorder.runtime import Runtime

_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")
# Addresses that a signature opens instead of a key; their routes check it.
_SIGNED = re.compile(r"/v1/exports/[^/]+/(manifest|files/.+)")
_BODY_LIMITS = (("/events", limits.EVENTS_REQUEST_BYTES), ("/frames", limits.FRAMES_REQUEST_BYTES))


class RequestGate:
    """Outermost layer of the app: gives the request its id, tells who calls, bounds the body."""

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        self._app = app
        self._callers = Callers(runtime)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        headers = Headers(scope=scope)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        answer = _Answer(send, request_id, headers.get("x-request-id"))
        try:
            state["caller"] = await self._caller(scope, headers)
            _check_path(scope)
            await self._app(scope, _bounded(scope, headers, receive), answer)
        except RecorderError as error:
            await self._refuse(problem(error, request_id), scope, receive, answer)
        except ClientDisconnect:
            return  # Nobody waits for an answer, and a body that is not whole was not acted on.
        except Exception as error:
            await self._refuse(internal_problem(error, request_id), scope, receive, answer)

    async def _refuse(self, response: ASGIApp, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        # Once the status line is out, all that is left is to cut the connection.
        if not answer.has_started:
            await response(scope, receive, answer)

    async def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        path: str = scope["path"]
        if not path.startswith("/v1/"):
            return None
        given = headers.getlist("authorization")
        if not given:
            if _SIGNED.fullmatch(path) and b"sig=" in scope["query_string"]:
                return None
            raise MissingAuthorization
        scheme, _, key = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer":
            raise InvalidApiKey
        return await self._callers.find(key)


class _Answer:
    """Adds the request ids to the response, and notes that it has begun."""

    def __init__(self, send: Send, request_id: str, client_id: str | None) -> None:
        self._send = send
        self._headers = [(b"x-request-id", request_id.encode())]
        if client_id is not None and _SANE_ID.fullmatch(client_id):
            self._headers.append((b"x-client-request-id", client_id.encode()))
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            message = {**message, "headers": [*message.get("headers", []), *self._headers]}
        await self._send(message)


def _check_path(scope: Scope) -> None:
    """No id holds NUL, and PostgreSQL takes none in any text."""
    if "\0" in scope["path"]:
        raise NotFound("route")


def _bounded(scope: Scope, headers: Headers, receive: Receive) -> Receive:
    """The body, refused as soon as it is known to be too large: by its announced or its counted length."""
    path: str = scope["path"]
    limit = next((limit for end, limit in _BODY_LIMITS if path.endswith(end)), limits.BODY_BYTES)
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > limit:
        raise PayloadTooLarge(limit)
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise PayloadTooLarge(limit)
        return message

    return receive_bounded
