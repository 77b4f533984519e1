"""Cost of a request at the gate, in one process: key, scope, limits, headers. Contract §1."""

import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from starlette.types import Message, Receive, Scope, Send

from api.gate.authentication import CallerCache, ScopeDenialAudit
from api.gate.rate_limiter import RateLimiter
from api.gate.request_gate import RequestGate
from benchmarks.figure_reports import Figure, at_most
from benchmarks.limiter import decision_us
from benchmarks.seeds import new_key, new_settings
from recorder.garbage_collector import MANY_REQUESTS, reduced_garbage_collection
from recorder.ids import new_id
from recorder.runtime import Runtime

_GOAL_US = 5.0
_AT_ONCE = 1_000
#: Requests as a capture client, a reader and a stranger to the table send them.
_REQUESTS = {
    "POST …/events": ("POST", "/v1/sessions/{id}/events"),
    "GET …/frames": ("GET", "/v1/sessions/{id}/frames"),
    "GET /v1/quota": ("GET", "/v1/quota"),
    "no such address": ("GET", "/v1/nothing"),
}


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure the microseconds that the gate adds to a request with a known key, over the app alone."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        key = new_key(settings)
        runtime = Runtime.open(settings)
        try:
            with reduced_garbage_collection(MANY_REQUESTS):  # as the service does
                result = uvloop.run(measure_gate(runtime, key, turns=30 if quick else 300))
        finally:
            runtime.close()
    return [
        Figure(
            name="the whole gate, known key, in memory",
            unit="µs",
            ours=[result["POST …/events"]],
            goal=at_most(_GOAL_US),
            detail={f"{name}, µs": value for name, value in result.items()},
        ),
        Figure(name="of it, the limiter's decision", unit="µs", ours=decision_us(3, 5_000)),
    ]


async def measure_gate(runtime: Runtime, key: str, *, turns: int) -> dict[str, float]:
    """Return microseconds by kind of request."""
    gate = RequestGate(
        _answer, CallerCache(runtime), RateLimiter(runtime.settings), ScopeDenialAudit(runtime)
    )
    values = {}
    for name, (method, path) in _REQUESTS.items():
        first = _scopes(key, method, path, count=1)
        await _pass(gate, first)  # the one that asks the database
        if first[0]["state"]["caller"] is None:
            raise RuntimeError("The gate refused a request that it should have let through.")
        costs = []
        for _ in range(turns):
            scopes = _scopes(key, method, path, count=_AT_ONCE)
            costs.append((await _pass(gate, scopes) - await _pass(_answer, scopes)) / _AT_ONCE * 1e6)
        # The least is what it costs; whatever else runs on the machine only adds.
        values[name] = min(costs)
    return values


async def _pass(app: Any, scopes: list[Scope]) -> float:
    """Return the seconds of CPU time that so many requests take."""
    began = time.process_time()
    for scope in scopes:
        await app(scope, _receive, _send)
    return time.process_time() - began


def _scopes(key: str, method: str, path: str, *, count: int) -> list[Scope]:
    """Return requests as uvicorn gives them, with the headers of clients, for twenty sessions in turn."""
    headers = [
        (b"host", b"127.0.0.1:8700"),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"connection", b"keep-alive"),
        (b"user-agent", b"workflow-recorder"),
        (b"authorization", b"Bearer " + key.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"25000"),
    ]
    paths = [path.replace("{id}", new_id("ses")) for _ in range(20)]
    return [
        {
            "type": "http",
            "method": method,
            "path": paths[n % len(paths)],
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 50_000),
            "state": {},
        }
        for n in range(count)
    ]


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 202, "headers": []})


async def _receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send(message: Message) -> None:
    """Drop the message."""
