"""Connections without end, from one address or from many, leave room for other clients. Contract §1."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from websockets.sync.client import connect

from api.gate.open_connections import CONNECTIONS, OpenConnections
from api.gate.slow_clients import SlowClientProtocol
from recorder.errors import TooManyConnections
from recorder.supervisor.child_commands import api_command
from tests.support.http_service import RunningService, running_service, serving
from tests.support.sealed_sessions import make_settings
from tests.support.waiting import wait_for

MOST = 16
#: More bytes than the system holds for a client that does not read.
LARGE_ANSWER = 32 << 20
FLOODING, OTHER, PROXY = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class PatientProtocol(SlowClientProtocol):
    """The same, but no idle connection ends before the test."""

    head_s = 120.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield a service that lets an address have few connections."""
    environment = {"RECORDER_CONNECTIONS_PER_ADDRESS": str(MOST), "RECORDER_TRUSTED_PROXIES": PROXY}
    with running_service(
        tmp_path_factory.mktemp("service"), http=PatientProtocol, environment=environment
    ) as service:
        yield service


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield a service that has few connections open, of all addresses together."""
    environment = {"RECORDER_CONNECTIONS": str(MOST)}
    with running_service(
        tmp_path_factory.mktemp("small"), http=PatientProtocol, environment=environment
    ) as service:
        yield service


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Yield connections that are closed at the end."""
    with ExitStack() as stack:
        yield stack


def dial(running: RunningService, held: ExitStack, source: str) -> socket.socket:
    """Return a connection from an address of the loopback, on which nothing is sent."""
    address = urlsplit(running.url)
    return held.enter_context(
        socket.create_connection((address.hostname, address.port), timeout=10, source_address=(source, 0))
    )


def get(running: RunningService, source: str) -> httpx.Response:
    """Return the answer to a request on a connection of its own."""
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(transport=transport, headers={"Authorization": f"Bearer {running.key}"}) as client:
        return client.get(f"{running.url}/v1/sessions")


def test_further_connections_of_an_address_are_refused_and_other_addresses_go_on(
    running: RunningService, held: ExitStack
) -> None:
    idle = [dial(running, held, FLOODING) for _ in range(MOST)]
    for _ in range(5):
        refused = get(running, FLOODING)
        assert refused.status_code == 429
        assert refused.json()["code"] == "rate_limited"
        assert refused.headers["X-Scope"] == "per_address_connections"
        assert refused.headers["X-RateLimit-Limit"] == str(MOST)
        assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("1", "close")
        assert get(running, OTHER).status_code == 200
    idle[0].close()
    wait_for(lambda: get(running, FLOODING).status_code == 200)


def test_a_refused_connection_is_closed_before_it_sends_anything(
    running: RunningService, held: ExitStack
) -> None:
    for _ in range(MOST):
        dial(running, held, FLOODING)
    refused = dial(running, held, FLOODING)
    received = b""
    while chunk := refused.recv(65_536):
        received += chunk
    assert received.startswith(b"HTTP/1.1 429")


def test_an_api_that_refuses_connections_is_not_started_again(
    running: RunningService, held: ExitStack, tmp_path: Path
) -> None:
    address = urlsplit(running.url)
    api = api_command(make_settings(tmp_path), {}, tmp_path, str(address.hostname), address.port or 0)
    for _ in range(MOST):
        dial(running, held, "127.0.0.1")
    assert get(running, "127.0.0.1").status_code == 429
    assert api.answers is not None and api.answers()


def test_a_trusted_proxy_has_any_number_of_connections(running: RunningService, held: ExitStack) -> None:
    for _ in range(2 * MOST):
        dial(running, held, PROXY)
    assert get(running, PROXY).status_code == 200


def test_a_websocket_counts_until_it_is_closed(running: RunningService, held: ExitStack) -> None:
    headers = {"Authorization": f"Bearer {running.key}"}
    body = {"workflow": "checkout", "start": True}
    session = httpx.post(f"{running.url}/v1/sessions", json=body, headers=headers).json()
    url = f"{running.url.replace('http', 'ws')}/v1/sessions/{session['id']}/events/ws"
    for _ in range(MOST):
        with connect(url, additional_headers=headers, source_address=(FLOODING, 0)):
            pass
    with connect(url, additional_headers=headers, source_address=(FLOODING, 0)):
        for _ in range(MOST - 1):
            dial(running, held, FLOODING)
        assert get(running, FLOODING).status_code == 429
    wait_for(lambda: get(running, FLOODING).status_code == 200)


def test_a_newcomer_takes_the_place_of_the_connection_that_waits_longest(
    small: RunningService, held: ExitStack
) -> None:
    first, *others = [dial(small, held, f"127.0.1.{number + 1}") for number in range(MOST)]
    assert get(small, OTHER).status_code == 200
    assert first.recv(1) == b""
    for connection in others:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)


def test_a_flood_from_many_addresses_keeps_no_client_and_no_supervisor_out(
    small: RunningService, held: ExitStack, tmp_path: Path
) -> None:
    address = urlsplit(small.url)
    api = api_command(make_settings(tmp_path), {}, tmp_path, str(address.hostname), address.port or 0)
    for number in range(4 * MOST):
        dial(small, held, f"127.0.1.{number + 1}")
        assert get(small, OTHER).status_code == 200
    assert api.answers is not None and api.answers()
    assert httpx.get(f"{small.url}/healthz").status_code == 200


def test_requests_and_streams_keep_their_connections_and_newcomers_read_503(
    small: RunningService, held: ExitStack
) -> None:
    headers = {"Authorization": f"Bearer {small.key}"}
    body = {"workflow": "checkout", "start": True}
    session = httpx.post(f"{small.url}/v1/sessions", json=body, headers=headers).json()
    url = f"{small.url.replace('http', 'ws')}/v1/sessions/{session['id']}/events/ws"
    stream = held.enter_context(connect(url, additional_headers=headers, source_address=(OTHER, 0)))
    head = "POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 23\r\n"
    head += f"Authorization: Bearer {small.key}\r\nContent-Type: application/json\r\n\r\n"
    uploads = [dial(small, held, f"127.0.1.{number + 1}") for number in range(MOST - 1)]
    for upload in uploads:
        upload.sendall(head.encode())
    wait_for(lambda: get(small, FLOODING).status_code == 503)
    refused = get(small, FLOODING)
    assert refused.json()["code"] == "unavailable"
    assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("1", "close")
    assert (refused.headers["X-Scope"], refused.headers["X-RateLimit-Limit"]) == (
        "per_process_connections",
        str(MOST),
    )
    for upload in uploads:
        upload.sendall(b'{"workflow":"checkout"}')
        assert upload.recv(65_536).startswith(b"HTTP/1.1 201")
    assert stream.ping().wait(10)
    assert get(small, FLOODING).status_code == 200


def test_a_connection_that_was_answered_waits_again(small: RunningService, held: ExitStack) -> None:
    for number in range(2 * MOST):
        connection = dial(small, held, f"127.0.1.{number + 1}")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


@asynccontextmanager
async def lifespan_with_counts(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Let the application have two connections."""
    yield {CONNECTIONS: OpenConnections(MOST, 2)}


def test_an_answer_that_was_not_read_keeps_its_connection(held: ExitStack) -> None:
    async def answer(request: Request) -> Response:
        return Response(bytes(LARGE_ANSWER))

    app = Starlette(routes=[Route("/", answer)], lifespan=lifespan_with_counts)
    port = held.enter_context(serving(app, http=PatientProtocol))
    slow = held.enter_context(socket.create_connection(("127.0.0.1", port)))
    slow.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    received = len(slow.recv(1))
    idle, _ = (held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2))
    assert idle.recv(1) == b""
    while received < LARGE_ANSWER and (chunk := slow.recv(1 << 20)):
        received += len(chunk)
    assert received >= LARGE_ANSWER


@asynccontextmanager
async def lifespan_with_heads(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Let the heads that are arriving take 100 kB."""
    yield {CONNECTIONS: OpenConnections(MOST, MOST, head_bytes=100_000)}


def make_headers(count: int, size: int) -> bytes:
    """Return headers of different names, each with so many bytes as its value."""
    return b"\r\n".join(b"X-%d: %b" % (number, b"a" * size) for number in range(count))


@pytest.mark.parametrize("headers", [make_headers(5, 8_000), make_headers(100, 400)])
def test_heads_that_are_arriving_end_the_oldest_of_them(held: ExitStack, headers: bytes) -> None:
    async def answer(request: Request) -> Response:
        return Response(b"answered")

    app = Starlette(routes=[Route("/", answer)], lifespan=lifespan_with_heads)
    port = held.enter_context(serving(app, http=PatientProtocol))
    whole = b"GET / HTTP/1.1\r\nHost: a\r\n" + make_headers(8, 7_500) + b"\r\n\r\n"
    first, *others = (held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3))
    for connection in (first, *others):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + headers)
    assert first.recv(1) == b""
    for connection in others:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    # Heads that are complete are not held: their number has no such limit.
    for _ in range(4):
        quick = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        quick.sendall(whole)
        assert quick.recv(65_536).startswith(b"HTTP/1.1 200")
    second = others[0]
    second.setblocking(True)
    second.settimeout(10)
    second.sendall(b"\r\n\r\n")
    assert second.recv(65_536).startswith(b"HTTP/1.1 200")


def test_an_idle_connection_holds_neither_head_nor_body_of_its_last_request(held: ExitStack) -> None:
    protocols: list[PatientProtocol] = []

    class Seen(PatientProtocol):
        """The same; each connection is listed."""

        def connection_made(self, transport: Any) -> None:
            """Add the connection to the list."""
            super().connection_made(transport)
            protocols.append(self)

    async def answer(request: Request) -> Response:
        return Response(b"answered")

    port = held.enter_context(serving(Starlette(routes=[Route("/", answer, methods=["POST"])]), http=Seen))
    connection = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
    headers = make_headers(7, 7_000)
    head = b"POST / HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\nContent-Length: 50000\r\n\r\n"
    for body_first in (True, False):
        connection.sendall(head + bytes(50_000 if body_first else 49_999))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        if not body_first:  # the request ends after its answer
            assert protocols[0].cycle is not None
            connection.sendall(bytes(1))
        wait_for(lambda: protocols[0].cycle is None)
        assert (protocols[0].headers, protocols[0].url) == ([], b"")


def test_the_limits_show_the_numbers_in_force(small: RunningService) -> None:
    headers = {"Authorization": f"Bearer {small.key}"}
    shown = httpx.get(f"{small.url}/v1/limits", headers=headers).json()["open_connections"]
    assert shown == {"per_address": MOST, "per_process": MOST}


def test_the_first_64_bits_of_an_ipv6_address_are_one_client() -> None:
    counts = OpenConnections(1, 10)
    counts.open("2001:db8::1")
    counts.open("2001:db8:0:1::1")
    with pytest.raises(TooManyConnections):
        counts.open("2001:db8::2")
    counts.close("2001:db8::1")
    counts.open("2001:db8::2")
