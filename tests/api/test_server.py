"""Cases that need a real server: cut and endless bodies, more requests than worker threads."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from recorder.runtime import Runtime
from tests.support.factories import event, footprint
from tests.support.http_service import RunningService, running_service
from tests.support.sealed_sessions import make_settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of this module's service."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningService]:
    """Yield a service that listens on a socket."""
    with running_service(folder) as service:
        yield service


@pytest.fixture(scope="module")
def runtime(folder: Path, running: RunningService) -> Iterator[Runtime]:
    """Yield a second runtime on the same data."""
    opened = Runtime.open(make_settings(folder))
    yield opened
    opened.close()


@pytest.fixture
def client(running: RunningService) -> Iterator[httpx.Client]:
    """Yield a client with the key."""
    headers = {"Authorization": f"Bearer {running.key}"}
    with httpx.Client(base_url=running.url, headers=headers, timeout=20) as connected:
        yield connected


def make_session(client: httpx.Client) -> str:
    """Return a recording session."""
    session_id: str = client.post("/v1/sessions", json={"workflow": "checkout", "start": True}).json()["id"]
    return session_id


def open_request(running: RunningService, path: str, *headers: str) -> socket.socket:
    """Return a connection on which the head of a POST was sent."""
    address = urlsplit(running.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {running.key}"]
    connection.sendall("\r\n".join([*head, "Content-Type: application/json", *headers, "", ""]).encode())
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return the bytes until the server closes."""
    received = b""
    while chunk := connection.recv(65_536):
        received += chunk
    return received


@pytest.mark.parametrize("path", ["events", "frames", "tags"])
def test_a_body_that_is_cut_stores_nothing(
    running: RunningService,
    runtime: Runtime,
    client: httpx.Client,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    session_id = make_session(client)
    before = footprint(runtime)
    body = json.dumps({"events": [event(1)]}).encode()
    announced = f"Content-Length: {len(body) + 10}"
    with open_request(running, f"/v1/sessions/{session_id}/{path}", announced) as connection:
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)
    assert client.get("/healthz").status_code == 200
    assert footprint(runtime) == before
    assert "request failed" not in caplog.text


def test_an_endless_body_is_refused_and_the_connection_closed(
    running: RunningService, runtime: Runtime, client: httpx.Client
) -> None:
    session_id = make_session(client)
    before = footprint(runtime)
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with (
        open_request(running, f"/v1/sessions/{session_id}/tags", "Transfer-Encoding: chunked") as connection,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        for _ in range(4_000):  # a body that may hold 1 MB; up to 65 MiB are dropped while the answer is read
            connection.sendall(chunk)
    assert footprint(runtime) == before


def test_an_announced_length_over_the_cap_is_refused_unread(
    running: RunningService, runtime: Runtime
) -> None:
    before = footprint(runtime)
    with open_request(running, "/v1/sessions", "Content-Length: 999999999") as connection:
        status = connection.recv(65_536).split(b"\r\n")[0]
    assert status.startswith(b"HTTP/1.1 413 ")
    assert footprint(runtime) == before


def test_more_writers_than_threads_all_get_their_turn(client: httpx.Client, running: RunningService) -> None:
    statuses: list[int] = []

    def create() -> None:
        headers, body = {"Authorization": f"Bearer {running.key}"}, {"workflow": "flood"}
        answer = httpx.post(f"{running.url}/v1/sessions", json=body, headers=headers, timeout=30)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=create) for _ in range(90)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [201] * 90
    assert len(client.get("/v1/sessions?workflow=flood&limit=500").json()["data"]) == 90
