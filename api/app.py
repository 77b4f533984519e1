"""The HTTP application. Run it with `uvicorn --factory api.app:create_app`.

A request passes, in this order:

1. `api.gate.slow_clients` (HTTP) and `api.streams.websocket_protocol`, as protocols of the server: deadlines.
2. `AccessLog`: count, duration, log line.
3. `HeadRequests`: HEAD as GET without a body.
4. `HostCheck`: the Host header.
5. `RequestGate`: request id → key → workspace status → scope → rate limit → version → body size.
6. The router, then `StrictRoute`: query parameters, strict JSON, Idempotency-Key.
7. Dependencies (`api.dependencies`, `api.bodies`), then the route's function, which calls `recorder`.

An error anywhere becomes a problem document in `api.errors`. The answer takes the same way back;
`api.gate.responses` adds the headers that every answer carries.
"""

from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.routing import Mount, Route

from api import errors
from api.bodies.batch_bodies import EventBatches
from api.bodies.body_masking import BodyMasking
from api.bodies.body_memory import BodyMemory
from api.bodies.worker_pool import BodyWorkers
from api.fair_slots import DATABASE_SLOTS, WORK_SLOTS, FairSlots
from api.gate import idempotency
from api.gate.access_log import AccessLog
from api.gate.authentication import CallerCache, ScopeDenialAudit
from api.gate.early_middleware import AssetsWithoutRanges, HeadRequests, HostCheck
from api.gate.rate_limiter import RateLimiter
from api.gate.request_gate import RequestGate
from api.lifespan import lifespan
from api.openapi.document import complete_openapi_document
from api.openapi.operation_ids import make_operation_id
from api.routes import (
    administration,
    events,
    exports,
    frames,
    health,
    memory,
    privacy,
    recoveries,
    replays,
    sessions,
    streams,
    webhooks,
    workflows,
)
from recorder import __version__
from recorder.access.rate_limits.stream_slots import open_stream_slots
from recorder.logs import configure_logs, logged_start
from recorder.net.host_header import AllowedHosts
from recorder.net.outbound_guard import AddressGuard
from recorder.recording.streams import StreamTimes
from recorder.runtime import Runtime
from recorder.settings import Settings

# In the order of the pages under /docs.
_ROUTERS = (
    sessions.router,
    events.router,
    streams.router,
    frames.router,
    sessions.tag_router,
    memory.router,
    exports.router,
    replays.router,
    recoveries.router,
    webhooks.router,
    workflows.router,
    administration.router,
    privacy.router,
    health.router,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the application with these settings, or with those of the environment."""
    if settings is None:  # a caller that brings settings configures logs itself
        with logged_start():
            settings = Settings.from_env()
            configure_logs(settings.log_level)
            return _create_http_application(Runtime.open(settings))
    return _create_http_application(Runtime.open(settings))


def _create_http_application(runtime: Runtime) -> FastAPI:
    # The pages under /docs bring their own assets: an air-gapped install has no CDN.
    app = FastAPIOffline(
        redoc_url=None,
        title="Workflow Recording Service",
        version=__version__,
        generate_unique_id_function=make_operation_id,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    for route in app.routes:
        if isinstance(route, Mount):
            route.app = AssetsWithoutRanges(route.app)
    _create_app_parts(app, runtime)
    errors.install_error_handlers(app)
    idempotency.install_idempotency_handler(app)
    # The middleware that is added last is passed first.
    app.add_middleware(
        RequestGate,
        callers=app.state.caller_cache,
        rate_limiter=app.state.rate_limiter,
        denied_audit=ScopeDenialAudit(runtime),
        body_memory=app.state.body_memory,
    )
    hosts = AllowedHosts.from_settings(runtime.settings)
    app.add_middleware(HostCheck, hosts=hosts, rate_limiter=app.state.rate_limiter)
    app.add_middleware(HeadRequests)
    app.add_middleware(AccessLog)
    app.router.routes.append(events.hot_route)
    for router in _ROUTERS:
        app.include_router(router)
    _extend_app_openapi(app)
    return app


def _create_app_parts(app: FastAPI, runtime: Runtime) -> None:
    """Create the parts of `app.state` that live as long as the application."""
    state, settings = app.state, runtime.settings
    state.runtime = runtime
    state.caller_cache = CallerCache(runtime)
    state.database_slots = FairSlots(DATABASE_SLOTS)
    #: Slots of other slow work, by its kind.
    state.work_slots = {kind: FairSlots(slots) for kind, slots in WORK_SLOTS.items()}
    state.readiness = health.Readiness(runtime)
    state.body_workers = BodyWorkers()
    state.masking = BodyMasking(runtime)
    state.event_batches = EventBatches(runtime.database, state.masking, state.body_workers)
    state.rate_limiter = RateLimiter(settings)
    AddressGuard.of_browser(settings)  # an invalid setting ends the start here, not the first replay
    state.guard = AddressGuard.of(settings)
    state.body_memory = BodyMemory(settings.body_memory_mb * 1024 * 1024)
    state.stream_slots = open_stream_slots(settings)
    state.stream_times = StreamTimes()


def _extend_app_openapi(app: FastAPI) -> None:
    """Make `/openapi.json` describe the gate and the routes that read their bodies themselves."""
    create_document = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete_openapi_document(create_document())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @cache
    def render_document() -> bytes:
        return bytes(JSONResponse(openapi()).body)

    async def read_document(_: Request) -> Response:
        return Response(render_document(), media_type="application/json")

    # In the place of FastAPI's route, which serializes the document for each request, for 6 ms.
    app.router.routes.insert(0, Route("/openapi.json", read_document, include_in_schema=False))
