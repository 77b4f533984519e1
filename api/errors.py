"""The one place that turns errors into answers: RFC 9457 problem documents. Spec §7, contract §1 (errors)."""

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.websockets import WebSocket

from api.gate.endpoints import allowed_methods
from api.gate.rate_limits import describe_refusal
from recorder import errors
from recorder.errors import Problem, RecorderError, json_pointer
from recorder.metrics import REFUSALS
from recorder.models.wire import allowed_members, describe_allowed, shorten

log = logging.getLogger("recorder.api")

_STATUS: dict[type[RecorderError], int] = {
    errors.BadRequest: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.NotAcceptable: 406,
    errors.RequestTimeout: 408,
    errors.Conflict: 409,
    errors.Gone: 410,
    errors.TooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.RangeNotSatisfiable: 416,
    errors.Invalid: 422,
    errors.Exhausted: 429,
    errors.Unavailable: 503,
    RecorderError: 500,
}
# What the web layer refuses by itself, before any of our code runs.
_WEB = {
    405: ("method_not_allowed", "Method not allowed", "This address does not take this method; see /docs."),
}
# A body may hold a hundred thousand unknown members.
_DESCRIBED_PROBLEMS = 500
_ITEM_CODES = {"extra_forbidden": "unknown_field", "missing": "missing", "invalid_time": "invalid_time"}


class ProblemItem(BaseModel):
    """One wrong place of a request."""

    in_: str = Field(alias="in", description="body, query, path or header")
    pointer: str = Field(description="JSON pointer in a body, else the name")
    code: str
    message: str


class ProblemDocument(BaseModel):
    """An error, as `application/problem+json`."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[ProblemItem] | None = None


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the errors that a route may answer."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": "Problem", "content": content} for status in statuses}


def status_of(error: RecorderError) -> int:
    """The HTTP status of an error's kind."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def problem(error: RecorderError, request_id: str) -> Response:
    """The answer that an error becomes."""
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413) or isinstance(error, errors.MalformedRequest):
        # Else the server would go on to read, and throw away, what still comes.
        headers["Connection"] = "close"
    if isinstance(error, errors.RangeNotSatisfiable):
        headers |= {"Content-Range": f"bytes */{error.size}", "Accept-Ranges": "bytes"}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if status == 429:
        REFUSALS.labels(error.code).inc()
    return _document(
        status,
        code=error.code,
        title=error.title,
        detail=str(error),
        request_id=request_id,
        extra=error.extra,
        headers=headers,
    )


def internal_problem(error: Exception, request_id: str) -> Response:
    """The answer to what nobody foresaw: logged with its trace, told without detail."""
    log.error("request failed", exc_info=error, extra={"request_id": request_id})
    detail = "Something went wrong on our side; the request id helps us to find it."
    return _document(
        500,
        code="internal_error",
        title="Internal error",
        detail=detail,
        request_id=request_id,
        extra={},
        headers={},
    )


def install(app: FastAPI) -> None:
    """Register the handlers; what a WebSocket's route raises goes on to the gate, which tells it.

    So does a scope that does not reach: the gate has it audited.
    """

    @app.exception_handler(RecorderError)
    async def _recorder(request: Request, error: RecorderError) -> Response:
        if request.scope["type"] == "websocket" or isinstance(error, errors.InsufficientScope):
            raise error
        describe_refusal(request.scope["state"], error)
        return problem(error, request.state.request_id)

    @app.exception_handler(WebSocketRequestValidationError)
    async def _socket(_: WebSocket, error: WebSocketRequestValidationError) -> Response:
        raise _refusal(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        field = getattr(request.scope.get("route"), "body_field", None)
        model = None if field is None else field.field_info.annotation
        return problem(_refusal(error, model), request.state.request_id)

    @app.exception_handler(HTTPException)
    async def _web(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return problem(errors.NoSuchAddress(), request.state.request_id)
        code, title, detail = _WEB.get(
            error.status_code, ("invalid_request", "Refused", "The request is malformed.")
        )
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(allowed_methods(request.scope["path"]))
        return _document(
            error.status_code,
            code=code,
            title=title,
            detail=detail,
            request_id=request.state.request_id,
            extra={},
            headers=headers,
        )


def _refusal(
    error: RequestValidationError | WebSocketRequestValidationError, model: Any = None
) -> errors.Invalid:
    """Return what FastAPI found wrong as one error: of times alone it is `invalid_time`.

    Args:
        error: what FastAPI raised. Its `input` values are left out, so nothing is echoed.
        model: the type of the body, whose members an unknown one is told apart from.
    """
    found = error.errors()[:_DESCRIBED_PROBLEMS]
    problems = [_problem_at(one, model, getattr(error, "body", None)) for one in found]
    if problems and all(one.code == errors.InvalidTime.code for one in problems):
        return errors.InvalidTime.of(problems)
    return errors.ValidationFailed(problems)


def _problem_at(found: dict[str, Any], model: Any, body: Any) -> Problem:
    where, *path = found["loc"]
    code = _ITEM_CODES.get(found["type"], "invalid_value")
    if where != "body":
        return Problem(where, ".".join(map(str, path)), code, found["msg"])
    if code != "unknown_field":
        return Problem(where, json_pointer(*path), code, found["msg"])
    message = f"Unknown member. {describe_allowed(allowed_members(model, path[:-1], body))}"
    return Problem(where, json_pointer(*path[:-1], shorten(str(path[-1]))), code, message)


def _document(
    status: int,
    *,
    code: str,
    title: str,
    detail: str,
    request_id: str,
    extra: dict[str, Any],
    headers: dict[str, str],
) -> Response:
    body = {
        "type": f"urn:recorder:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": request_id,
        **extra,
    }
    return Response(json.dumps(body), status, headers, "application/problem+json")
