"""What every request passes before its body is read, in the order of contract §1.

Request id → key → workspace status → scope → rate limit → body size; the route then reads and checks it.
"""

import re
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.bodies import bounded
from api.callers import Callers
from api.endpoints import Endpoint, find_endpoint
from api.errors import internal_problem, problem
from api.limiting import Admission, Header, Limiting
from recorder import limits
from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.errors import (
    InvalidApiKey,
    MissingAuthorization,
    NotFound,
    RecorderError,
    Unauthenticated,
)
from recorder.ids import new_id
from recorder.runtime import Runtime

_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestGate:
    """Outermost layer of the app: gives the request its id, tells who calls, what for and how often."""

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        self._app = app
        self._callers = Callers(runtime)
        self._limiting = Limiting(runtime)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        headers = Headers(scope=scope)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        answer = _Answer(send, request_id, headers.get("x-request-id"))
        endpoint = find_endpoint(scope["method"], scope["path"])
        try:
            state["caller"] = await self._admit(scope, headers, endpoint, answer)
            state["origin"] = _origin(state["caller"], scope, request_id)
            _check_path(scope)
            body_bytes = limits.BODY_BYTES if endpoint is None else endpoint.body_bytes
            await self._app(scope, bounded(receive, headers, body_bytes), answer)
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

    async def _admit(
        self, scope: Scope, headers: Headers, endpoint: Endpoint | None, answer: "_Answer"
    ) -> Caller | None:
        """The caller of an admitted request; None where the address needs none."""
        if not scope["path"].startswith("/v1/"):
            return None
        address = _address(scope)
        if endpoint is not None and endpoint.opens_by_signature and _is_signed(scope, headers):
            self._draw(await self._limiting.admit_address(address, endpoint, is_signed=True), answer)
            return None
        try:
            caller = await self._callers.find(_key(headers))
        except Unauthenticated:
            self._draw(await self._limiting.admit_address(address, endpoint, is_signed=False), answer)
            raise
        if endpoint is not None:
            caller.scope.require(endpoint.scope)
        self._draw(await self._limiting.admit(caller, endpoint), answer)
        return caller

    def _draw(self, admission: Admission, answer: "_Answer") -> None:
        answer.add(admission.headers)
        if admission.error is not None:
            raise admission.error


class _Answer:
    """Adds the gate's headers to the response, and notes that it has begun."""

    def __init__(self, send: Send, request_id: str, client_id: str | None) -> None:
        self._send = send
        self._headers: list[Header] = [(b"x-request-id", request_id.encode())]
        if client_id is not None and _SANE_ID.fullmatch(client_id):
            self._headers.append((b"x-client-request-id", client_id.encode()))
        self.has_started = False

    def add(self, headers: list[Header]) -> None:
        """Let the response carry these too."""
        self._headers += headers

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            message = {**message, "headers": [*message.get("headers", []), *self._headers]}
        await self._send(message)


def _key(headers: Headers) -> str:
    given = headers.getlist("authorization")
    if not given:
        raise MissingAuthorization
    scheme, _, key = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer":
        raise InvalidApiKey
    return key


def _is_signed(scope: Scope, headers: Headers) -> bool:
    return "authorization" not in headers and b"sig=" in scope["query_string"]


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _origin(caller: Caller | None, scope: Scope, request_id: str) -> Origin | None:
    if caller is None:
        return None
    return Origin(caller.workspace_id, "key", caller.key_id, request_id, _address(scope))


def _check_path(scope: Scope) -> None:
    """No id holds NUL, and PostgreSQL takes none in any text."""
    if "\0" in scope["path"]:
        raise NotFound("route")
