"""A client that sends its whole body before it reads gets the refusal, within bounds. Contract §1."""

import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.gate.lingering_close import LingeringConnections
from api.gate.open_connections import CONNECTIONS, OpenConnections
from tests.support.http_service import RunningService, running_service, serving

BODY = 6 << 20
TIMES = 50
MOST, MOST_BYTES, SILENCE_S, LONGEST_S = 2, 4 << 20, 0.4, 1.5
PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield a service with the bounds of every deployment."""
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


def refuse(request: Request) -> Response:
    """Refuse a request without reading its body."""
    return Response("no", 413, {"Connection": "close"})


@pytest.fixture(scope="module")
def bounded() -> Iterator[int]:
    """Yield port of an application that refuses every body, with narrow bounds."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        counts = OpenConnections(100, 100)
        counts.lingering = LingeringConnections(
            MOST, most_bytes=MOST_BYTES, bytes_per_s=64 << 20, silence_s=SILENCE_S, longest_s=LONGEST_S
        )
        yield {CONNECTIONS: counts}

    app = Starlette(routes=[Route("/", refuse, methods=["POST"])], lifespan=lifespan)
    with serving(app) as port:
        yield port


def head(path: str, key: str, framing: str) -> bytes:
    """Return the head of a JSON request."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        framing,
    )
    return "\r\n".join([*lines, "", ""]).encode()


def send_whole_body(running: RunningService, start: bytes, *, chunked: bool) -> bytes:
    """Send a request to its end, then read; return the answer."""
    address = urlsplit(running.url)
    piece = b" " * 65_536
    piece = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(start)
        for _ in range(BODY // 65_536):
            connection.sendall(piece)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer


@pytest.mark.parametrize(
    ("path", "has_key", "framing", "status", "code"),
    [
        ("/v1/sessions/ses_1/frames", False, f"Content-Length: {BODY}", 401, "invalid_api_key"),
        ("/v1/sessions", True, f"Content-Length: {BODY}", 413, "payload_too_large"),
        ("/v1/sessions", True, "Transfer-Encoding: chunked", 413, "payload_too_large"),
        ("/v1/sessions", True, "Transfer-Encoding: gzip", 400, "invalid_request"),
    ],
)
def test_a_client_that_sends_all_first_reads_the_refusal(
    running: RunningService, path: str, has_key: bool, framing: str, status: int, code: str
) -> None:
    start = head(path, running.key if has_key else "nsk_local_wrong", framing)
    for _ in range(TIMES):
        answer = send_whole_body(running, start, chunked=framing.endswith("chunked"))
        answer_head, _, document = answer.partition(b"\r\n\r\n")
        assert answer_head.split(b" ")[1] in (str(status).encode(), b"429")
        if b" 429 " not in answer_head[:15]:
            assert json.loads(document)["code"] == code
        assert b"connection: close" in answer_head.lower()


def refused(port: int, length: int = 1 << 30) -> socket.socket:
    """Return a connection whose body was refused, and has not arrived; the answer and its end were read."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % length)
    answer = b""
    while part := connection.recv(65_536):
        answer += part
    assert answer.startswith(b"HTTP/1.1 413 ") and answer.endswith(b"no")
    return connection


def send_until_closed(connection: socket.socket, piece: bytes, pause_s: float) -> tuple[int, float]:
    """Send without end; return the bytes and the seconds until the service closed the connection."""
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < PATIENCE_S:
        try:
            sent += connection.send(piece)
        except OSError:
            break
        time.sleep(pause_s)
    return sent, time.monotonic() - began


def test_a_connection_drops_no_more_than_its_bytes(bounded: int) -> None:
    with refused(bounded) as connection:
        sent, _ = send_until_closed(connection, b" " * 65_536, 0.0)
    assert MOST_BYTES <= sent < MOST_BYTES + (16 << 20)  # the system holds some


def test_a_silent_client_is_closed_first_and_a_busy_one_later(bounded: int) -> None:
    with refused(bounded) as connection:
        time.sleep(SILENCE_S * 1.5)
        _, silent_s = send_until_closed(connection, b" ", 0.05)
    with refused(bounded) as connection:
        _, busy_s = send_until_closed(connection, b" ", 0.05)
    assert silent_s < SILENCE_S < busy_s
    assert LONGEST_S * 0.7 < busy_s < LONGEST_S + 1.0


def test_the_connection_that_lingers_longest_makes_place(bounded: int) -> None:
    with ExitStack() as held:
        first, second, third = (held.enter_context(refused(bounded)) for _ in range(3))
        _, first_s = send_until_closed(first, b" ", 0.02)
        assert first_s < SILENCE_S
        for other in (second, third):
            other.sendall(b" ")
            time.sleep(0.05)
            other.sendall(b" ")


def test_all_connections_together_keep_to_their_rate() -> None:
    bounds = LingeringConnections(bytes_per_s=1_000)
    assert bounds.pay(100, now=5.0) == pytest.approx(0.1)
    assert bounds.pay(900, now=5.0) == pytest.approx(1.0)
    assert bounds.pay(100, now=9.0) == pytest.approx(0.1)
