"""`/healthz` and `/readyz`: for balancers and supervisors, without a key. Contract §9."""

import threading
import time
from dataclasses import asdict
from html import escape
from string import Template
from typing import Any, Final

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.dependencies import RuntimeDep
from api.gate.responses import client_address
from api.negotiation import choose_format
from recorder import __version__
from recorder.errors import NotAcceptable, RecorderError
from recorder.runtime import Runtime
from recorder.service_state import ServiceWarning, list_warnings, read_state
from recorder.supervisor.run_records import SERVICE, read_record

router = APIRouter(tags=["health"])

# Asking the parts costs writes, and anybody may ask without a key.
_SERVES_S = 1.0
# Warnings look at every session that waits.
_WARNINGS_SERVE_S = 5.0


class Readiness:
    """Whether the parts answer; asked once a second, however often somebody wants to know."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._parts: dict[str, str] = {}
        self._warned_at = float("-inf")
        self._warnings: list[ServiceWarning] = []

    def warnings(self) -> list[ServiceWarning]:
        """Return what an operator should look at; nothing while the database does not answer."""
        with self._lock:
            if time.monotonic() - self._warned_at >= _WARNINGS_SERVE_S:
                try:
                    with self._runtime.database.transaction(write=False) as db:
                        self._warnings = list_warnings(read_state(db))
                except RecorderError:
                    self._warnings = []
                self._warned_at = time.monotonic()
            return self._warnings

    def parts(self) -> dict[str, str]:
        """`ok` or `unavailable`, by part."""
        with self._lock:
            if time.monotonic() - self._asked_at >= _SERVES_S:
                self._parts = {name: self._state(name) for name in ("database", "blobs", "lake")}
                self._asked_at = time.monotonic()
            return self._parts

    def _state(self, part: str) -> str:
        try:
            getattr(self._runtime, part).ping()
        except RecorderError:
            return "unavailable"
        return "ok"


@router.get("/healthz", openapi_extra={"security": []})
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get(
    "/readyz", openapi_extra={"security": []}, responses={503: {"description": "A part does not answer"}}
)
def readyz(request: Request) -> Response:
    """Return whether database, blobs and lake answer (503 names those that do not), and what to look at.

    Warnings do not change the status: the service takes requests.
    """
    readiness: Readiness = request.app.state.readiness
    parts = readiness.parts()
    is_ready = all(state == "ok" for state in parts.values())
    body: dict[str, Any] = {
        "status": "ok" if is_ready else "unavailable",
        "parts": parts,
        "warnings": [asdict(one) for one in readiness.warnings()],
    }
    return JSONResponse(body, 200 if is_ready else 503)


_JSON, _HTML = "application/json", "text/html"
_LOOPBACK = ("127.0.0.1", "::1")
_NAME: Final = "Workflow Recording Service"
_WHAT: Final = "Records runs of a workflow, seals them into tables and a memory graph, and exports datasets."
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
<p>$what Release $version.</p>
<ul>
$links
</ul>
<h2>First steps</h2>
<ol>
  <li>Create a workspace and its first key on the machine of the service:
    <code>recorder workspaces create NAME</code></li>
  <li>Send a request with it:
    <code>curl -H "Authorization: Bearer $$RECORDER_KEY" $base/v1/limits</code></li>
  <li>Open <a href="/docs">the pages of the interface</a>:
    each operation has an example that runs as it stands.</li>
  <li>See what runs, and where it answers: <code>recorder status</code></li>
</ol>
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
    """Show what this is and where to go: a page for browsers, JSON for others. Needs no key."""
    record = None
    # Dagster's pages are served on this machine's loopback address, which nobody else can open.
    if client_address(request.scope) in _LOOPBACK:
        record = await anyio.to_thread.run_sync(read_record, runtime.settings.data_dir, SERVICE)
    dagster = (record or {}).get("dagster")
    if _choose(request) == _JSON:
        links = {"docs": "/docs", "openapi": "/openapi.json", "ready": "/readyz", "dagster": dagster}
        body = {"name": _NAME, "description": _WHAT, "version": __version__, "links": links}
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
        what=_WHAT,
        version=__version__,
        links="\n".join(items),
        base=escape(runtime.settings.public_url),
    )
    return Response(page, headers=_HEADERS, media_type=f"{_HTML}; charset=utf-8")


def _choose(request: Request) -> str:
    try:
        return choose_format(request, _JSON, _HTML)
    except NotAcceptable:
        return _JSON
