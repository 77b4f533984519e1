"""The whole HTTP service on a free port of the loopback, on a database and blobs of its own."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from api.app import create_app
from api.gate.slow_clients import SlowClientProtocol
from api.streams.websocket_protocol import WatchedSocket
from recorder.access.workspaces import create_workspace
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.support.databases import create_file


@dataclass(frozen=True)
class RunningService:
    """Address of the service, and a key with every right."""

    url: str
    key: str


@contextmanager
def running_service(
    folder: Path,
    *,
    port: int = 0,
    http: type[SlowClientProtocol] = SlowClientProtocol,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningService]:
    """Yield a service whose data are in `folder`, stopped at the end.

    Args:
        port: with one of its own, the addresses that it signs lead to it.
        http: the protocol that `recorder up` serves by, or one with less patience.
        environment: variables of the settings.
    """
    public = {"RECORDER_PUBLIC_URL": f"http://127.0.0.1:{port}"} if port else {}
    create_file(folder)
    settings = Settings.from_env({**public, **(environment or {})}, data_dir=folder)
    key = _first_key(settings)
    with serving(create_app(settings), port=port, http=http) as listening:
        yield RunningService(f"http://127.0.0.1:{listening}", key)


@contextmanager
def serving(
    app: Any,
    *,
    port: int = 0,
    http: type[SlowClientProtocol] = SlowClientProtocol,
    ws: type[WebSocketsSansIOProtocol] = WatchedSocket,
    lifespan: str = "on",
) -> Iterator[int]:
    """Serve any ASGI application on a socket of the loopback; yield its port."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, http=http, ws=ws, log_level="error", lifespan=lifespan
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="service")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the service ended while it started"
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def _first_key(settings: Settings) -> str:
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "tests", region=settings.region, secret=settings.secret, tier="unlimited")
    runtime.close()
    return made.key
