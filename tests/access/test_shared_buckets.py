"""Buckets that processes share by Redis: what they grant under load, and without it. Spec §8.1."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
import redis

from benchmarks.overload import Grants, overload
from recorder.access.rate_limits.bucket_stores import (
    TIMEOUT_S,
    RedisAvailability,
    RedisBuckets,
    SharedTokenBucketStore,
    TokenBucketStore,
    open_token_buckets,
)
from recorder.access.rate_limits.token_buckets import InProcessBuckets, TokenBucket
from recorder.ids import new_id
from tests.support.redis_server import running_redis
from tests.support.sealed_sessions import make_settings

SECONDS = 1.0


def a_bucket(size: int = 10, per_second: float = 0.001) -> TokenBucket:
    """Return a bucket that no other test draws on, and that hardly fills."""
    return TokenBucket(new_id("key"), "per_key", size, per_second)


@asynccontextmanager
async def shared(url: str) -> AsyncIterator[SharedTokenBucketStore]:
    buckets = SharedTokenBucketStore(RedisBuckets(url), InProcessBuckets(), RedisAvailability("rate limits"))
    try:
        yield buckets
    finally:
        await buckets.close()


async def granted(store: TokenBucketStore, bucket: TokenBucket, count: int) -> int:
    """Return how many of some simultaneous requests are granted."""
    result = await asyncio.gather(*(store.take_tokens([bucket]) for _ in range(count)))
    return sum(is_granted for is_granted, _ in result)


async def has_come_back(store: SharedTokenBucketStore, url: str) -> None:
    """Wait until requests go to Redis again."""
    with redis.Redis.from_url(url) as connection:
        while True:
            seen = a_bucket()
            await store.take_tokens([seen])
            if connection.exists(seen.name):
                return
            await asyncio.sleep(0.02)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Redis" in record.getMessage()]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_under_too_much_load_grant_what_the_limits_say(redis_url: str, processes: int) -> None:
    result = overload(redis_url, processes=processes, seconds=SECONDS)
    assert_exact(result)


def test_a_process_alone_grants_what_the_limits_say() -> None:
    assert_exact(overload(None, processes=1, seconds=SECONDS))


def assert_exact(result: Grants) -> None:
    assert result.over == 0
    assert result.share >= 0.99


def test_two_stores_draw_on_the_same_bucket(redis_url: str) -> None:
    async def run() -> None:
        bucket = a_bucket()
        async with shared(redis_url) as first, shared(redis_url) as second:
            assert await granted(first, bucket, 6) == 6
            assert await granted(second, bucket, 6) == 4
            assert await granted(first, bucket, 1) == 0

    asyncio.run(run())


def test_without_redis_a_process_grants_by_its_own_buckets_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        with running_redis() as server:
            async with shared(server.url) as store:
                bucket = a_bucket()
                assert await granted(store, bucket, 6) == 6
                server.stop()
                assert await granted(store, bucket, 50) == bucket.size
                assert await granted(store, bucket, 50) == 0
                server.start()  # empty: without the script, and without the bucket
                await asyncio.wait_for(has_come_back(store, server.url), 20)
                assert await granted(store, bucket, 50) == bucket.size

    asyncio.run(run())
    assert [" ".join(line.split()[:4]) for line in told(caplog)] == [
        "Redis does not answer",
        "Redis answers again; all",
    ]


def test_a_redis_that_hangs_holds_requests_up_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with running_redis() as server:
            async with shared(server.url) as store:
                bucket = a_bucket(size=1_000)
                await granted(store, bucket, 5)
                server.signal(signal.SIGSTOP)
                assert await granted(store, bucket, 600) == 600
                await decide_at_once(store, bucket)
                server.signal(signal.SIGCONT)
                await asyncio.wait_for(has_come_back(store, server.url), 20)

    asyncio.run(run())
    assert len(told(caplog)) == 2


@asynccontextmanager
async def delayed(port: int, delay_s: list[float]) -> AsyncIterator[str]:
    """Yield the address of a proxy that passes on the answers of a Redis after a delay."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waits: list[float]) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await asyncio.sleep(waits[0])
                writer.write(data)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, redis_writer, [0.0]), pass_on(redis_reader, writer, delay_s))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as proxy:
        yield f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/0"


def test_a_slow_redis_counts_as_away_until_it_answers_soon(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with running_redis() as server:
            delay_s = [0.0]
            async with delayed(urlsplit(server.url).port or 0, delay_s) as url, shared(url) as store:
                bucket = a_bucket(size=1_000)
                await granted(store, bucket, 1)
                # Each answer comes in time, but a decision that waits for the one before does not.
                delay_s[0] = 0.8 * TIMEOUT_S
                for _ in range(3):
                    first = asyncio.create_task(granted(store, bucket, 1))
                    await asyncio.sleep(0.1 * TIMEOUT_S)
                    assert await granted(store, bucket, 1) == 1 == await first
                await decide_at_once(store, bucket)
                assert len(told(caplog)) == 1
                delay_s[0] = 0.0
                await asyncio.wait_for(has_come_back(store, server.url), 20)

    asyncio.run(run())
    assert len(told(caplog)) == 2


async def decide_at_once(store: SharedTokenBucketStore, bucket: TokenBucket) -> None:
    """Make decisions for some tries of Redis; none of them waits for it."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with pytest.raises(StopIteration):
            store.take_tokens([bucket]).send(None)
        await asyncio.sleep(0.01)


def test_a_redis_that_was_never_there_stops_nobody(
    caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = make_settings(tmp_path_factory.mktemp("data"), redis_url="redis://:pass-word@127.0.0.1:1/0")

    async def run() -> None:
        stores = open_token_buckets(settings)
        for store in stores:
            assert await granted(store, a_bucket(), 20) == 10
        for store in stores:
            await store.close()

    asyncio.run(run())
    assert len(told(caplog)) == 1 and "pass-word" not in caplog.text


def test_a_request_that_gives_up_leaves_the_others_their_answers(redis_url: str) -> None:
    async def run() -> None:
        store = RedisBuckets(redis_url, timeout_s=30)
        bucket = a_bucket(size=1_000)
        waiting = [asyncio.create_task(store.take_tokens([bucket])) for _ in range(20)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        result = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(item, asyncio.CancelledError) for item in result[::2])
        assert all(item[0] for item in result[1::2] if isinstance(item, tuple)) and len(result[1::2]) == 10
        assert await granted(store, bucket, 5) == 5
        await store.close()

    asyncio.run(run())
