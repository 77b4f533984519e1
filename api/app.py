"""The HTTP application: routes, errors, lifetime. Run it with `uvicorn --factory api.app:create_app`."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from api import errors, openapi
from api.middleware import RequestGate
from api.routes import events, exports, frames, health, memory, sessions, tags
from recorder import __version__
from recorder.recording.ingest import IngestWriter
from recorder.runtime import Runtime
from recorder.settings import Settings

_RESOURCES = (sessions, events, frames, tags, memory, exports, health)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application on these settings, or on the environment's."""
    runtime = Runtime.open(settings or Settings.from_env())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.ingest = IngestWriter(runtime.database)
        _spare_collections()
        yield
        await anyio.to_thread.run_sync(app.state.ingest.close)
        runtime.close()

    # The pages under /docs bring their own assets: an air-gapped install has no CDN.
    app = FastAPIOffline(
        redoc_url=None,
        title="Workflow Recording Service",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.runtime = runtime
    errors.install(app)
    app.add_middleware(RequestGate, runtime=runtime)
    app.router.routes.append(events.hot_route)
    for resource in _RESOURCES:
        app.include_router(resource.router)
    _document(app)
    return app


def _spare_collections() -> None:
    """Let the collector leave alone what lives as long as the process; it took a tenth of the ingest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _document(app: FastAPI) -> None:
    """Let `/openapi.json` show the hot routes' bodies too."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.complete(describe())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
