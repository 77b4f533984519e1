"""Requests of rare and hostile clients: offers of HTTP/2, absolute targets, pipelines, unread answers."""

import json
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from api.gate.slow_clients import SlowClientProtocol
from tests.support.http_service import serving

#: As the clients of Java and `curl --http2` send it with their first request.
OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
#: More bytes than the system holds for a client that does not read.
LARGE_ANSWER = 32 << 20


class HastyProtocol(SlowClientProtocol):
    """The same with little patience for clients that do not read."""

    read_s: ClassVar[float] = 0.5


async def echo(request: Request) -> Response:
    """Return what arrived."""
    body = (await request.body()).decode()
    return JSONResponse({"method": request.method, "host": request.headers["host"], "body": body})


async def answer_at_length(_: Request) -> Response:
    """Return more than a client's system takes."""
    return Response(bytes(LARGE_ANSWER))


async def answer_in_parts(_: Request) -> Response:
    """Return as much in parts, each written once the client has read most of those before."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(LARGE_ANSWER >> 17):
            yield bytes(1 << 17)

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yield the port of a server that echoes requests."""
    routes = [Route("/", echo, methods=["GET", "POST"]), Route("/large", answer_at_length)]
    routes.append(Route("/parts", answer_in_parts))
    with serving(Starlette(routes=routes), http=HastyProtocol, lifespan="off") as listening:
        yield listening


def exchange(port: int, *parts: str) -> list[dict[str, Any]]:
    """Return the bodies of all answers to some bytes; the last request must close the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part.encode())
            time.sleep(0.05)
        while chunk := connection.recv(65_536):
            received += chunk
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in received.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    return [json.loads(body) for body in bodies]


def request(method: str = "GET", target: str = "/", more: str = "", body: str = "") -> str:
    """Return a request as it is sent."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}{length}\r\n{body}"


LAST = request(more="Connection: close\r\n")
HIDDEN = request("GET", "/hidden")


@pytest.mark.parametrize("is_split", [False, True], ids=["together", "body later"])
def test_an_offer_of_http_2_is_ignored_and_the_body_is_read(port: int, is_split: bool) -> None:
    head, _, body = request("POST", more=OFFER, body=HIDDEN).partition("\r\n\r\n")
    parts = [head + "\r\n\r\n", body, LAST] if is_split else [head + "\r\n\r\n" + body + LAST]
    answers = exchange(port, *parts)
    assert [(answer["method"], answer["body"]) for answer in answers] == [("POST", HIDDEN), ("GET", "")]


def test_a_chunked_body_after_an_offer_is_read(port: int) -> None:
    chunked = request("POST", more=OFFER + "Transfer-Encoding: chunked\r\n") + "2\r\nab\r\n0\r\n\r\n"
    assert [answer["body"] for answer in exchange(port, chunked, LAST)] == ["ab", ""]


def test_requests_after_one_with_an_offer_are_answered(port: int) -> None:
    assert len(exchange(port, request(more=OFFER) * 3 + LAST)) == 4


def test_the_host_of_an_absolute_target_is_the_host(port: int) -> None:
    answers = exchange(port, request(target="http://evil.example:80/") + LAST)
    assert [answer["host"] for answer in answers] == ["evil.example:80", "127.0.0.1"]


def test_a_connection_is_closed_after_65_requests_sent_at_once(port: int) -> None:
    assert len(exchange(port, request() * 200)) == 65


def test_a_client_that_does_not_read_its_answer_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request(target="/large").encode())
        connection.recv(1)
        ended = select.poll()
        ended.register(connection, 0)
        ((_, reason),) = ended.poll(20_000)
        assert reason & select.POLLERR


@pytest.mark.parametrize("target", ["/parts", "/large"])
def test_a_client_that_reads_slowly_gets_its_whole_answer(port: int, target: str) -> None:
    received = 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request(target=target, more="Connection: close\r\n").encode())
        while chunk := connection.recv(256 * 1024):
            received += len(chunk)
            time.sleep(0.02)
    assert received > LARGE_ANSWER
