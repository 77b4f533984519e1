"""Shares of the memory of request bodies, and the bodies that give way to others. Contract §1."""

import asyncio
import time
from typing import Any

import psutil
import pytest

from api.bodies.body_limits import PORTION_BYTES, LargeBody
from api.bodies.body_memory import BodyMemory
from recorder import limits
from recorder.errors import Overloaded

MB = 1024 * 1024


def test_a_workspace_takes_no_more_than_it_leaves_and_waiting_is_first_come_first_served() -> None:
    async def run() -> None:
        memory = BodyMemory(512 * MB)
        await memory.reserve("a", 200 * MB)
        with pytest.raises(Overloaded):
            await memory.reserve("a", 60 * MB)
        await memory.reserve("a", 56 * MB)
        with pytest.raises(Overloaded):
            await memory.reserve("b", 130 * MB)
        await memory.reserve("b", 128 * MB)
        await memory.reserve("c", 64 * MB)  # the third one still finds memory for the largest body
        with pytest.raises(Overloaded):
            await memory.reserve("c", 1 * MB)
        await memory.reserve("d", 64 * MB)
        waiting = [asyncio.create_task(memory.reserve(owner, 60 * MB)) for owner in ("e", "f")]
        await asyncio.sleep(0)
        memory.release("b", 128 * MB)
        await asyncio.gather(*waiting)
        cancelled = asyncio.create_task(memory.reserve("g", 60 * MB))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        for owner, count in (("a", 256), ("c", 64), ("d", 64), ("e", 60), ("f", 60)):
            memory.release(owner, count * MB)
        assert memory.taken == 0
        assert not memory._taken_by and not memory._waiting

    asyncio.run(run())


class Arrival:
    """A large body of a workspace that never completes, and the request that reads it."""

    def __init__(self, memory: BodyMemory, owner: str, size: int) -> None:
        async def receive() -> Any:
            if not self.left:
                await asyncio.Event().wait()
            self.left -= PORTION_BYTES
            return {"type": "http.request", "body": bytes(PORTION_BYTES), "more_body": True}

        self.left = size
        self.body = LargeBody(receive, limits.FRAMES_REQUEST_BYTES, limits.FRAMES_REQUEST_BYTES, memory, {})
        self.body.admit(owner, None)
        self.request = asyncio.create_task(self.read())

    async def read(self) -> None:
        """Read until the body is refused, then release its memory, as the gate does."""
        try:
            while True:
                await self.body.receive()
        finally:
            self.body.release()

    async def arrive(self) -> "Arrival":
        """Wait until everything that is sent has arrived."""
        while self.left and not self.request.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        return self


def test_a_body_holds_what_arrived_and_not_what_it_announces() -> None:
    async def run() -> None:
        memory = BodyMemory(512 * MB)
        bodies = [await Arrival(memory, "a", PORTION_BYTES).arrive() for _ in range(100)]
        assert memory.taken <= 2 * PORTION_BYTES * len(bodies)
        await memory.reserve("a", 60 * MB)
        for held in bodies:
            held.request.cancel()

    asyncio.run(run())


def test_the_workspace_that_holds_most_makes_room_by_its_oldest_body() -> None:
    async def run() -> None:
        memory = BodyMemory(256 * MB)
        first, second = [await Arrival(memory, "a", 60 * MB).arrive() for _ in range(2)]
        other = await Arrival(memory, "b", 60 * MB).arrive()
        await memory.reserve("c", 60 * MB)
        assert memory.taken > 240 * MB and not first.request.done()
        await memory.reserve("d", 50 * MB)
        with pytest.raises(Overloaded):
            await first.request
        assert not second.request.done() and not other.request.done()
        for held in (second, other):
            held.request.cancel()
        await asyncio.gather(second.request, other.request, return_exceptions=True)
        assert memory.taken == 110 * MB and not memory._arriving and not memory._ending

    asyncio.run(run())


def test_a_workspace_that_holds_no_more_than_the_others_loses_no_body() -> None:
    async def run() -> None:
        memory = BodyMemory(256 * MB)
        held = [await Arrival(memory, owner, 63 * MB).arrive() for owner in "abcd"]
        with pytest.raises(Overloaded):
            await memory.reserve("e", 64 * MB)
        assert not any(each.request.done() for each in held)
        await memory.reserve("e", 32 * MB)
        assert [each.request.done() for each in held].count(True) == 1
        for each in held:
            each.request.cancel()
        await asyncio.gather(*(each.request for each in held), return_exceptions=True)

    asyncio.run(run())


def test_complete_bodies_are_not_ended() -> None:
    async def run() -> None:
        memory = BodyMemory(128 * MB)
        content = {"type": "http.request", "body": bytes(60 * MB), "more_body": False}

        async def receive() -> Any:
            return content

        body = LargeBody(receive, 60 * MB, limits.FRAMES_REQUEST_BYTES, memory, {})
        body.admit("a", None)
        await body.receive()
        assert not memory._arriving
        await memory.reserve("a", 60 * MB)
        await memory.reserve("b", 60 * MB)
        with pytest.raises(Overloaded):
            await memory.reserve("c", 20 * MB)
        body.release()

    asyncio.run(run())


def test_the_smallest_cap_admits_the_largest_request() -> None:
    async def run() -> None:
        memory = BodyMemory(128 * MB)
        await memory.reserve("a", limits.FRAMES_REQUEST_BYTES)
        await memory.reserve("b", limits.FRAMES_REQUEST_BYTES)
        memory.release("a", limits.FRAMES_REQUEST_BYTES)
        memory.release("b", limits.FRAMES_REQUEST_BYTES)

    asyncio.run(run())


def test_free_memory_returns_to_the_system_once_no_large_body_is_there() -> None:
    process = psutil.Process()

    async def run() -> tuple[int, int]:
        memory = BodyMemory(256 * MB)
        memory.return_after_s = 0.05
        await memory.reserve("a", 64 * MB)
        texts = [bytes(2_000) for _ in range(60_000)]
        last = texts[-1]  # at the end of the heap, so that the C library keeps what is before it
        texts.clear()
        before = process.memory_info().rss
        memory.release("a", 64 * MB)
        until = time.monotonic() + 5
        while process.memory_info().rss > before - 60 * MB and time.monotonic() < until:
            await asyncio.sleep(0.02)
        assert last is not None and memory._most_taken == 0
        return before, process.memory_info().rss

    before, after = asyncio.run(run())
    assert after < before - 60 * MB
