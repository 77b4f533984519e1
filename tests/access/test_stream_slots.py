"""Slots of open streams: 50 a key, 500 a workspace, in one process and in several. Spec §8.1, contract §3."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import pytest

from recorder.access.keys import Caller
from recorder.access.rate_limits.stream_slots import RedisStreamSlots, StreamSlot, StreamSlots
from recorder.errors import TooManyStreams
from recorder.ids import new_id
from recorder.tenant import Tenant
from tests.support.redis_server import running_redis

LEASE_S = 0.6


def a_key(workspace_id: str | None = None) -> Caller:
    return Caller(Tenant(workspace_id or new_id("wsp"), "live"), new_id("key"))


@pytest.fixture(params=["memory", "redis"])
def shared_url(request: pytest.FixtureRequest) -> str | None:
    """Store of slots: the process, or Redis."""
    return request.getfixturevalue("redis_url") if request.param == "redis" else None


@asynccontextmanager
async def opened(url: str | None, *, lease_s: float = 30.0) -> AsyncIterator[StreamSlots]:
    slots = StreamSlots(RedisStreamSlots(url, lease_s=lease_s) if url else None)
    try:
        yield slots
    finally:
        await slots.close()


async def take(slots: StreamSlots, caller: Caller, count: int) -> list[StreamSlot]:
    return [await slots.acquire(caller) for _ in range(count)]


def test_the_51st_stream_of_a_key_is_refused_and_another_key_is_not(shared_url: str | None) -> None:
    async def run() -> None:
        async with opened(shared_url) as slots:
            key = a_key()
            await take(slots, key, 50)
            with pytest.raises(TooManyStreams, match="50 streams are open on this key") as raised:
                await slots.acquire(key)
            assert raised.value.retry_after_s is None
            await slots.acquire(a_key(key.workspace_id))
            assert slots.open_count == 51

    asyncio.run(run())


def test_the_501st_stream_of_a_workspace_is_refused(shared_url: str | None) -> None:
    async def run() -> None:
        async with opened(shared_url) as slots:
            workspace = new_id("wsp")
            for _ in range(10):
                await take(slots, a_key(workspace), 50)
            with pytest.raises(TooManyStreams, match="500 streams are open in this workspace"):
                await slots.acquire(a_key(workspace))
            await slots.acquire(a_key())

    asyncio.run(run())


def test_a_stream_that_ends_makes_room(shared_url: str | None) -> None:
    async def run() -> None:
        async with opened(shared_url) as slots:
            key = a_key()
            held = await take(slots, key, 49)
            async with slots.hold(key):
                with pytest.raises(TooManyStreams):
                    await slots.acquire(key)
            slots.release(held[0])
            slots.release(held[0])
            await settled(slots)
            await take(slots, key, 2)
            with pytest.raises(TooManyStreams):
                await slots.acquire(key)

    asyncio.run(run())


def test_a_request_that_is_cancelled_gives_its_slot_back(shared_url: str | None) -> None:
    async def run() -> None:
        async with opened(shared_url) as slots:
            key = a_key()

            async def stream(is_open: asyncio.Event) -> None:
                async with slots.hold(key):
                    is_open.set()
                    await asyncio.Event().wait()

            events = [asyncio.Event() for _ in range(50)]
            tasks = [asyncio.create_task(stream(event)) for event in events]
            await asyncio.gather(*(event.wait() for event in events))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await settled(slots)
            assert slots.open_count == 0
            await take(slots, key, 50)

    asyncio.run(run())


def test_a_request_that_is_cancelled_while_it_claims_a_slot_holds_none(redis_url: str) -> None:
    async def run() -> None:
        async with opened(redis_url) as slots:
            key = a_key()
            claiming = asyncio.create_task(slots.acquire(key))
            await asyncio.sleep(0)
            assert slots.open_count == 1
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            assert slots.open_count == 0
            await settled(slots)
            await take(slots, key, 50)

    asyncio.run(run())


def test_processes_share_their_slots(redis_url: str) -> None:
    async def run() -> None:
        async with opened(redis_url) as first, opened(redis_url) as second:
            key = a_key()
            await take(first, key, 30)
            await take(second, key, 20)
            for slots in (first, second):
                with pytest.raises(TooManyStreams):
                    await slots.acquire(key)
            # A refused stream holds no slot of its process either.
            assert (first.open_count, second.open_count) == (30, 20)

    asyncio.run(run())


def test_a_process_that_ends_gives_all_its_slots_back(redis_url: str) -> None:
    async def run() -> None:
        key = a_key()
        async with opened(redis_url) as first:
            await take(first, key, 50)
        async with opened(redis_url) as second:
            await take(second, key, 50)

    asyncio.run(run())


def test_slots_are_renewed_beyond_their_lease(redis_url: str) -> None:
    async def run() -> None:
        async with opened(redis_url, lease_s=LEASE_S) as first, opened(redis_url, lease_s=LEASE_S) as second:
            key = a_key()
            await take(first, key, 50)
            await asyncio.sleep(2 * LEASE_S)
            with pytest.raises(TooManyStreams):
                await second.acquire(key)

    asyncio.run(run())


def hold_slots(url: str, caller: Caller, count: int, sender: Connection) -> None:
    """Hold slots in a process that will be killed."""

    async def run() -> None:
        async with opened(url, lease_s=LEASE_S) as slots:
            await take(slots, caller, count)
            sender.send("held")
            await asyncio.Event().wait()

    asyncio.run(run())


@pytest.fixture
def holder(redis_url: str) -> Iterator[tuple[SpawnProcess, Caller]]:
    """A process that holds all the slots of a key."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    key = a_key()
    process = context.Process(target=hold_slots, args=(redis_url, key, 50, sender))
    process.start()
    try:
        assert receiver.poll(60) and receiver.recv() == "held"
        yield process, key
    finally:
        process.kill()
        process.join()


def test_the_slots_of_a_killed_process_come_free(redis_url: str, holder: tuple[SpawnProcess, Caller]) -> None:
    async def run() -> None:
        process, key = holder
        async with opened(redis_url, lease_s=LEASE_S) as slots:
            with pytest.raises(TooManyStreams):
                await slots.acquire(key)
            process.kill()
            process.join()
            await asyncio.sleep(1.5 * LEASE_S)
            await take(slots, key, 50)

    asyncio.run(run())


def test_without_its_redis_a_process_counts_alone_and_tells_it_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        with running_redis() as server:
            async with opened(server.url, lease_s=LEASE_S) as first, opened(server.url) as second:
                key = a_key()
                await take(first, key, 30)
                server.stop()
                await take(first, key, 20)
                with pytest.raises(TooManyStreams):
                    await first.acquire(key)
                server.start()
                await refused(second, key)

    asyncio.run(run())
    reports = [record.message for record in caplog.records if "Redis" in record.message]
    assert len(reports) == 2
    assert "does not answer" in reports[0] and "answers again" in reports[1]


async def refused(slots: StreamSlots, caller: Caller) -> None:
    """Wait until another process has stored all its slots in Redis."""
    for _ in range(200):
        try:
            slots.release(await slots.acquire(caller))
        except TooManyStreams:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the slots of the other process are not known")


async def settled(slots: StreamSlots) -> None:
    """Wait until everything that was given back is known everywhere."""
    while slots._freeing:
        await asyncio.gather(*slots._freeing)
