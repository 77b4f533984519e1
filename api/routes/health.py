"""`/healthz` and `/readyz`: for balancers and supervisors, without a key. Contract §9."""

import threading
import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from recorder.errors import RecorderError
from recorder.runtime import Runtime
from recorder.service_warnings import ServiceWarning, list_warnings, read_state

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
