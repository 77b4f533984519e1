"""`/healthz`, `/readyz`, `/metrics` and the start page, which need no API key. Contract §9."""

import asyncio
import hmac
import time
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from ipaddress import IPv6Address, ip_address
from string import Template
from typing import Any, Final

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from api.dependencies import RuntimeDep
from api.errors import problem_responses
from api.gate.responses import read_client_address
from api.negotiation import negotiate_format
from recorder import __version__, clock
from recorder.errors import (
    MissingAuthorization,
    NoSuchAddress,
    NotAcceptable,
    NotReady,
    RecorderError,
    Unauthenticated,
)
from recorder.governance.overdue import Overdue, count_overdue
from recorder.metrics import REGISTRY
from recorder.runtime import Runtime
from recorder.service_state import (
    Backlog,
    ServiceState,
    ServiceWarning,
    count_backlog,
    list_warnings,
    read_service_state,
)
from recorder.supervisor.run_records import SERVICE, read_run_record

router = APIRouter(tags=["health"])

# A check of the parts costs writes, and any client may request it without a key.
PARTS_CACHED_S = 1.0
# The warnings read every session that waits.
_WARNINGS_CACHED_S = 5.0


class Readiness:
    """State of the parts that the service needs, checked at most once a second.

    Any client may request it. While a store does not answer, requests wait in the event loop: one thread of
    its own checks the parts, so that no other request waits for a thread.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = asyncio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._checked_at = float("-inf")
        self._parts: dict[str, str] = {}
        self._warned_at = float("-inf")
        self._warnings: list[ServiceWarning] = []

    async def read(self) -> tuple[dict[str, str], list[ServiceWarning]]:
        """Return `ok` or `unavailable` for each part, and the warnings for the operator.

        There are no warnings while the database does not answer.
        """
        async with self._lock:
            if time.monotonic() - self._checked_at >= PARTS_CACHED_S:
                await anyio.to_thread.run_sync(self._check_parts_and_warnings, limiter=self._thread)
            return self._parts, self._warnings

    def _check_parts_and_warnings(self) -> None:
        self._parts = {name: self._ping_part(name) for name in ("database", "blobs", "lake")}
        self._checked_at = time.monotonic()
        if self._checked_at - self._warned_at < _WARNINGS_CACHED_S:
            return
        try:
            with self._runtime.database.transaction(write=False) as db:
                self._warnings = list_warnings(read_service_state(db))
        except RecorderError:
            self._warnings = []
        self._warned_at = time.monotonic()

    def _ping_part(self, part: str) -> str:
        try:
            getattr(self._runtime, part).ping()
        except RecorderError:
            return "unavailable"
        return "ok"


@router.get("/healthz", openapi_extra={"security": []})
async def healthz() -> dict[str, str]:
    """Return that the process is alive."""
    return {"status": "ok"}


@router.get("/readyz", openapi_extra={"security": []}, responses=problem_responses(503))
async def readyz(request: Request) -> Response:
    """Return whether database, blobs and lake answer (503 if one does not), and warnings for the operator.

    Warnings do not change the status: the service takes requests.
    """
    readiness: Readiness = request.app.state.readiness
    parts, service_warnings = await readiness.read()
    warnings = [asdict(warning) for warning in service_warnings]
    if any(state != "ok" for state in parts.values()):
        raise NotReady(parts, warnings)
    return JSONResponse({"status": "ok", "parts": parts, "warnings": warnings})


_JSON, _HTML = "application/json", "text/html"
_LOOPBACK = ("127.0.0.1", "::1")
_NAME: Final = "Workflow Recording Service"
_DESCRIPTION: Final = (
    "Records runs of a workflow, seals them into tables and a memory graph, and exports datasets."
)
_HEADERS: Final = {
    "Vary": "Accept",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = Template(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; }
  code { background: #8882; padding: .1em .3em; border-radius: 3px; }
  :root { color-scheme: light dark; }
</style>
<h1>$name</h1>
<p>$description Release $version.</p>
<ul>
$links
</ul>
<h2>First steps</h2>
<ol>
  <li>Create a workspace and its first key on the machine of the service:
    <code>recorder workspaces create NAME --data FOLDER</code></li>
  <li>Send a request with it:
    <code>curl -H "Authorization: Bearer $$RECORDER_KEY" $base/v1/limits</code></li>
  <li>Open <a href="/docs">the pages of the interface</a>:
    each operation has an example that runs as it stands.</li>
  <li>Show what runs, and the addresses: <code>recorder status --data FOLDER</code></li>
</ol>
<p><code>FOLDER</code> is the data folder that <code>recorder up</code> names when it starts.
  In a checkout the command is <code>.venv/bin/recorder</code>.</p>
</html>
"""
)
_DAGSTER: Final = Template(
    """  <li><a href="$address">Dagster: sealing and exports</a>.
    <code>recorder status --data FOLDER</code> prints a link that logs your browser in.</li>"""
)
_CONTENT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page for browsers, JSON for others",
        "content": {_JSON: {"schema": {"type": "object"}}, _HTML: {"schema": {"type": "string"}}},
    }
}


@router.get("/", response_class=Response, openapi_extra={"security": []}, responses=_CONTENT)
async def read_start_page(request: Request, runtime: RuntimeDep) -> Response:
    """Show the name and the pages of the service: HTML for browsers, JSON for others. Needs no key."""
    record = None
    # Dagster's pages are served on the loopback address of this machine only.
    if read_client_address(request.scope) in _LOOPBACK:
        record = await anyio.to_thread.run_sync(read_run_record, runtime.settings.data_dir, SERVICE)
    dagster = (record or {}).get("dagster")
    if _choose_start_page_format(request) == _JSON:
        links = {"docs": "/docs", "openapi": "/openapi.json", "ready": "/readyz", "dagster": dagster}
        body = {"name": _NAME, "description": _DESCRIPTION, "version": __version__, "links": links}
        return JSONResponse(body, headers=_HEADERS)
    shown = [
        ("/docs", "Pages of the interface, with an example of every operation"),
        ("/openapi.json", "OpenAPI"),
        ("/readyz", "State of the service"),
    ]
    items = [f'  <li><a href="{escape(address)}">{escape(text)}</a></li>' for address, text in shown]
    if dagster is not None:
        items.append(_DAGSTER.substitute(address=escape(dagster)))
    page = _PAGE.substitute(
        name=_NAME,
        description=_DESCRIPTION,
        version=__version__,
        links="\n".join(items),
        base=escape(runtime.settings.public_url),
    )
    return Response(page, headers=_HEADERS, media_type=f"{_HTML}; charset=utf-8")


def _choose_start_page_format(request: Request) -> str:
    try:
        return negotiate_format(request, _JSON, _HTML)
    except NotAcceptable:
        return _JSON


# Headers of proxies: with one of them the client may be remote although the connection is local.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class InvalidMetricsToken(Unauthenticated):
    """The Authorization header does not carry the operator's token for metrics (401)."""

    code = "invalid_api_key"
    title = "Invalid token"

    def __init__(self) -> None:
        super().__init__("Send the header `Authorization: Bearer` with the operator's token for metrics.")


def check_metrics_access(request: Request, token: str | None) -> None:
    """Check that a request for metrics is local, or carries the token if the operator set one.

    Raises:
        NoSuchAddress: if no token is set and the request is not local.
        MissingAuthorization, InvalidMetricsToken: if a token is set and was not sent.
    """
    if token is None:
        if not _is_local_metrics_request(request):
            raise NoSuchAddress
        return
    given = request.headers.get("authorization")
    if given is None:
        raise MissingAuthorization
    scheme, _, sent = given.partition(" ")
    is_right = hmac.compare_digest(sent.encode(), token.encode())
    if scheme.lower() != "bearer" or not is_right:
        raise InvalidMetricsToken


def _is_local_metrics_request(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback


def render_metrics(runtime: Runtime) -> bytes:
    """Return the counters of this process and the backlog of the database in Prometheus' text format."""
    with runtime.database.transaction(write=False) as db:
        backlog, state, overdue = count_backlog(db), read_service_state(db), count_overdue(db)
    waiting = CollectorRegistry()
    waiting.register(_BacklogCollector(backlog, state, overdue))
    return generate_latest(REGISTRY) + generate_latest(waiting)


class _BacklogCollector(Collector):
    """Gauges of the backlog."""

    def __init__(self, backlog: Backlog, state: ServiceState, overdue: Overdue) -> None:
        self._backlog = backlog
        self._state = state
        self._overdue = overdue

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families, in the order of the documentation."""
        backlog, sealing = self._backlog, self._state.backlog
        oldest = backlog.oldest_event
        age_s = 0.0 if oldest is None else (clock.now() - oldest).total_seconds()
        yield GaugeMetricFamily(
            "recorder_sessions_to_seal", "Stopped sessions that wait to be sealed.", sealing.waiting
        )
        yield GaugeMetricFamily(
            "recorder_oldest_unsealed_seconds",
            "Seconds since the oldest of them was stopped.",
            sealing.oldest_waiting_s or 0.0,
        )
        yield GaugeMetricFamily(
            "recorder_sessions_set_aside", "Sessions that could not be sealed.", sealing.set_aside
        )
        yield GaugeMetricFamily(
            "recorder_sensors_off",
            "Sensors and schedules of the service that are switched off in Dagster.",
            len(self._state.switched_off),
        )
        exports = GaugeMetricFamily("recorder_exports", "Unfinished exports.", labels=["status"])
        for status, count in backlog.exports.items():
            exports.add_metric([status], count)
        yield exports
        yield GaugeMetricFamily(
            "recorder_outbox_pending", "Events not yet handed to webhooks.", backlog.outbox_pending
        )
        yield GaugeMetricFamily(
            "recorder_outbox_oldest_seconds", "Age of the oldest of them.", max(0.0, age_s)
        )
        yield GaugeMetricFamily(
            "recorder_deliveries_pending", "Attempts that wait or are under way.", backlog.deliveries_pending
        )
        recent = GaugeMetricFamily(
            "recorder_deliveries_last_hour", "Attempts created in the last hour.", labels=["status"]
        )
        for status, count in backlog.deliveries.items():
            recent.add_metric([status], count)
        yield recent
        yield from self._collect_removal_metrics()

    def _collect_removal_metrics(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of open and overdue erasures and purges."""
        overdue = self._overdue
        yield GaugeMetricFamily(
            "recorder_erasures_open", "Erasures that have not ended.", overdue.open_erasures
        )
        due_by = overdue.next_due_by
        yield GaugeMetricFamily(
            "recorder_erasures_due_by_timestamp_seconds",
            "The least due_by of them, as Unix time.",
            0.0 if due_by is None else due_by.timestamp(),
        )
        yield GaugeMetricFamily("recorder_erasures_overdue", "Erasures past their due_by.", overdue.erasures)
        yield GaugeMetricFamily(
            "recorder_erasures_waiting_for_rewrite",
            "Erasures that wait for the rewrite of PostgreSQL's tables or of a large SQLite file.",
            overdue.waiting_rewrites,
        )
        yield GaugeMetricFamily(
            "recorder_purges_overdue", "Purges that are open for more than an hour.", overdue.purges
        )


_TEXT = {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get(
    "/metrics",
    response_class=Response,
    openapi_extra={"security": []},
    responses={200: _TEXT, **problem_responses(401, 404, 503)},
)
def read_metrics(request: Request, runtime: RuntimeDep) -> Response:
    """Return counters and backlog; from other machines only with the operator's token."""
    check_metrics_access(request, runtime.settings.metrics_token)
    return Response(render_metrics(runtime), media_type=CONTENT_TYPE_LATEST)
