"""Access log: a count, a duration and a log line of every request. Contract §9.

The outermost middleware, so that it also sees what the gate refuses. A line holds ids, the route's template
and numbers: neither the address as it was sent, nor headers, nor a body.
"""

import logging
import time
from typing import Any, Final

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.gate.endpoints import Endpoint
from api.streams.websocket_protocol import SHARED_FRAMES
from recorder.metrics import REQUEST_SECONDS, REQUESTS

log = logging.getLogger("recorder.access")

#: A request that takes longer is logged as a warning, except for streams.
SLOW_SECONDS: Final = 1.0

_UNMATCHED = "unmatched"
_PAGES = frozenset({"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BATCHES = frozenset({"append_events", "append_frames"})
_NOT_ANSWERED = "none"


class AccessLog:
    """Middleware that counts and logs requests and changes nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = _LoggedSend(send)
        began = time.perf_counter()
        try:
            await self._app(scope, receive, answer)
        finally:
            _write_access_log(scope, answer, time.perf_counter() - began)


class _LoggedSend:
    """An ASGI `send` that records the status and the size of the answer."""

    __slots__ = ("_send", "size", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        #: None until an answer begins; it stays None if the client disconnects before.
        self.status: int | None = None
        self.size = 0

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.body", "websocket.http.response.body"):
            self.size += len(message.get("body", b""))
        elif kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
        elif kind == "websocket.accept":
            self.status = 101
        elif kind in ("websocket.send", SHARED_FRAMES):
            self.size += len(message.get("bytes") or message.get("text") or "")
        elif kind == "websocket.close" and self.status is None:
            self.status = 403
        await self._send(message)


def _write_access_log(scope: Scope, answer: _LoggedSend, seconds: float) -> None:
    state: dict[str, Any] = scope.get("state", {})
    endpoint: Endpoint | None = state.get("endpoint")
    method = scope.get("method", "GET")
    route = endpoint.path if endpoint is not None else _find_page_route(scope["path"])
    counter, histogram = _find_access_log_metrics(method, route, answer.status)
    counter.inc()
    if endpoint is None or not endpoint.is_stream:
        histogram.observe(seconds)
    level = _choose_access_log_level(endpoint, route, answer.status, seconds)
    if log.isEnabledFor(level):
        caller = state.get("caller")
        fields = {
            "request_id": state.get("request_id"),
            "workspace_id": caller and caller.workspace_id,
            "key_id": caller and caller.key_id,
            "method": method if method in _METHODS else "other",
            "route": route,
            "status": answer.status,
            "duration_ms": round(seconds * 1000, 3),
            "bytes": answer.size,
        }
        log.log(level, "request", extra=fields)


def _find_page_route(path: str) -> str:
    """Return the label of a path in log and metrics: itself for a page, else a common label."""
    # A label for each path that a client invents would fill the memory.
    return path if path in _PAGES else _UNMATCHED


def _choose_access_log_level(
    endpoint: Endpoint | None, route: str, status: int | None, seconds: float
) -> int:
    """Return a high level for failures and slow requests, and DEBUG for those that come by thousands."""
    if status is not None and status >= 500:
        return logging.ERROR
    if endpoint is None:
        return logging.DEBUG if route in _PAGES and status == 200 else logging.INFO
    if seconds >= SLOW_SECONDS and not endpoint.is_stream:
        return logging.WARNING
    return logging.DEBUG if status == 202 and endpoint.surface in _BATCHES else logging.INFO


_instruments: dict[tuple[str, str, int | None], tuple[Counter, Histogram]] = {}


def _find_access_log_metrics(method: str, route: str, status: int | None) -> tuple[Counter, Histogram]:
    """Return the instruments of a route, resolved once: resolving labels costs more than counting."""
    instruments = _instruments.get((method, route, status))
    if instruments is not None:
        return instruments
    label = method if method in _METHODS else "other"
    status_label = _NOT_ANSWERED if status is None else str(status)
    instruments = REQUESTS.labels(label, route, status_label), REQUEST_SECONDS.labels(label, route)
    if method in _METHODS:
        _instruments[method, route, status] = instruments
    return instruments
