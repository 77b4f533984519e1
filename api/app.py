"""The HTTP application: routes, errors, lifetime. Run it with `uvicorn --factory api.app:create_app`."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from api import errors
from api.bodies.body_limits import BodyMemory
from api.bodies.event_batches import EventBatches
from api.bodies.masking import BodyMasking
from api.bodies.worker_pool import BodyWorkers
from api.gate import idempotency
from api.gate.access_log import Observed
from api.gate.audit_denied import Refusals
from api.gate.head_requests import HeadRequests
from api.gate.host_check import HostCheck
from api.gate.key_cache import Callers
from api.gate.middleware import RequestGate
from api.gate.rate_limits import Limiting
from api.gate.slow_clients import LIMITING
from api.openapi import hot_routes
from api.operation_ids import make_operation_id
from api.routes import (
    audit,
    events,
    exports,
    frames,
    keys,
    memory,
    metrics,
    service,
    sessions,
    streams,
    tags,
    webhooks,
    workflows,
    workspaces,
)
from api.shutdown import heard_stop
from recorder import __version__
from recorder.access.ratelimit.stream_slots import open_stream_slots
from recorder.logs import configure_logs, logged_start
from recorder.net.guard import Guard
from recorder.net.host_names import AllowedHosts
from recorder.recording.ingest import IngestWriter
from recorder.recording.streams import Hub, Pace
from recorder.recording.whole_reads import WholeReads
from recorder.runtime import Runtime
from recorder.settings import Settings

_RESOURCES = (
    sessions,
    events,
    streams,
    frames,
    tags,
    memory,
    exports,
    webhooks,
    workflows,
    workspaces,
    keys,
    audit,
    service,
    metrics,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application on these settings, or on the environment's."""
    if settings is None:  # the process is ours: whoever brings settings has logs of their own
        with logged_start():
            settings = Settings.from_env()
            configure_logs(settings.log_level)
            return _create_app(Runtime.open(settings))
    return _create_app(Runtime.open(settings))


def _create_app(runtime: Runtime) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        app.state.whole_reads = whole_reads = WholeReads()
        app.state.streams = hub = Hub(runtime, app.state.stream_pace, whole_reads)
        hub.start()
        app.state.ingest = IngestWriter(
            runtime.database, on_commit=hub.take, session_size=runtime.settings.session_size
        )
        with spared_collections(), heard_stop(hub.end_streams):
            yield {LIMITING: app.state.limiting}
        await hub.close()
        whole_reads.close()
        await anyio.to_thread.run_sync(app.state.ingest.close)
        await app.state.stream_slots.close()
        await anyio.to_thread.run_sync(app.state.masking.close)
        await app.state.limiting.close()
        runtime.close()

    # The pages under /docs bring their own assets: an air-gapped install has no CDN.
    app = FastAPIOffline(
        redoc_url=None,
        title="Workflow Recording Service",
        version=__version__,
        generate_unique_id_function=make_operation_id,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.runtime = runtime
    app.state.callers = Callers(runtime)
    app.state.readiness = service.Readiness(runtime)
    app.state.body_workers = BodyWorkers()
    app.state.masking = BodyMasking(runtime)
    app.state.event_batches = EventBatches(app.state.masking, app.state.body_workers)
    app.state.limiting = Limiting(runtime.settings)
    app.state.guard = Guard.of(runtime.settings)
    app.state.body_memory = BodyMemory(runtime.settings.body_memory_mb * 1024 * 1024)
    app.state.stream_slots = open_stream_slots(runtime.settings)
    app.state.stream_pace = Pace()
    errors.install(app)
    idempotency.install(app)
    app.add_middleware(
        RequestGate,
        callers=app.state.callers,
        limiting=app.state.limiting,
        refusals=Refusals(runtime),
        body_memory=app.state.body_memory,
    )
    hosts = AllowedHosts.from_settings(runtime.settings)
    app.add_middleware(HostCheck, hosts=hosts, limiting=app.state.limiting)
    app.add_middleware(HeadRequests)
    app.add_middleware(Observed)
    app.router.routes.append(events.hot_route)
    for resource in _RESOURCES:
        app.include_router(resource.router)
    _document(app)
    return app


@contextmanager
def spared_collections() -> Iterator[None]:
    """Let the collector leave alone what lives as long as the block; it took a tenth of the ingest.

    A process that froze what it holds before, such as a test run with many services, stays as it is.
    """
    thresholds, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    if not is_frozen:
        gc.collect()
        gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not is_frozen:
            gc.unfreeze()


def _document(app: FastAPI) -> None:
    """Let `/openapi.json` show the hot routes' bodies too."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = hot_routes.complete(describe())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
