"""A closed-loop HTTP/1.1 load client that keeps every answer: the judge of what was acknowledged."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import uvloop

_END = b"\r\n\r\n"


@dataclass
class Answers:
    """Results of a load."""

    #: Bodies of all answers with the status of an acknowledgement, by index of the request.
    accepted: list[tuple[int, bytes]] = field(default_factory=list)
    refused: int = 0
    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0


def drive(
    host: str,
    port: int,
    requests: Sequence[bytes],
    *,
    connections: int,
    seconds: float,
    begin: int = 0,
    acknowledges: int = 202,
) -> Answers:
    """Send the requests in turn over so many connections, each waiting for its answer.

    Ends early, without complaint, when the server goes away.

    Args:
        begin: index of the request to start with.
        acknowledges: status of an answer that promises to keep what was sent.
    """
    return uvloop.run(_drive(host, port, requests, connections, seconds, begin, acknowledges))


async def _drive(
    host: str,
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    begin: int,
    acknowledges: int,
) -> Answers:
    loop = asyncio.get_running_loop()
    answers = Answers()
    turns = itertools.count(begin)
    until = time.perf_counter() + seconds
    began = time.perf_counter()
    ends = [loop.create_future() for _ in range(connections)]
    for end in ends:
        talk = partial(_Talk, requests, turns, until, answers, end, acknowledges)
        await loop.create_connection(talk, host, port)
    await asyncio.gather(*ends)
    answers.seconds = time.perf_counter() - began
    return answers


class _Talk(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(
        self,
        requests: Sequence[bytes],
        turns: "itertools.count[int]",
        until: float,
        answers: Answers,
        end: "asyncio.Future[None]",
        acknowledges: int,
    ) -> None:
        self._requests = requests
        self._turns = turns
        self._until = until
        self._answers = answers
        self._end = end
        self._head = b"HTTP/1.1 %d" % acknowledges
        self._received = b""
        self._sent_at = 0.0
        self._turn = 0
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's own class is no subclass
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, result, body = self._received.partition(_END)
        if not result or len(body) < _content_length(head):
            return
        self._received = b""
        self._answers.latencies_s.append(time.perf_counter() - self._sent_at)
        if head.startswith(self._head):
            self._answers.accepted.append((self._turn, body))
        else:
            self._answers.refused += 1
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._end.done():
            self._end.set_result(None)

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at = time.perf_counter()
        if self._sent_at >= self._until:
            self._transport.close()
            return
        self._turn = next(self._turns)
        self._transport.write(self._requests[self._turn % len(self._requests)])


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
