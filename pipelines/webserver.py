"""Server of Dagster's pages: Dagster's own application with an authentication gate. Decision 0031.

Run it with `recorder dagster-webserver`, or as `python -m pipelines.webserver` in the environment that
`recorder up` gives its children.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from dagster import DagsterInstance, __version__
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.interrupts import setup_interrupt_handlers
from dagster_webserver.webserver import DagsterWebserver
from starlette.applications import Starlette
from starlette.types import ASGIApp

from pipelines.webserver_gate import DagsterGate
from recorder import clock
from recorder.logs import configure_logs
from recorder.net.host_header import with_listening_host
from recorder.settings import Settings
from recorder.supervisor.child_commands import make_child_server_url
from recorder.supervisor.run_records import DAGSTER_WEBSERVER, AlreadyRunning, RunRecord

# Dagster's own defaults of its command line.
_STATEMENT_TIMEOUT_MS = 15_000
_POOL_RECYCLE_S = 3_600
_POOL_MAX_OVERFLOW = 20
_POLL_MS = 2_000
#: Open WebSockets of pages are cut after this; requests end sooner.
_GRACE_S = 3
#: Addresses that change the asset catalog by a plain POST; nothing here uses them.
_REPORTS = "/report_asset_"


class Webserver(DagsterWebserver[Any, Any]):
    """Dagster's server without the addresses that report materializations, checks and observations."""

    def build_routes(self) -> list[Any]:
        """Return Dagster's routes without those by which a POST reports assets."""
        routes: list[Any] = super().build_routes()  # type: ignore[no-untyped-call]
        return [route for route in routes if not route.path.startswith(_REPORTS)]


def create_app(context: WorkspaceProcessContext, settings: Settings) -> ASGIApp:
    """Return Dagster's application with the gate in front."""
    app: Starlette = Webserver(context, "", _POLL_MS).create_asgi_app(lifespan=_run_webserver_lifespan)
    return DagsterGate(app, settings)


@contextmanager
def open_dagster_workspace(path: Path) -> Iterator[WorkspaceProcessContext]:
    """Open the Dagster instance of `DAGSTER_HOME` and the code locations of a workspace file."""
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(_STATEMENT_TIMEOUT_MS, _POOL_RECYCLE_S, _POOL_MAX_OVERFLOW)
        target = WorkspaceFileTarget([str(path)])
        with WorkspaceProcessContext(instance, target, version=__version__) as context:
            yield context


@asynccontextmanager
async def _run_webserver_lifespan(app: Starlette) -> AsyncIterator[None]:
    with suppress(asyncio.CancelledError):  # uvicorn cancels it when a second signal comes
        yield


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.webserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=3000)
    parser.add_argument("--workspace", type=Path, required=True)
    options = parser.parse_args()
    settings = with_listening_host(Settings.from_env(), options.host)
    configure_logs(settings.log_level)
    logging.getLogger("dagster").setLevel(logging.WARNING)
    setup_interrupt_handlers()
    url = make_child_server_url(options.host, options.port)
    try:
        record = RunRecord.hold(
            settings.data_dir, DAGSTER_WEBSERVER, since=clock.to_iso(clock.now()), url=url
        )
    except AlreadyRunning as error:
        sys.exit(str(error))
    with record, open_dagster_workspace(options.workspace) as context:
        uvicorn.run(
            create_app(context, settings),
            host=options.host,
            port=options.port,
            log_level="warning",
            access_log=False,  # it would hold login links
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            # The gate compares the peer itself with the trusted proxies.
            proxy_headers=False,
        )


if __name__ == "__main__":
    main()
