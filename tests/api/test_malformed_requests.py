"""Bytes that are no request, or hardly one, over a socket: every answer is complete. Contract §1."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.http_service import RunningService, running_service
from tests.support.malformed_requests import CASES, PATIENCE_S, assert_complete, request, send


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield the service as `recorder up` serves it."""
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.mark.parametrize("name", CASES)
def test_every_answer_is_an_answer(running: RunningService, name: str) -> None:
    raw, statuses, code = CASES[name]
    answers = send(running, raw)
    assert [status for status, _, _ in answers] == statuses
    for answer in answers:
        assert_complete(answer)
    if code:
        assert json.loads(answers[-1][2])["code"] == code


def test_a_head_over_a_socket_has_the_headers_of_get_and_no_body(running: RunningService) -> None:
    for path in ("/v1/quota", "/v1/sessions", "/", "/openapi.json", "/v1/none"):
        (get,) = send(running, request(f"GET {path}", "KEY", "Connection: close"))
        raw = request(f"HEAD {path}", "KEY", "Connection: close")
        address = urlsplit(running.url)
        with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
            connection.sendall(raw.replace(b"KEY", f"Authorization: Bearer {running.key}".encode()))
            received = b""
            while chunk := connection.recv(65_536):
                received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        assert body == b"" and head.startswith(b"HTTP/1.1 %d " % get[0])
        names = {line.partition(b":")[0].decode().lower() for line in head.split(b"\r\n")[1:]}
        assert names == set(get[1]), path


def test_a_connection_serves_on_after_a_head(running: RunningService) -> None:
    both = request("HEAD /v1/quota", "KEY") + request("GET /v1/none", "KEY", "Connection: close")
    address = urlsplit(running.url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(both.replace(b"KEY", f"Authorization: Bearer {running.key}".encode()))
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
    assert received.count(b"HTTP/1.1 ") == 2 and received.rstrip().endswith(b"}")


def test_malformed_requests_draw_on_the_limit_of_their_address(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder: Path = tmp_path_factory.mktemp("flooded")
    quota = request("GET /v1/quota", "KEY", "Connection: close")
    with running_service(folder) as service:
        assert send(service, quota)[0][0] == 200
        answers = [send(service, b"GARBAGE\r\n\r\n")[0] for _ in range(120)]
        statuses = [status for status, _, _ in answers]
        assert statuses[0] == 400 and 429 in statuses
        for answer in answers:
            assert_complete(answer)
            assert answer[1]["x-scope"] == "per_address"
        refused = next(headers for status, headers, _ in answers if status == 429)
        assert int(refused["retry-after"]) >= 1
        # A key that the service has met goes on.
        assert send(service, quota)[0][0] == 200
