"""`/healthz` and `/readyz`: for balancers and supervisors, without a key. Contract §9."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from api.deps import RuntimeDep
from recorder.errors import RecorderError
from recorder.runtime import Runtime

router = APIRouter(tags=["health"])


@router.get("/healthz", openapi_extra={"security": []})
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get(
    "/readyz", openapi_extra={"security": []}, responses={503: {"description": "A part does not answer"}}
)
def readyz(runtime: RuntimeDep) -> Response:
    """Database, blobs and lake answer; 503 names those that do not."""
    parts = {name: _state(runtime, name) for name in ("database", "blobs", "lake")}
    is_ready = all(state == "ok" for state in parts.values())
    body: dict[str, Any] = {"status": "ok" if is_ready else "unavailable", "parts": parts}
    return JSONResponse(body, 200 if is_ready else 503)


def _state(runtime: Runtime, part: str) -> str:
    try:
        getattr(runtime, part).ping()
    except RecorderError:
        return "unavailable"
    return "ok"
