"""Requests to a foreign host name are refused first of all. Contract §1."""

import socket
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.factories import assert_problem
from tests.support.http_service import RunningService, running_service


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


def send(running: RunningService, *head: str) -> httpx.Response:
    """Send a request whose head is these lines, and return the answer."""
    port = int(running.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall("\r\n".join([*head, "Connection: close", "", ""]).encode())
        with connection.makefile("rb") as file:
            status = int(file.readline().split()[1])
            lines = [line.decode().strip() for line in iter(file.readline, b"\r\n")]
            headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            return httpx.Response(status, headers=headers, content=file.read())


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example"],
        ["evil.example:8700"],
        ["localhost", "localhost"],
        ["localhost", "evil.example"],
        ["local host"],
        [""],
        [],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_foreign_missing_repeated_and_malformed_names_are_refused(
    running: RunningService, hosts: list[str], method: str
) -> None:
    lines = [f"Host: {host}" for host in hosts]
    answer = send(running, f"{method} /v1/sessions HTTP/1.1", *lines, f"Authorization: Bearer {running.key}")
    assert_problem(answer, 400, "invalid_host")
    assert "RECORDER_ALLOWED_HOSTS" in answer.json()["detail"] and "evil" not in answer.text
    assert answer.headers["service-version"] and answer.headers["x-scope"] == "per_address"


@pytest.mark.parametrize("path", ["/readyz", "/metrics", "/docs", "/openapi.json", "/nowhere", "/healthz/"])
def test_every_address_but_one_is_guarded(running: RunningService, path: str) -> None:
    assert_problem(send(running, f"GET {path} HTTP/1.1", "Host: evil.example"), 400, "invalid_host")


def test_health_is_answered_under_every_name(running: RunningService) -> None:
    assert send(running, "GET /healthz HTTP/1.1", "Host: 10.0.0.7:8700").status_code == 200


def test_an_allowed_name_comes_through(running: RunningService) -> None:
    for host in ("localhost", "127.0.0.1:1", "[::1]:8700", "LOCALHOST:9"):
        answer = send(
            running, "GET /v1/sessions HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {running.key}"
        )
        assert answer.status_code == 200, host


def test_a_handshake_is_refused_by_status_and_problem(running: RunningService) -> None:
    sock = socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2])))
    url = "ws://evil.example/v1/sessions/a/events/ws"
    with pytest.raises(InvalidStatus) as refused, connect(url, sock=sock, proxy=None):
        pass
    assert refused.value.response.status_code == 400
    assert b"invalid_host" in refused.value.response.body
