"""Caps on what connections keep in memory: heads that are arriving, unread answers. Contract §1."""

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.gate.held_bytes import HeldBytes
from api.gate.open_connections import CONNECTIONS, OpenConnections
from tests.support.http_service import serving

MOST = 16
ANSWER_BYTES = 24 << 20


class Part:
    """Bytes of a connection, as many as the test says."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.is_ended = False

    def end(self) -> None:
        """Release the bytes."""
        self.is_ended = True


def make_held(most: int) -> HeldBytes[Part]:
    """Return the counts of parts."""
    return HeldBytes[Part](most, measure=lambda part: part.count, end=Part.end)


def test_beyond_the_cap_the_owner_with_most_loses_its_oldest_part() -> None:
    held = make_held(100)
    first, second, other, last = Part(30), Part(30), Part(40), Part(10)
    for part, owner in ((other, "b"), (first, "a"), (second, "a")):
        held.hold(part, owner)
    assert not any(part.is_ended for part in (first, second, other))
    held.hold(last, "c")
    assert [part.is_ended for part in (first, second, other, last)] == [True, False, False, False]


def test_an_eighth_is_freed_so_that_not_each_part_is_followed_by_a_measurement() -> None:
    measured: list[Part] = []

    def measure(part: Part) -> int:
        measured.append(part)
        return part.count

    held = HeldBytes[Part](800, measure=measure, end=Part.end)
    parts = [Part(1) for _ in range(2_000)]
    for part in parts:
        held.hold(part, "a")
    assert sum(not part.is_ended for part in parts) <= 800 and not any(part.is_ended for part in parts[-700:])
    assert len(measured) < 8 * len(parts) + 2_000


def test_bytes_that_clients_took_in_between_count_no_longer() -> None:
    held = make_held(100)
    read, other = Part(90), Part(90)
    held.hold(read, "a")
    read.count = 5
    held.hold(other, "b")
    assert not read.is_ended and not other.is_ended


def test_a_dropped_part_counts_no_longer_and_a_part_counts_once() -> None:
    held = make_held(100)
    part, other = Part(60), Part(60)
    for _ in range(3):
        held.hold(part, "a")
    held.drop(part)
    held.drop(part)
    held.hold(other, "a")
    assert not part.is_ended and not other.is_ended


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Let unread answers take three and a half answers."""
    yield {CONNECTIONS: OpenConnections(MOST, MOST, answer_bytes=7 * ANSWER_BYTES // 2)}


async def answer(request: Request) -> Response:
    """Return more bytes than the system holds for a client that does not read."""
    return Response(bytes(ANSWER_BYTES))


def read_answer(connection: socket.socket) -> int:
    """Return how many bytes of the answer arrive."""
    received = 0
    try:
        while received < ANSWER_BYTES and (part := connection.recv(1 << 20)):
            received += len(part)
    except ConnectionResetError:
        pass
    return received


def test_answers_that_are_not_read_are_capped_and_readers_go_on() -> None:
    with ExitStack() as held:
        port = held.enter_context(serving(Starlette(routes=[Route("/", answer)], lifespan=lifespan)))

        def ask(source: str) -> socket.socket:
            connection = held.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))
            )
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            return connection

        slow = ask("127.0.0.3")
        hoarded = [ask("127.0.0.2") for _ in range(4)]
        for _ in range(3):
            assert read_answer(ask("127.0.0.4")) >= ANSWER_BYTES
        received = [read_answer(connection) for connection in hoarded]
        assert received[0] < ANSWER_BYTES and received[1] < ANSWER_BYTES
        assert read_answer(slow) >= ANSWER_BYTES
