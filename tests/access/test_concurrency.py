"""Limits on work under way. Contract §1 (rate limits)."""

import asyncio
import gc
import pickle
import random
import threading

import pytest

from recorder.access.concurrency import ConcurrencyLimiter, ConcurrencyLimits
from recorder.errors import RateLimited


def test_each_limit_refuses_by_its_name_and_says_how_much_it_admits() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=2, per_workspace=3, per_process=4))
    held = [limiter.acquire("key_a", "wsp_1"), limiter.acquire("key_a", "wsp_1")]
    _check_refused(limiter, "key_a", "wsp_1", "per_key_concurrency", 2)
    held.append(limiter.acquire("key_b", "wsp_1"))
    _check_refused(limiter, "key_b", "wsp_1", "per_workspace_concurrency", 3)
    held.append(limiter.acquire("key_c", "wsp_2"))
    _check_refused(limiter, "key_c", "wsp_2", "per_process_concurrency", 4)
    held.pop().release()
    held.append(limiter.acquire("key_c", "wsp_2"))
    for slot in held:
        slot.release()
    assert limiter.count == 0
    assert not limiter._of_key and not limiter._of_workspace


def test_a_workspace_begins_one_although_others_use_all_of_the_process() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_process=2))
    held = [limiter.acquire("key_a", "wsp_1"), limiter.acquire("key_a", "wsp_1")]
    _check_refused(limiter, "key_a", "wsp_1", "per_process_concurrency", 2)
    for workspace in ("wsp_2", "wsp_3"):
        held.append(limiter.acquire("key_b", workspace))
        _check_refused(limiter, "key_b", workspace, "per_process_concurrency", 2)
    _check_refused(limiter, "key_c", "wsp_4", "per_process_concurrency", 2)
    held.pop().release()
    held.append(limiter.acquire("key_c", "wsp_4"))
    assert limiter.count == 4


def test_a_call_may_bring_the_limits_of_its_tier() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=1))
    held = limiter.acquire("key_a", "wsp_1")
    _check_refused(limiter, "key_a", "wsp_1", "per_key_concurrency", 1)
    more = limiter.acquire("key_a", "wsp_1", limits=ConcurrencyLimits(per_key=2))
    assert limiter.count == 2
    held.release()
    more.release()


def test_a_slot_is_released_once_however_often_it_is_asked_for() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=1))
    first = limiter.acquire("key_a", "wsp_1")
    with first:
        first.release()
    second = limiter.acquire("key_a", "wsp_1")
    first.release()
    del first
    assert limiter.count == 1
    second.release()
    assert limiter.count == 0


def test_a_refused_caller_holds_nothing() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=1, per_workspace=1))
    with limiter.acquire("key_a", "wsp_1"):
        for _ in range(3):
            _check_refused(limiter, "key_b", "wsp_1", "per_workspace_concurrency", 1)
    assert limiter.count == 0
    limiter.acquire("key_b", "wsp_1").release()


def test_an_error_and_a_cancellation_release_the_slot() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=1))

    async def work(started: asyncio.Event) -> None:
        with limiter.acquire("key_a", "wsp_1"):
            started.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(work(started))
        await started.wait()
        assert limiter.count == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert limiter.count == 0
    with pytest.raises(ZeroDivisionError), limiter.acquire("key_a", "wsp_1"):
        raise ZeroDivisionError
    assert limiter.count == 0


def test_a_slot_that_nobody_released_ends_with_its_holder() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=1))

    def never_started(slot: object) -> object:
        yield slot

    body = never_started(limiter.acquire("key_a", "wsp_1"))
    assert limiter.count == 1
    del body
    gc.collect()
    assert limiter.count == 0


def test_threads_never_exceed_the_limit_and_leave_nothing() -> None:
    limiter = ConcurrencyLimiter(ConcurrencyLimits(per_key=5, per_workspace=8, per_process=10))
    seen: list[int] = []

    def work(seed: int) -> None:
        draws = random.Random(seed)
        for _ in range(2_000):
            try:
                slot = limiter.acquire(f"key_{draws.randrange(4)}", f"wsp_{draws.randrange(2)}")
            except RateLimited:
                continue
            seen.append(limiter.count)
            slot.release()
            slot.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) <= 10
    assert limiter.count == 0
    assert not limiter._of_key and not limiter._of_workspace


def test_the_refusal_survives_the_way_through_a_worker_process() -> None:
    error = pickle.loads(pickle.dumps(RateLimited("per_key_concurrency", 3, limit=8)))
    assert (error.scope, error.limit, error.retry_after_s) == ("per_key_concurrency", 8, 3)
    assert "3 s" in str(error)


def _check_refused(limiter: ConcurrencyLimiter, key: str, workspace: str, scope: str, limit: int) -> None:
    with pytest.raises(RateLimited) as refused:
        limiter.acquire(key, workspace)
    assert (refused.value.scope, refused.value.limit) == (scope, limit)
    assert refused.value.retry_after_s == 1
