"""Token buckets: what they grant on any schedule, in memory and in Redis. Spec §8.1, contract §1."""

import asyncio
import math
import time
from collections.abc import Iterator

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.access.rate_limits.bucket_stores import ARITHMETIC, RedisBuckets
from recorder.access.rate_limits.token_buckets import (
    LONGEST_FILL_S,
    BucketGroup,
    BucketLevel,
    InProcessBuckets,
    TokenBucket,
    take_tokens,
)
from recorder.access.rate_tiers import SIGNED_READS, STRANGERS, TIERS, WEBHOOK_CALLS
from recorder.ids import new_id

KEY = TokenBucket("key", "per_key", 4, 2.0)
WORKSPACE = TokenBucket("workspace", "per_workspace", 10, 5.0)
#: Sums of floats end a hair beside the exact value.
HAIR = 1e-6

sizes = st.integers(1, 40)
speeds = st.floats(0.1, 50, allow_nan=False)
#: Seconds between two requests; many at once, and whole pauses.
steps = st.one_of(st.just(0.0), st.floats(0, 0.5), st.floats(0, 40))
#: The same with a clock that is set back now and then.
any_steps = st.one_of(steps, steps, st.floats(-40, 0))


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(levels: list[BucketLevel], now: float) -> bool:
    is_granted, _ = take_tokens(levels, now=now)
    return is_granted


def test_a_bucket_gives_its_size_at_once_and_then_its_rate() -> None:
    level = BucketLevel(KEY, 100.0)
    assert [ask([level], 100.0) for _ in range(5)] == [True] * 4 + [False]
    assert [ask([level], 100.0 + s) for s in (0.4, 0.5, 0.9, 1.0)] == [False, True, False, True]


def test_a_bucket_never_holds_more_than_its_size() -> None:
    level = BucketLevel(KEY, 0.0)
    take_tokens([level], now=0.0)
    assert take_tokens([level], now=1e9, cost=0) == (True, [4.0])


def test_a_refused_request_takes_nothing_from_either_bucket() -> None:
    levels = [BucketLevel(KEY, 0.0), BucketLevel(WORKSPACE, 0.0)]
    for _ in range(4):
        take_tokens(levels, now=0.0)
    assert take_tokens(levels, now=0.0) == (False, [0.0, 6.0])
    assert take_tokens([levels[1]], now=0.0) == (True, [5.0])


def test_looking_takes_nothing() -> None:
    level = BucketLevel(KEY, 0.0)
    assert [take_tokens([level], now=0.0, cost=0) for _ in range(9)] == [(True, [4.0])] * 9


@given(sizes, speeds, st.lists(steps, min_size=1, max_size=80))
@settings(max_examples=200)
def test_no_schedule_gets_more_than_burst_and_rate(
    size: int, per_second: float, schedule: list[float]
) -> None:
    level, now, granted = BucketLevel(TokenBucket("b", "per_key", size, per_second), 0.0), 0.0, 0
    for step in schedule:
        now += step
        granted += ask([level], now)
        assert granted <= size + per_second * now + HAIR


@given(sizes, speeds, st.lists(any_steps, min_size=1, max_size=80))
@settings(max_examples=200)
def test_a_clock_that_is_set_back_gives_nothing_twice(
    size: int, per_second: float, schedule: list[float]
) -> None:
    bucket = TokenBucket("b", "per_key", size, per_second)
    level, now, latest, granted = BucketLevel(bucket, 0.0), 0.0, 0.0, 0
    for step in schedule:
        # Never further back than the bucket takes to fill.
        now = max(now + step, latest - bucket.fill_s)
        latest = max(latest, now)
        granted += ask([level], now)
        assert granted <= size + per_second * latest + HAIR


@given(sizes, speeds, st.floats(0, 1e9))
def test_a_clock_that_is_set_far_back_closes_a_bucket_for_its_filling_time_at_most(
    size: int, per_second: float, back: float
) -> None:
    bucket = TokenBucket("b", "per_key", size, per_second)
    level = BucketLevel(bucket, 1e9)
    while ask([level], 1e9):
        pass
    ask([level], 1e9 - back)
    _, [tokens] = take_tokens([level], now=1e9 - back + 2 * bucket.fill_s, cost=0)
    assert tokens == pytest.approx(size, rel=1e-3)


@pytest.fixture(scope="module")
def connection(redis_url: str) -> Iterator[redis.Redis]:
    """Yield a connection with which a test reads Redis itself."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as server:
        yield server


@given(st.lists(st.tuples(st.integers(0, 3), any_steps), min_size=1, max_size=20), sizes, speeds)
@settings(max_examples=200)
def test_redis_reckons_as_memory_does(
    connection: redis.Redis, schedule: list[tuple[int, float]], size: int, per_second: float
) -> None:
    script = connection.register_script("local now = tonumber(ARGV[7])" + ARITHMETIC)
    name = new_id("wsp")
    buckets = [TokenBucket(f"{name}:a", "per_key", size, per_second), TokenBucket(f"{name}:b", "w", 9, 3.0)]
    now = 1_800_000_000.0
    levels = [BucketLevel(bucket, now + schedule[0][1]) for bucket in buckets]
    for cost, step in schedule:
        now += step
        numbers = [number for bucket in buckets for number in (cost, bucket.size, bucket.per_second)]
        result = script([bucket.name for bucket in buckets], [*numbers, repr(now)])
        is_granted, tokens = take_tokens(levels, now=now, cost=cost)
        assert result[0] == is_granted
        assert [float(text) for text in result[1:]] == pytest.approx(tokens, abs=HAIR)


#: Which process asks, how often at once, and how long it rests afterwards.
turns = st.tuples(st.integers(0, 3), st.integers(1, 12), st.sampled_from([0.0, 0.0, 0.001, 0.003]))


@given(
    st.sampled_from([1, 2, 4]),
    st.integers(1, 20),
    st.floats(50, 2_000),
    st.lists(turns, min_size=1, max_size=8),
)
@settings(max_examples=200)
def test_no_schedule_of_several_callers_gets_more_from_redis(
    redis_url: str, callers: int, size: int, per_second: float, schedule: list[tuple[int, int, float]]
) -> None:
    bucket = TokenBucket(new_id("key"), "per_key", size, per_second)

    async def run() -> None:
        stores = [RedisBuckets(redis_url, timeout_s=30) for _ in range(callers)]
        began, granted = time.monotonic(), 0
        for who, count, rest_s in schedule:
            granted += await ask_together(stores[who % callers], [bucket], count)
            # Redis tells the time in microseconds.
            assert granted <= size + per_second * (time.monotonic() - began + 1e-3)
            await asyncio.sleep(rest_s)
        for store in stores:
            await store.close()

    asyncio.run(run())


async def ask_together(store: RedisBuckets, buckets: list[TokenBucket], count: int) -> int:
    """Return how many of some simultaneous requests are granted."""
    result = await asyncio.gather(*(store.take_tokens(buckets) for _ in range(count)))
    return sum(is_granted for is_granted, _ in result)


def test_redis_takes_from_both_buckets_or_from_none(redis_url: str) -> None:
    async def run() -> None:
        store = RedisBuckets(redis_url, timeout_s=30)
        key = TokenBucket(new_id("key"), "per_key", 4, 0.001)
        workspace = TokenBucket(new_id("wsp"), "per_workspace", 10, 0.001)
        assert await ask_together(store, [key, workspace], 20) == 4
        _, [left] = await store.take_tokens([workspace], cost=0)
        assert math.floor(left) == 6
        await store.close()

    asyncio.run(run())


def test_redis_forgets_a_bucket_that_has_had_time_to_fill(redis_url: str, connection: redis.Redis) -> None:
    async def run() -> None:
        store = RedisBuckets(redis_url, timeout_s=30)
        await store.take_tokens([bucket])
        await store.close()

    bucket = TokenBucket(new_id("key"), "per_key", 10, 5.0)
    asyncio.run(run())
    assert 2_000 < connection.pttl(bucket.name) <= 3_000


def test_memory_forgets_what_was_quiet_for_as_long_as_any_bucket_takes_to_fill() -> None:
    async def run() -> None:
        clock = Clock()
        store = InProcessBuckets(clock=clock)
        for n in range(1_000):
            await store.take_tokens([TokenBucket(f"{n}", "per_address", 40, 20.0)])
        assert len(store) == 1_000
        for clock.now in (LONGEST_FILL_S, 2 * LONGEST_FILL_S):
            await store.take_tokens([KEY])
        assert len(store) == 1

    asyncio.run(run())


def test_memory_keeps_a_bucket_that_is_in_use_over_all_generations() -> None:
    async def run() -> None:
        clock, slow = Clock(), TokenBucket("slow", "per_key", 5, 5 / LONGEST_FILL_S)
        store = InProcessBuckets(clock=clock)
        granted = 0
        for clock.now in range(0, 600, 7):
            granted += (await store.take_tokens([slow]))[0]
        assert granted <= 5 + 600 * slow.per_second

    asyncio.run(run())


def test_a_flood_of_callers_does_not_fill_the_memory() -> None:
    async def run() -> None:
        store = InProcessBuckets(capacity=100)
        for n in range(2_000):
            await store.take_tokens([TokenBucket(f"{n}", "per_address", 40, 20.0)])
            await store.take_tokens([TokenBucket(f"look {n}", "per_address", 40, 20.0)], cost=0)
        assert len(store) <= 200

    asyncio.run(run())


def test_a_bucket_takes_the_size_of_its_new_tier() -> None:
    async def run() -> list[tuple[bool, list[float]]]:
        store = InProcessBuckets(clock=Clock())
        grown = TokenBucket(KEY.name, "per_key", 40, 20.0)
        return [await store.take_tokens([bucket]) for bucket in (KEY, grown, KEY)]

    assert asyncio.run(run()) == [(True, [3.0]), (True, [2.0]), (True, [1.0])]


def test_groups_that_are_asked_again_find_what_others_drew_and_their_tier() -> None:
    clock = Clock()
    store = InProcessBuckets(clock=clock)
    slow, fast = BucketGroup(KEY), BucketGroup(TokenBucket(KEY.name, "per_key", 40, 20.0), WORKSPACE)
    drawn = [store.take_tokens_without_waiting(group) for group in (slow, fast, slow, fast, slow)]
    assert drawn == [(True, [3.0]), (True, [2.0, 9.0]), (True, [1.0]), (True, [0.0, 8.0]), (False, [0.0])]
    clock.now = 1.0
    assert store.take_tokens_without_waiting(fast) == (True, [19.0, 9.0])
    clock.now = 2.0
    assert store.take_tokens_without_waiting(slow) == (True, [3.0])


def test_a_group_in_use_is_kept_over_all_generations() -> None:
    clock = Clock()
    store, group = (
        InProcessBuckets(clock=clock),
        BucketGroup(TokenBucket("slow", "per_key", 5, 5 / LONGEST_FILL_S)),
    )
    granted = 0
    for clock.now in range(0, 600, 7):
        granted += store.take_tokens_without_waiting(group)[0]
    assert granted <= 5 + 600 * 5 / LONGEST_FILL_S


def test_no_bucket_takes_longer_to_fill_than_memory_keeps_it() -> None:
    surfaces = [rates for tier in TIERS.values() for rates in tier.rates.values()]
    rates = [rate for both in surfaces for rate in (both.per_key, both.per_workspace)]
    fills = [
        TokenBucket.of(rate, "any", "any").fill_s for rate in (*rates, STRANGERS, SIGNED_READS, WEBHOOK_CALLS)
    ]
    assert max(fills) == LONGEST_FILL_S
