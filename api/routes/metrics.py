"""`/metrics`: for Prometheus, on loopback or with the operator's token. Contract §9."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.deps import RuntimeDep
from api.errors import problem_responses
from api.scraping import admit_scraper, write_metrics

router = APIRouter(tags=["health"])

_TEXT = {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get(
    "/metrics",
    response_class=Response,
    openapi_extra={"security": []},
    responses={200: _TEXT, **problem_responses(401, 404, 503)},
)
def read_metrics(request: Request, runtime: RuntimeDep) -> Response:
    """What this process counts and what waits; beyond loopback only with the operator's token."""
    admit_scraper(request, runtime.settings.metrics_token)
    return Response(write_metrics(runtime), media_type=CONTENT_TYPE_LATEST)
