"""Request gate: the checks before a request's body is read, in the order of contract §1.

Request id → key → workspace status → scope → rate limit → version → body size; the route then reads and
checks the body. WebSocket handshakes pass the gate like any request.
"""

from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from api.bodies.body_limits import SMALL_BYTES, BoundedBody, LargeBody
from api.bodies.body_memory import BodyMemory
from api.errors import forget_frames, make_internal_problem_response, make_problem_response
from api.gate.authentication import CallerCache, KeyGuessThrottle, ScopeDenialAudit
from api.gate.bucket_decisions import BucketDecision, CallerPlan, Header, show_refusing_limit
from api.gate.endpoints import Endpoint, find_endpoint, has_endpoint
from api.gate.rate_limiter import RateLimitCharge, RateLimiter
from api.gate.refusal_delay import RefusalDelay
from api.gate.responses import (
    GateSend,
    common_answer_headers,
    find_refused_client,
    read_client_address,
    send_refusal,
)
from api.gate.versions import check_interface_release
from api.strict_routes import is_percent_encoded
from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import (
    InsufficientScope,
    MissingAuthorization,
    NoSuchAddress,
    RateLimited,
    RecorderError,
    Unauthenticated,
    UnsupportedMediaType,
)
from recorder.ids import IdCounter
from recorder.request_context import follow

_JOINED_HEADERS = (
    b"authorization",
    b"content-length",
    b"service-version",
    b"transfer-encoding",
    b"x-request-id",
)
_SMALL_DIGITS = len(str(SMALL_BYTES))


class RequestGate:
    """Middleware that identifies, authorizes and limits a request, and bounds its body.

    Writes to `scope["state"]`: request_id, endpoint, caller, rate_decision, large_body.
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: CallerCache,
        rate_limiter: RateLimiter,
        denied_audit: ScopeDenialAudit,
        body_memory: BodyMemory | None = None,
    ) -> None:
        self._app = app
        self._callers = callers
        self._rate_limiter = rate_limiter
        self._throttle = KeyGuessThrottle(rate_limiter)
        self._denied_audit = denied_audit
        self._body_memory = body_memory or BodyMemory(limits.BODY_MEMORY_BYTES)
        self._limit_delay = RefusalDelay()
        self._invalid_delay = RefusalDelay(burst=200, per_second=200)
        self._ids = IdCounter("req")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = self._ids.next()
        follow(request_id)
        headers = _read_request_headers(scope["headers"])
        path: str = scope["path"]
        endpoint = find_endpoint(scope.get("method", "GET"), path)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"], state["endpoint"] = request_id, endpoint
        state["caller"] = state["rate_decision"] = None
        plan = body = None
        announced = headers.get(b"content-length")
        if announced is None and b"transfer-encoding" not in headers:
            body_bytes = 0
        elif announced is not None and len(announced) <= _SMALL_DIGITS and announced.isdigit():
            body_bytes = int(announced)
        else:
            body = self._make_large_body(scope, receive, announced, endpoint)
            body_bytes = body.first_cost
        state["large_body"] = body
        first_headers = common_answer_headers(request_id, headers.get(b"x-request-id"), endpoint)
        answer = GateSend(send, scope, self._rate_limiter, first_headers, self._invalid_delay)
        try:
            is_guarded = endpoint is not None or path.startswith("/v1/")  # every endpoint lies there
            if is_guarded:
                plan = self._admit_cached(state, headers, endpoint, body_bytes)
                if plan is None:
                    plan = await self._admit_request(scope, headers, endpoint, body_bytes)
            bounded_receive = _check_admitted_request(scope, receive, headers, endpoint, body)
            if body is not None:
                self._admit_body(body, state, headers)
            if body is not None or len(headers) < len(scope["headers"]):
                _check_headers_before_body(headers, scope["headers"])
            await self._app(scope, bounded_receive, answer.send)
        except RecorderError as error:
            if isinstance(error, InsufficientScope):
                await self._denied_audit.record_denial(scope, error)
            show_refusing_limit(state, error)
            if isinstance(error, RateLimited) and not answer.has_started:
                await self._limit_delay.wait(find_refused_client(scope))
            response = make_problem_response(error, request_id)
            forget_frames(error)
            await send_refusal(response, scope, receive, answer)
        except (ClientDisconnect, WebSocketDisconnect):
            return  # the client is gone, and an incomplete body has no effect
        except Exception as error:
            await send_refusal(make_internal_problem_response(error, request_id), scope, receive, answer)
        finally:
            if plan is not None:  # as `plan.end_request()`, which takes 0.1 µs more
                plan.of_key.count -= 1
                plan.of_workspace.count -= 1
            if body is not None:
                body.release()
                state["large_body"] = None

    def _make_large_body(
        self, scope: Scope, receive: Receive, announced: bytes | None, endpoint: Endpoint | None
    ) -> LargeBody:
        length = int(announced[:18]) if announced is not None and announced.isdigit() else None
        limit = limits.BODY_BYTES if endpoint is None else endpoint.body_bytes
        return LargeBody(receive, length, limit, self._body_memory, scope["state"])

    def _admit_body(self, body: LargeBody, state: dict[str, Any], headers: dict[bytes, bytes]) -> None:
        """Allow a large body to be read.

        Raises:
            PayloadTooLarge: if it is announced as too large.
        """
        caller: Caller | None = state["caller"]
        if caller is None:
            body.admit("", None)
            return
        plan = self._rate_limiter.plan_of(caller, state["endpoint"])
        charge = RateLimitCharge(self._rate_limiter, plan, state)
        body.admit(caller.workspace_id, charge, partial(self._check_again, headers[b"authorization"]))

    async def _check_again(self, authorization: bytes) -> None:
        """Check that a key whose request arrived slowly is still valid, and its workspace active."""
        caller = self._callers.get(authorization) or await self._callers.look_up(authorization)
        caller.require_active()

    def _admit_cached(
        self, state: dict[str, Any], headers: dict[bytes, bytes], endpoint: Endpoint | None, body_bytes: int
    ) -> CallerPlan | None:
        """Admit a request without waiting, if its caller is cached and has the scope.

        Returns:
            The plan that counts the request as running; None if `_admit_request` must decide.

        Raises:
            RateLimited: if the limits of this process refuse it.
        """
        authorization = headers.get(b"authorization")
        caller = None if authorization is None else self._callers.get(authorization)
        if caller is None or caller.workspace_status != "active":
            return None
        if endpoint is not None and (endpoint.is_stream or not caller.scope.reaches(endpoint.scope)):
            return None
        state["caller"] = caller
        plan = self._rate_limiter.plan_of(caller, endpoint)
        rate_decision = self._rate_limiter.admit_now(plan, body_bytes)
        if rate_decision is None:
            return None
        state["rate_decision"] = rate_decision
        if rate_decision.error is not None:
            raise rate_decision.error
        return plan

    async def _admit_request(
        self, scope: Scope, headers: dict[bytes, bytes], endpoint: Endpoint | None, body_bytes: int
    ) -> CallerPlan | None:
        """Identify the caller, and check workspace status, scope and limits.

        Returns:
            The plan that counts the request as running; None for streams, which have separate limits, and
            for requests that need no key.
        """
        authorization = headers.get(b"authorization")
        if authorization is None and _is_signed_request(scope, endpoint):
            _apply_gate_decision(
                await self._rate_limiter.admit_address(read_client_address(scope), is_signed=True), scope
            )
            return None
        caller = None if authorization is None else self._callers.get(authorization)
        if caller is None:
            caller = await self._identify_caller(authorization, scope)
        scope["state"]["caller"] = caller
        try:
            caller.require_active()
            if endpoint is not None:
                caller.scope.require(endpoint.scope)
        except RecorderError:
            _apply_gate_decision(await self._rate_limiter.peek(caller, endpoint), scope)
            raise
        if endpoint is not None and endpoint.is_stream:
            _apply_gate_decision(
                await self._rate_limiter.admit(caller, endpoint, body_bytes=body_bytes), scope
            )
            return None
        plan = self._rate_limiter.plan_of(caller, endpoint)
        plan.begin_request()
        try:
            _apply_gate_decision(
                await self._rate_limiter.admit(caller, endpoint, body_bytes=body_bytes), scope
            )
        except BaseException:
            plan.end_request()
            raise
        return plan

    async def _identify_caller(self, authorization: bytes | None, scope: Scope) -> Caller:
        """Return the caller of a key that is not cached; a failure takes a token of the client's address."""
        address = read_client_address(scope)
        try:
            if authorization is None:
                raise MissingAuthorization
            if self._callers.has_seen(authorization):
                return await self._callers.look_up(authorization)
            async with self._throttle.reserve(address, authorization, scope["state"]):
                return await self._callers.look_up(authorization)
        except Unauthenticated:
            _apply_gate_decision(await self._rate_limiter.admit_address(address, is_signed=False), scope)
            raise


def _read_request_headers(sent: list[Header]) -> dict[bytes, bytes]:
    """Return the headers by name; repeated ones that the gate reads are joined as in RFC 9110.

    Two keys are then an invalid key, and two versions an invalid version.
    """
    headers = dict(sent)
    if len(headers) < len(sent):
        for name in _JOINED_HEADERS:
            if name in headers:
                headers[name] = b", ".join(value for other, value in sent if other == name)
    return headers


def _is_signed_request(scope: Scope, endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.opens_by_signature and b"sig=" in scope["query_string"]


def _apply_gate_decision(rate_decision: BucketDecision, scope: Scope) -> None:
    """Store the rate decision, whose headers the answer shows, and raise its error if it has one."""
    scope["state"]["rate_decision"] = rate_decision
    if rate_decision.error is not None:
        raise rate_decision.error


def _check_headers_before_body(headers: dict[bytes, bytes], sent: list[Header]) -> None:
    """Check that the type of the body is named once, and that its transfer is not compressed.

    Raises:
        UnsupportedMediaType: if it is not so.
    """
    if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        raise UnsupportedMediaType(
            "the body without compression, with Transfer-Encoding: chunked or with a Content-Length"
        )
    if sum(name == b"content-type" for name, _ in sent) > 1:
        raise UnsupportedMediaType("one Content-Type header")


def _check_admitted_request(
    scope: Scope,
    receive: Receive,
    headers: dict[bytes, bytes],
    endpoint: Endpoint | None,
    body: LargeBody | None,
) -> Receive:
    """Check version and path of an admitted request, and return the `receive` that bounds its body.

    Raises:
        UnsupportedVersion: if the request names a release that does not exist.
        NoSuchAddress: if no route has this path, if its percent-encoding is broken, if it holds NUL, which
            PostgreSQL refuses in text, or if a WebSocket is opened where no route takes one.
    """
    if b"service-version" in headers:
        check_interface_release(headers[b"service-version"])
    path: str = scope["path"]
    if b"%" in scope.get("raw_path", b"") and not is_percent_encoded(scope["raw_path"]):
        raise NoSuchAddress
    if "\0" in path or (endpoint is None and path.startswith("/v1/") and not has_endpoint(path)):
        raise NoSuchAddress(ends_with_slash=path.endswith("/") and has_endpoint(path[:-1]))
    if scope["type"] == "websocket":
        if endpoint is None or not endpoint.path.endswith("/ws"):
            raise NoSuchAddress
        return receive
    if body is not None:
        return body.receive
    body_bytes = limits.BODY_BYTES if endpoint is None else endpoint.body_bytes
    return BoundedBody(receive, body_bytes, scope["state"]).receive
