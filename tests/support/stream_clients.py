"""Streams for tests: a service on a socket, and readers that keep the messages, without our client."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from api.app import create_app
from api.streams.websocket_protocol import WatchedSocket
from recorder.access.keys import NewKey, create_key
from recorder.access.workspaces import create_workspace
from recorder.ids import new_id
from recorder.models.wire import Mode
from recorder.recording.streams import StreamTimes
from recorder.runtime import Runtime
from tests.support.http_service import serving
from tests.support.sealed_sessions import make_settings
from tests.support.waiting import wait_for

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Streamer:
    """Client with a key that writes sessions and reads their streams over a socket."""

    url: str
    key: NewKey
    http: httpx.Client

    def make_session(self, **body: Any) -> str:
        """Start a session; return its id."""
        session_id: str = self.post("/v1/sessions", workflow="checkout", start=True, **body)["id"]
        return session_id

    def add_events(self, session_id: str, *items: dict[str, Any]) -> Any:
        """Send one batch of events."""
        return self.post(f"/v1/sessions/{session_id}/events", events=items)

    def post(self, path: str, **body: Any) -> Any:
        """Send a POST that succeeds; return its answer."""
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def delete(self, path: str) -> None:
        """Send a DELETE that succeeds."""
        answer = self.http.delete(path)
        assert answer.is_success, answer.text

    def get_stream(self, session_id: str, query: str = "", **headers: str) -> httpx.Response:
        """Return the answer of a stream that is refused, or over."""
        return self.http.get(_path(session_id, query), headers=_headers(headers))

    def connect(self, session_id: str, query: str = "", **headers: str) -> ClientConnection:
        """Return an open WebSocket; close it, or use it as a context manager."""
        address = self.url.replace("http", "ws", 1) + f"/v1/sessions/{session_id}/events/ws{query}"
        sent = {"Authorization": f"Bearer {self.key.key}", **_headers(headers)}
        return connect(address, additional_headers=sent, open_timeout=PATIENCE_S, compression=None)


@dataclass(frozen=True)
class StreamService:
    """A running service."""

    url: str
    app: FastAPI
    runtime: Runtime

    @property
    def open_streams(self) -> int:
        """Return the number of slots in use."""
        count: int = self.app.state.stream_slots.open_count
        return count

    @contextmanager
    def streamer(
        self,
        *,
        workspace_id: str | None = None,
        tier: str = "unlimited",
        mode: Mode = "live",
        scope: str = "admin",
    ) -> Iterator[Streamer]:
        """Yield a key, in a workspace of its own unless one is named."""
        secret = self.runtime.settings.secret
        with self.runtime.database.transaction(write=True) as db:
            if workspace_id is None:
                made = create_workspace(db, new_id("wsp"), region="us", secret=secret, tier=tier)
                workspace_id = made.workspace_id
            key = create_key(db, workspace_id, label="tests", scope=scope, mode=mode, secret=secret)
        with connected(self.url, key.key) as http:
            yield Streamer(self.url, key, http)


@dataclass
class Heard:
    """Messages of one stream so far."""

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    messages: list[dict[str, Any]] = field(default_factory=list)
    comments: int = 0
    #: The `id:` and `retry:` lines that came without a message.
    preamble: list[str] = field(default_factory=list)
    #: Whether the server ended it, and did so in order.
    is_over: bool = False
    error: Exception | None = None

    @property
    def ids(self) -> list[int]:
        """Positions in the order of their coming."""
        return [message["id"] for message in self.messages]

    def of(self, name: str) -> list[Any]:
        """Return the data of the messages of one event."""
        return [message["data"] for message in self.messages if message["event"] == name]

    def take(self, block: str) -> None:
        """Add one block of the format: its lines up to an empty one."""
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            else:
                self.comments += 1
        if "data" not in fields:
            self.preamble += [f"{name}: {value}" for name, value in fields.items()]
            return
        message = json.loads(fields["data"])
        assert (str(message["id"]), message["event"]) == (fields["id"], fields["event"])
        self.messages.append(message)


@contextmanager
def streaming_service(
    folder: Path,
    *,
    times: StreamTimes | None = None,
    ws: type[WebSocketsSansIOProtocol] = WatchedSocket,
    **chosen: Any,
) -> Iterator[StreamService]:
    """Yield a service on a folder; `chosen` are settings, such as its database."""
    app = create_app(make_settings(folder, **chosen))
    app.state.stream_times = times or StreamTimes()
    with serving(app, ws=ws) as port:
        yield StreamService(f"http://127.0.0.1:{port}", app, app.state.runtime)


@contextmanager
def connected(url: str, key: str) -> Iterator[httpx.Client]:
    """Yield a client with a key."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


def wait_answers(url: str, *, seconds: float = 60) -> None:
    """Return once a service answers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        time.sleep(0.05)
    raise TimeoutError(url)


@contextmanager
def listening(streamer: Streamer, session_id: str, query: str = "", **headers: str) -> Iterator[Heard]:
    """Read a session's server-sent events in a thread while the block runs; it begins once they are open."""
    heard, is_open = Heard(), threading.Event()
    with streamer.http.stream("GET", _path(session_id, query), headers=_headers(headers)) as response:
        heard.status, heard.headers = response.status_code, response.headers
        thread = threading.Thread(target=_read, args=(response, heard, is_open))
        thread.start()
        try:
            assert is_open.wait(PATIENCE_S)
            yield heard
        finally:
            _hang_up(response)
            thread.join(PATIENCE_S)


def heard_all(streamer: Streamer, session_id: str, query: str = "", **headers: str) -> Heard:
    """Read a stream to its end; return what was received."""
    with listening(streamer, session_id, query, **headers) as heard:
        wait_for(lambda: heard.is_over or heard.error)
    assert heard.error is None
    return heard


def _path(session_id: str, query: str) -> str:
    return f"/v1/sessions/{session_id}/events/stream{query}"


def _headers(named: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in named.items()}


def _read(response: httpx.Response, heard: Heard, is_open: threading.Event) -> None:
    text = ""
    try:
        for chunk in response.iter_raw():
            text += chunk.decode()
            *blocks, text = text.split("\n\n")
            for block in blocks:
                heard.take(block)
            is_open.set()
        heard.is_over = True
    except (httpx.TransportError, httpx.StreamError, OSError) as error:
        heard.error = error
    is_open.set()


def _hang_up(response: httpx.Response) -> None:
    """Cut the connection under the thread that reads it."""
    stream = response.extensions["network_stream"]
    connection = stream.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.shutdown(2)


def stop(streamer: Streamer, session_id: str) -> None:
    """Stop a session."""
    streamer.post(f"/v1/sessions/{session_id}/stop")


def read_texts(socket: ClientConnection) -> tuple[list[Any], int]:
    """Return all messages of a WebSocket until it closes, and the code it closes with."""
    messages = []
    try:
        while True:
            messages.append(json.loads(socket.recv(timeout=20)))
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return messages, closed.rcvd.code


def read_ids(socket: ClientConnection, count: int) -> list[int]:
    """Return the positions of the next messages of a WebSocket."""
    return [json.loads(socket.recv(timeout=20))["id"] for _ in range(count)]
