"""What every request leaves behind: a count, a duration, and a line in the log. Contract §9.

The outermost layer, so that it sees what the gate refuses too. A line tells ids, the route's template and
numbers: neither the address as it was sent, nor headers, nor a body.
"""

import logging
import time
from typing import Any, Final

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.gate.endpoints import Endpoint
from api.streams.websockets import SHARED_FRAMES
from recorder.metrics import REQUEST_SECONDS, REQUESTS

log = logging.getLogger("recorder.access")

#: A request that takes longer is a warning; streams may.
SLOW_SECONDS: Final = 1.0

_UNMATCHED = "unmatched"
_PLAIN = frozenset({"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NOT_ANSWERED = "none"


class Observed:
    """Counts and logs what passes, and changes nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = _Watched(send)
        began = time.perf_counter()
        try:
            await self._app(scope, receive, answer)
        finally:
            _note(scope, answer, time.perf_counter() - began)


class _Watched:
    """Passes an answer on, and keeps its status and size."""

    __slots__ = ("_send", "size", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        #: None while nothing was answered: the client went away before.
        self.status: int | None = None
        self.size = 0

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            self.size += len(message.get("body", b""))
        elif kind == "http.response.start" or kind == "websocket.http.response.start":
            self.status = message["status"]
        else:
            self._note_socket(message)
        await self._send(message)

    def _note_socket(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            self.status = 101
        elif kind in ("websocket.send", SHARED_FRAMES):
            self.size += len(message.get("bytes") or message.get("text") or "")
        elif kind == "websocket.close" and self.status is None:
            self.status = 403
        elif kind == "websocket.http.response.body":
            self.size += len(message.get("body", b""))


def _note(scope: Scope, answer: _Watched, seconds: float) -> None:
    state: dict[str, Any] = scope.get("state", {})
    endpoint: Endpoint | None = state.get("endpoint")
    method = scope.get("method", "GET")
    route = endpoint.path if endpoint is not None else _plain_route(scope["path"])
    is_stream = endpoint is not None and endpoint.is_stream
    counted, timed = _instruments(method, route, answer.status)
    counted.inc()
    if not is_stream:
        timed.observe(seconds)
    level = _level(endpoint, route, answer.status, seconds)
    if log.isEnabledFor(level):
        caller = state.get("caller")
        told = {
            "request_id": state.get("request_id"),
            "workspace_id": caller and caller.workspace_id,
            "key_id": caller and caller.key_id,
            "method": method if method in _METHODS else "other",
            "route": route,
            "status": answer.status,
            "duration_ms": round(seconds * 1000, 3),
            "bytes": answer.size,
        }
        log.log(level, "request", extra=told)


def _plain_route(path: str) -> str:
    # A label per path that somebody makes up would fill the memory.
    return path if path in _PLAIN else _UNMATCHED


def _level(endpoint: Endpoint | None, route: str, status: int | None, seconds: float) -> int:
    """Failures and slow requests stand out; what comes thousands of times a second is for debugging."""
    if status is not None and status >= 500:
        return logging.ERROR
    if endpoint is None:
        return logging.DEBUG if route in _PLAIN and status == 200 else logging.INFO
    if seconds >= SLOW_SECONDS and not endpoint.is_stream:
        return logging.WARNING
    return logging.DEBUG if status == 202 and endpoint.surface in _BATCHES else logging.INFO


_BATCHES = frozenset({"append_events", "append_frames"})
_known: dict[tuple[str, str, int | None], tuple[Counter, Histogram]] = {}


def _instruments(method: str, route: str, status: int | None) -> tuple[Counter, Histogram]:
    """The instruments of a route, found once: resolving labels costs more than counting."""
    found = _known.get((method, route, status))
    if found is not None:
        return found
    label = method if method in _METHODS else "other"
    told = _NOT_ANSWERED if status is None else str(status)
    made = (REQUESTS.labels(label, route, told), REQUEST_SECONDS.labels(label, route))
    if method in _METHODS:
        _known[(method, route, status)] = made
    return made
