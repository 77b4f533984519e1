"""What Prometheus reads: who may, and the text. Contract §9 (`GET /metrics`)."""

import hmac
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from api.dependencies import RuntimeDep
from api.errors import problem_responses
from recorder import clock
from recorder.errors import MissingAuthorization, NoSuchAddress, Unauthenticated
from recorder.metrics import REGISTRY
from recorder.runtime import Runtime
from recorder.service_state import Backlog, ServiceState, count_backlog, read_state

# Set by proxies: whoever asks may sit anywhere then, although the connection comes from here.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class InvalidMetricsToken(Unauthenticated):
    """Not the token of the operator."""

    code = "invalid_api_key"
    title = "Invalid token"

    def __init__(self) -> None:
        super().__init__("Send the header `Authorization: Bearer` with the operator's token for metrics.")


def admit_scraper(request: Request, token: str | None) -> None:
    """Let only loopback read, or whoever has the token where the operator set one.

    Raises:
        NoSuchAddress: if no token is set and the request comes from elsewhere.
        MissingAuthorization, InvalidMetricsToken: if one is set and was not sent.
    """
    if token is None:
        if not _is_local(request):
            raise NoSuchAddress
        return
    given = request.headers.get("authorization")
    if given is None:
        raise MissingAuthorization
    scheme, _, sent = given.partition(" ")
    is_right = hmac.compare_digest(sent.encode(), token.encode())
    if scheme.lower() != "bearer" or not is_right:
        raise InvalidMetricsToken


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback


def write_metrics(runtime: Runtime) -> bytes:
    """What this process counted, and what waits in the database, in Prometheus' text format."""
    with runtime.database.transaction(write=False) as db:
        backlog, state = count_backlog(db), read_state(db)
    waiting = CollectorRegistry()
    waiting.register(_Waiting(backlog, state))
    return generate_latest(REGISTRY) + generate_latest(waiting)


class _Waiting(Collector):
    """A backlog as gauges."""

    def __init__(self, backlog: Backlog, state: ServiceState) -> None:
        self._backlog = backlog
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families, in the order of the documentation."""
        found, sealing = self._backlog, self._state.backlog
        oldest = found.oldest_event
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
            "Sensors and schedules of ours that are switched off in Dagster.",
            len(self._state.switched_off),
        )
        exports = GaugeMetricFamily("recorder_exports", "Unfinished exports.", labels=["status"])
        for status, count in found.exports.items():
            exports.add_metric([status], count)
        yield exports
        yield GaugeMetricFamily(
            "recorder_outbox_pending", "Events not yet handed to webhooks.", found.outbox_pending
        )
        yield GaugeMetricFamily(
            "recorder_outbox_oldest_seconds", "Age of the oldest of them.", max(0.0, age_s)
        )
        yield GaugeMetricFamily(
            "recorder_deliveries_pending", "Attempts that wait or are under way.", found.deliveries_pending
        )
        recent = GaugeMetricFamily(
            "recorder_deliveries_last_hour", "Attempts begun in the last hour.", labels=["status"]
        )
        for status, count in found.deliveries.items():
            recent.add_metric([status], count)
        yield recent


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
