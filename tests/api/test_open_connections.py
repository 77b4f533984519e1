"""One client address that opens connections without end leaves room for the others. Contract §1."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from api.gate.open_connections import OpenConnections
from api.gate.slow_clients import WatchedProtocol
from recorder.errors import TooManyConnections
from recorder.supervisor.commands import api_command
from tests.support.http_service import RunningService, running_service
from tests.support.sealed_sessions import make_settings
from tests.support.stream_clients import wait_for

MOST = 16
FLOODING, OTHER, PROXY = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class PatientProtocol(WatchedProtocol):
    """The same, but no idle connection ends before the test."""

    head_s = 120.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that lets an address have few connections."""
    environment = {"RECORDER_CONNECTIONS_PER_ADDRESS": str(MOST), "RECORDER_TRUSTED_PROXIES": PROXY}
    with running_service(
        tmp_path_factory.mktemp("service"), http=PatientProtocol, environment=environment
    ) as service:
        yield service


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Connections that are closed at the end."""
    with ExitStack() as stack:
        yield stack


def dial(running: RunningService, held: ExitStack, source: str) -> socket.socket:
    """A connection from an address of the loopback, on which nothing is sent."""
    address = urlsplit(running.url)
    return held.enter_context(
        socket.create_connection((address.hostname, address.port), timeout=10, source_address=(source, 0))
    )


def get(running: RunningService, source: str) -> httpx.Response:
    """The answer to a request on a connection of its own."""
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


def test_the_first_64_bits_of_an_ipv6_address_are_one_client() -> None:
    counts = OpenConnections(1)
    counts.open("2001:db8::1")
    counts.open("2001:db8:0:1::1")
    with pytest.raises(TooManyConnections):
        counts.open("2001:db8::2")
    counts.close("2001:db8::1")
    counts.open("2001:db8::2")
