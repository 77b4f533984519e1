"""Errors as answers: status codes and RFC 9457 problem documents. Spec §7, contract §1 (errors)."""

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.websockets import WebSocket

from api.gate.bucket_decisions import show_refusing_limit
from api.gate.endpoints import is_websocket_endpoint, list_endpoint_methods
from api.validation_problems import convert_validation_details
from recorder import errors
from recorder.errors import RecorderError
from recorder.metrics import REFUSALS

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
_SOCKET = (
    "This address is a WebSocket; use a client for WebSockets, or read events/stream instead of events/ws."
)
_METHOD_NOT_ALLOWED = "method_not_allowed"
_KINDS = [kind for kind in map(vars(errors).get, errors.__all__) if isinstance(kind, type)]
#: The codes of all answers.
_CODES = sorted({_METHOD_NOT_ALLOWED, *(kind.code for kind in _KINDS if issubclass(kind, RecorderError))})


class ProblemItem(BaseModel):
    """An error in one field of a request."""

    in_: str = Field(alias="in", description="body, query, path or header")
    pointer: str = Field(description="JSON pointer in a body, else the name")
    code: str
    message: str


class ProblemDocument(BaseModel):
    """Error as `application/problem+json`."""

    type: str
    title: str
    status: int
    code: str = Field(
        description="What went wrong, for programs; the list may grow.",
        examples=_CODES,
    )
    detail: str
    request_id: str
    errors: list[ProblemItem] | None = None


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries for the errors that a route may answer."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": "Problem", "content": content} for status in statuses}


def http_status_of(error: RecorderError) -> int:
    """Return the HTTP status of the answer to an error of the service."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def make_problem_response(error: RecorderError, request_id: str) -> Response:
    """Return the answer to a request that failed with an error."""
    status = http_status_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413) or isinstance(error, errors.MalformedRequest):
        # Otherwise the server would read and discard the rest of the request.
        headers["Connection"] = "close"
    if isinstance(error, errors.RangeNotSatisfiable):
        headers |= {"Content-Range": f"bytes */{error.size}", "Accept-Ranges": "bytes"}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if status == 429:
        REFUSALS.labels(error.code).inc()
    return _make_problem_document(
        status,
        code=error.code,
        title=error.title,
        detail=str(error),
        request_id=request_id,
        headers=headers,
        extra=error.extra,
    )


def make_internal_problem_response(error: Exception, request_id: str) -> Response:
    """Return the answer to a request that failed with an unexpected error; log the error with its trace."""
    log.error("request failed", exc_info=error, extra={"request_id": request_id})
    detail = "The service failed; try again, and send the request id to its operator if it fails again."
    return _make_problem_document(
        500, code="internal_error", title="Internal error", detail=detail, request_id=request_id, headers={}
    )


def forget_frames(error: BaseException) -> None:
    """Remove the stack frames of an error that was answered, with the values that they hold.

    The request's state holds the error of a limit, and its frames hold the state: both would be garbage, with
    the body that arrived so far, until a collection frees them.
    """
    error.__traceback__ = error.__context__ = None


def install_error_handlers(app: FastAPI) -> None:
    """Register the handlers of errors that routes raise.

    The gate handles errors of WebSocket routes, and missing scopes, which it records in the audit log.
    """

    @app.exception_handler(RecorderError)
    async def handle_recorder_error(request: Request, error: RecorderError) -> Response:
        if request.scope["type"] == "websocket" or isinstance(error, errors.InsufficientScope):
            raise error
        show_refusing_limit(request.scope["state"], error)
        response = make_problem_response(error, request.state.request_id)
        forget_frames(error)
        return response

    @app.exception_handler(WebSocketRequestValidationError)
    async def handle_invalid_handshake(_: WebSocket, error: WebSocketRequestValidationError) -> Response:
        raise convert_validation_details(error.errors())

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_request(request: Request, error: RequestValidationError) -> Response:
        field = getattr(request.scope.get("route"), "body_field", None)
        model = None if field is None else field.field_info.annotation
        # FastAPI reports the errors of a dependency once for each parameter that asks for it.
        refused = convert_validation_details(error.errors(), model, error.body)
        return make_problem_response(refused, request.state.request_id)

    @app.exception_handler(HTTPException)
    async def handle_http_exception(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            if is_websocket_endpoint(request.scope["path"]):
                return make_problem_response(errors.MalformedRequest(_SOCKET), request.state.request_id)
            return make_problem_response(errors.NoSuchAddress(), request.state.request_id)
        headers = dict(error.headers or {})
        code, title, detail = "invalid_request", "Invalid request", "Send a request as /docs describes it."
        if error.status_code == 405:
            headers["Allow"] = methods = ", ".join(list_endpoint_methods(request.scope["path"]))
            code, title = _METHOD_NOT_ALLOWED, "Method not allowed"
            detail = f"This address takes {methods}; see /docs."
        return _make_problem_document(
            error.status_code,
            code=code,
            title=title,
            detail=detail,
            request_id=request.state.request_id,
            headers=headers,
        )


def _make_problem_document(
    status: int,
    *,
    code: str,
    title: str,
    detail: str,
    request_id: str,
    headers: dict[str, str],
    extra: dict[str, Any] | None = None,
) -> Response:
    body = {
        "type": f"urn:recorder:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": request_id,
        **(extra or {}),
    }
    return Response(json.dumps(body), status, headers, "application/problem+json")
