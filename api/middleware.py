"""What every request passes before its body is read, in the order of contract §1.

Request id → key → workspace status → scope → rate limit → version → body size; the route then reads and
checks it. WebSocket handshakes pass here like any request.
"""

from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from api.answers import Answer, client_address, first_headers, refuse
from api.bodies import BoundedBody
from api.callers import Callers
from api.endpoints import Endpoint, find_endpoint, is_address
from api.errors import internal_problem, problem
from api.guesses import Guesses
from api.limiting import Admission, Header, Limiting, describe_refusal
from api.refusals import Refusals
from api.versions import check_version
from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import (
    InsufficientScope,
    MissingAuthorization,
    NoSuchAddress,
    RecorderError,
    Unauthenticated,
)
from recorder.ids import IdCounter
from recorder.tracing import follow

_READ_HERE = (b"authorization", b"content-length", b"service-version", b"x-request-id")


class RequestGate:
    """Gives the request its id, tells who calls, what for and how often, and bounds its body.

    Leaves in `scope["state"]` what follows reads: request_id, endpoint, caller, admission.
    """

    def __init__(self, app: ASGIApp, callers: Callers, limiting: Limiting, refusals: Refusals) -> None:
        self._app = app
        self._callers = callers
        self._limiting = limiting
        self._guesses = Guesses(limiting)
        self._refusals = refusals
        self._ids = IdCounter("req")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = self._ids.next()
        follow(request_id)
        headers = _read_headers(scope["headers"])
        path: str = scope["path"]
        endpoint = find_endpoint(scope.get("method", "GET"), path)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"], state["endpoint"] = request_id, endpoint
        state["caller"] = state["admission"] = None
        told = first_headers(request_id, headers.get(b"x-request-id"), endpoint)
        answer = Answer(send, scope, self._limiting, told)
        try:
            is_guarded = endpoint is not None or path.startswith("/v1/")  # every endpoint lies there
            if is_guarded and not self._admit_now(state, headers, endpoint):
                await self._admit(scope, headers, endpoint)
            await self._app(scope, _check(scope, receive, headers, endpoint), answer.send)
        except RecorderError as error:
            if isinstance(error, InsufficientScope):
                await self._refusals.tell(scope, error)
            describe_refusal(state, error)
            await refuse(problem(error, request_id), scope, receive, answer)
        except (ClientDisconnect, WebSocketDisconnect):
            return  # Nobody waits for an answer, and a body that is not whole was not acted on.
        except Exception as error:
            await refuse(internal_problem(error, request_id), scope, receive, answer)

    def _admit_now(
        self, state: dict[str, Any], headers: dict[bytes, bytes], endpoint: Endpoint | None
    ) -> bool:
        """Admit a caller who is remembered, and may, where nothing is to be waited for; tells whether it did.

        Raises:
            RateLimited: if the limits of this process refuse it.
        """
        authorization = headers.get(b"authorization")
        caller = None if authorization is None else self._callers.recall(authorization)
        if caller is None or caller.workspace_status != "active":
            return False
        if endpoint is not None and not caller.scope.reaches(endpoint.scope):
            return False
        admission = self._limiting.admit_now(caller, endpoint)
        if admission is None:
            return False
        state["caller"], state["admission"] = caller, admission
        if admission.error is not None:
            raise admission.error
        return True

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes], endpoint: Endpoint | None) -> None:
        """Find out who calls, and whether they may."""
        authorization = headers.get(b"authorization")
        if authorization is None and _is_signed(scope, endpoint):
            _heed(await self._limiting.admit_address(client_address(scope), is_signed=True), scope)
            return
        caller = None if authorization is None else self._callers.recall(authorization)
        if caller is None:
            caller = await self._identify(authorization, scope)
        scope["state"]["caller"] = caller
        try:
            caller.require_active()
            if endpoint is not None:
                caller.scope.require(endpoint.scope)
        except RecorderError:
            _heed(await self._limiting.look(caller, endpoint), scope)
            raise
        admission = await self._limiting.admit(caller, endpoint)
        scope["state"]["admission"] = admission
        if admission.error is not None:
            raise admission.error

    async def _identify(self, authorization: bytes | None, scope: Scope) -> Caller:
        """The caller behind a key that is not remembered; who has none draws on the bucket of strangers."""
        address = client_address(scope)
        try:
            if authorization is None:
                raise MissingAuthorization
            if self._callers.has_met(authorization):
                return await self._callers.find(authorization)
            async with self._guesses.room(address, authorization, scope["state"]):
                return await self._callers.find(authorization)
        except Unauthenticated:
            _heed(await self._limiting.admit_address(address, is_signed=False), scope)
            raise


def _read_headers(sent: list[Header]) -> dict[bytes, bytes]:
    """The headers by name; of those that the gate reads, what was sent twice is joined, as RFC 9110 has it.

    So two keys are no key, and two versions no version.
    """
    headers = dict(sent)
    if len(headers) < len(sent):
        for name in _READ_HERE:
            if name in headers:
                headers[name] = b", ".join(value for other, value in sent if other == name)
    return headers


def _is_signed(scope: Scope, endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.opens_by_signature and b"sig=" in scope["query_string"]


def _heed(admission: Admission, scope: Scope) -> None:
    """Let the answer tell of the limits, and the request go no further where they refuse it."""
    scope["state"]["admission"] = admission
    if admission.error is not None:
        raise admission.error


def _check(scope: Scope, receive: Receive, headers: dict[bytes, bytes], endpoint: Endpoint | None) -> Receive:
    """The body of an admitted request, under its bounds.

    Raises:
        UnsupportedVersion: if the request is written for a release that there was not.
        NoSuchAddress: if no route has this path, if it holds NUL, which no id does and PostgreSQL takes in no
            text, or if it is that of a WebSocket where there are none.
        PayloadTooLarge: if the body is announced as too large.
    """
    if b"service-version" in headers:
        check_version(headers[b"service-version"])
    path: str = scope["path"]
    if "\0" in path or (endpoint is None and path.startswith("/v1/") and not is_address(path)):
        raise NoSuchAddress
    if scope["type"] == "websocket":
        if endpoint is None or not endpoint.path.endswith("/ws"):
            raise NoSuchAddress
        return receive
    body_bytes = limits.BODY_BYTES if endpoint is None else endpoint.body_bytes
    return BoundedBody(receive, headers.get(b"content-length"), body_bytes, scope["state"]).receive
