"""Clients that hold a connection and send nothing are cut off; slow answers are not. Hostile case 94."""

import asyncio
import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.importer import import_from_string
from websockets.sync.client import connect

from api.gate.slow_clients import SlowClientProtocol
from recorder import limits
from recorder.runtime import Runtime
from recorder.supervisor.child_commands import api_command
from tests.support.factories import footprint
from tests.support.http_service import RunningService, running_service, serving
from tests.support.sealed_sessions import make_settings

HEAD_S, BODY_S = 0.8, 0.8
BODY_BYTES_PER_S = 10_000
#: Longer than each of them: what stays open so long stays open.
WATCHED_S = 1.4
LARGE_BYTES = 16 * 1024 * 1024
#: What is cut off is cut off within this; what is not is watched for so long.
PATIENCE_S = 10.0


class HastyProtocol(SlowClientProtocol):
    """The same, with less patience."""

    head_s, body_s, grace_s = HEAD_S, BODY_S, 0.5
    body_bytes_per_s = BODY_BYTES_PER_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of this module's service."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningService]:
    """Yield a service with little patience."""
    with running_service(folder, http=HastyProtocol) as service:
        yield service


@pytest.fixture(scope="module")
def runtime(folder: Path, running: RunningService) -> Iterator[Runtime]:
    """Yield a second runtime on the same data."""
    opened = Runtime.open(make_settings(folder))
    yield opened
    opened.close()


@pytest.fixture
def connection(running: RunningService) -> Iterator[socket.socket]:
    """Yield a connection on which nothing was sent."""
    with dial(running) as opened:
        yield opened


def dial(running: RunningService) -> socket.socket:
    """Return a fresh connection: from now on the service waits for a head."""
    address = urlsplit(running.url)
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S)


def head(running: RunningService, path: str, *headers: str, method: str = "POST") -> bytes:
    """Return the head of a request with the key."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {running.key}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def read_to_end(connection: socket.socket) -> bytes:
    """Return the bytes until the service closes; fail if it does not."""
    received = b""
    while chunk := connection.recv(65_536):
        received += chunk
    return received


def read_answer(connection: socket.socket) -> bytes:
    """Return one whole answer of a connection that stays open."""
    received = b""
    while True:
        received += connection.recv(65_536)
        start, separator, body = received.partition(b"\r\n\r\n")
        if separator and len(body) >= int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return received


def problem_of(answer: bytes) -> dict[str, object]:
    """Return the problem document of a raw answer."""
    start, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in start.lower()
    assert b"x-request-id: req_" in start.lower() and b"service-version: " in start.lower()
    document: dict[str, object] = json.loads(body)
    return document


def test_a_silent_connection_is_closed_without_a_word(connection: socket.socket) -> None:
    began = time.monotonic()
    assert read_to_end(connection) == b""
    assert time.monotonic() - began >= HEAD_S * 0.9


@pytest.mark.parametrize("sent", [b"POST /v1/sess", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"\r\n"])
def test_half_a_head_is_answered_408(connection: socket.socket, sent: bytes) -> None:
    connection.sendall(sent)
    answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert problem_of(answer)["code"] == "request_timeout"


def test_a_head_that_drips_is_cut_off_too(connection: socket.socket) -> None:
    connection.sendall(b"GET /v1/sessions HTTP/1.1\r\n")
    began = time.monotonic()
    while not select.select([connection], [], [], HEAD_S / 8)[0]:
        assert time.monotonic() - began < PATIENCE_S
        connection.sendall(b"X-A: b\r\n")
    assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("address", "framing", "begun"),
    [
        ("/v1/sessions", "Content-Length: 1000", b'{"'),
        ("/v1/sessions/{id}/events", "Transfer-Encoding: chunked", b'2\r\n{"\r\n'),
        ("/v1/sessions/{id}/frames", "Content-Length: 1000", b""),
    ],
)
def test_a_body_that_does_not_come_is_answered_408(
    running: RunningService, runtime: Runtime, address: str, framing: str, begun: bytes
) -> None:
    path = address.format(id=make_session(running))
    before = footprint(runtime)
    with dial(running) as connection:
        connection.sendall(head(running, path, "Content-Type: application/json", framing) + begun)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert problem_of(answer)["code"] == "request_timeout"
    assert footprint(runtime) == before


def send_body(connection: socket.socket, body: bytes, *, bytes_per_s: float, seconds: float) -> None:
    """Send a body at a rate, until it was sent, the time is over or the service answers."""
    step, began, sent = 0.05, time.monotonic(), 0
    while sent < len(body) and time.monotonic() - began < seconds:
        time.sleep(step)
        due = min(len(body), int((time.monotonic() - began) * bytes_per_s))
        if select.select([connection], [], [], 0)[0]:
            return
        connection.sendall(body[sent:due])
        sent = due


@pytest.mark.parametrize("framing", ["Content-Length: {size}", "Transfer-Encoding: chunked"])
def test_a_body_that_keeps_the_least_rate_arrives_however_long_it_takes(
    running: RunningService, framing: str
) -> None:
    path = f"/v1/sessions/{make_session(running)}/events"
    body = json.dumps({"events": [{"type": "a", "t_ms": 1, "title": "x" * 1_500}] * 50}).encode()
    headers = ("Content-Type: application/json", framing.format(size=len(body)))
    with dial(running) as connection:
        connection.sendall(head(running, path, *headers))
        began = time.monotonic()
        if "chunked" in framing:
            connection.sendall(b"%x\r\n" % len(body))
        send_body(connection, body, bytes_per_s=2.5 * BODY_BYTES_PER_S, seconds=PATIENCE_S)
        if "chunked" in framing:
            connection.sendall(b"\r\n0\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 202 ")
    assert time.monotonic() - began > 3 * BODY_S


@pytest.mark.parametrize("first", [0, 40_000])
def test_a_body_that_trickles_is_answered_408(running: RunningService, first: int) -> None:
    # Bytes that arrive quickly at first give no more time for the rest of the body.
    path = f"/v1/sessions/{make_session(running)}/events"
    with dial(running) as connection:
        connection.sendall(head(running, path, "Content-Type: application/json", "Content-Length: 5000000"))
        connection.sendall(b" " * first)
        began = time.monotonic()
        send_body(connection, b" " * 4_900_000, bytes_per_s=BODY_BYTES_PER_S / 4, seconds=0.7 * BODY_S)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert "in each second" in str(problem_of(answer)["detail"])
    assert time.monotonic() - began < 4 * BODY_S


def test_a_body_behind_an_answer_is_not_waited_for(connection: socket.socket) -> None:
    connection.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    assert read_to_end(connection).startswith(b"HTTP/1.1 401 ")


def test_endless_headers_are_refused(connection: socket.socket) -> None:
    line = b"GET / HTTP/1.1\r\nX-A: "
    connection.sendall(line + b"a" * (limits.REQUEST_HEAD_BYTES + 1 - len(line)))
    answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert problem_of(answer)["code"] == "payload_too_large"


def test_endless_trailers_are_refused(running: RunningService, runtime: Runtime) -> None:
    before = footprint(runtime)
    headers = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    with dial(running) as connection:
        connection.sendall(head(running, "/v1/sessions", *headers))
        connection.sendall(b'16\r\n{"workflow":"checked"}\r\n0\r\nX-A: ')
        connection.sendall(b"a" * (limits.REQUEST_HEAD_BYTES + 1))
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")
    assert footprint(runtime) == before


def test_a_large_body_in_chunks_of_one_byte_is_refused(running: RunningService, runtime: Runtime) -> None:
    before = footprint(runtime)
    headers = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    with dial(running) as connection:
        connection.sendall(head(running, f"/v1/sessions/{make_session(running)}/events", *headers))
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                connection.sendall(b"1\r\n \r\n" * 1_000)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert "in larger chunks" in str(problem_of(answer)["detail"])
    assert footprint(runtime).keys() == before.keys()


def test_a_large_body_in_chunks_of_a_hundred_bytes_arrives(running: RunningService) -> None:
    headers = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    with dial(running) as connection:
        connection.sendall(head(running, f"/v1/sessions/{make_session(running)}/events", *headers))
        connection.sendall(b'%x\r\n{"events":[{"type":"a","t_ms":1}]}\r\n' % 34)
        connection.sendall((b"64\r\n" + b" " * 100 + b"\r\n") * 20_000 + b"0\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 202 ")


def make_session(running: RunningService) -> str:
    """Return a recording session."""
    headers = {"Authorization": f"Bearer {running.key}"}
    body = {"workflow": "checkout", "start": True}
    answer = httpx.post(f"{running.url}/v1/sessions", json=body, headers=headers, timeout=PATIENCE_S)
    session_id: str = answer.json()["id"]
    return session_id


def test_a_body_in_small_pieces_arrives(connection: socket.socket, running: RunningService) -> None:
    body = json.dumps({"workflow": "checkout"}).encode()
    headers = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    connection.sendall(head(running, "/v1/sessions", *headers))
    for byte in body:
        connection.sendall(b"1\r\n%c\r\n" % byte)
    connection.sendall(b"0\r\n\r\n")
    assert read_answer(connection).startswith(b"HTTP/1.1 201 ")


def test_a_body_in_many_small_reads_arrives_in_few(
    connection: socket.socket, running: RunningService
) -> None:
    body = json.dumps({"workflow": "checkout"}).encode()
    headers = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    for _ in range(2):  # the connection takes the next request, with reads of its own
        connection.sendall(head(running, "/v1/sessions", *headers))
        for byte in body:
            connection.sendall(b"1\r\n%c\r\n" % byte)
            time.sleep(0.002)
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 201 ")


def test_small_reads_are_paused_between(running: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    real = HastyProtocol.data_received

    def data_received(self: HastyProtocol, data: bytes) -> None:
        reads.append(len(data))
        real(self, data)

    monkeypatch.setattr(HastyProtocol, "data_received", data_received)
    with dial(running) as connection:
        connection.sendall(
            head(running, "/v1/sessions", "Content-Type: application/json", "Content-Length: 400")
        )
        for _ in range(100):
            connection.sendall(b"    ")
            time.sleep(0.002)
        assert read_answer(connection).startswith(b"HTTP/1.1 400 ")
    assert len(reads) < 40 and sum(reads) > 400


def test_a_rested_connection_takes_the_next_request(
    connection: socket.socket, running: RunningService
) -> None:
    for _ in range(2):
        connection.sendall(head(running, "/v1/sessions", method="GET"))
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
        time.sleep(HEAD_S + BODY_S)


def test_requests_sent_ahead_are_answered_in_turn(connection: socket.socket, running: RunningService) -> None:
    connection.sendall(head(running, "/v1/sessions", method="GET") * 20)
    received = b""
    while received.count(b"HTTP/1.1 200 ") < 20:
        received += connection.recv(65_536)
    assert received.count(b"HTTP/1.1 ") == 20


async def slow_answers(scope: Any, receive: Any, send: Any) -> None:
    """Serve slow answers: long silence, or much at once; and a WebSocket that waits."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await asyncio.sleep(WATCHED_S)
        await send({"type": "websocket.send", "text": "late"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-path", scope["raw_path"])]})
    if scope["path"] == "/stream":
        await asyncio.sleep(WATCHED_S)
        await send({"type": "http.response.body", "body": b"late"})
        return
    for _ in range(LARGE_BYTES // 65_536):
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yield the port at which those answers are served."""
    with serving(slow_answers, http=HastyProtocol, lifespan="off") as listening:
        yield listening


def ask(port: int, path: str) -> socket.socket:
    """Return a connection with a small receive buffer on which a request was sent: the answer waits."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return connection


def test_a_silent_stream_stays_open(port: int) -> None:
    with ask(port, "/stream") as connection:
        assert b"late" in read_to_end(connection)


def test_a_silent_websocket_stays_open(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/ws") as socket_:
        assert socket_.recv(timeout=PATIENCE_S) == "late"


def test_a_slow_reader_gets_all_of_a_download(port: int) -> None:
    with ask(port, "/download") as connection:
        received, began = 0, time.monotonic()
        while chunk := connection.recv(65_536):
            received += len(chunk)
            if time.monotonic() - began < WATCHED_S:
                time.sleep(HEAD_S / 8)
    assert received > LARGE_BYTES


def test_recorder_up_serves_by_it(tmp_path: Path) -> None:
    arguments = api_command(make_settings(tmp_path), {}, Path.cwd(), "127.0.0.1", 8700).arguments
    assert import_from_string(arguments[arguments.index("--http") + 1]) is SlowClientProtocol
    assert (SlowClientProtocol.head_s, SlowClientProtocol.body_s) == (10, 30)
    assert SlowClientProtocol.body_bytes_per_s == 32_000
    assert int(arguments[arguments.index("--timeout-keep-alive") + 1]) > 60
