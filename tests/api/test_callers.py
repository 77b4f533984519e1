"""CallerCache are remembered for seconds, and not beyond what is known of them. Contract §1 (keys)."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from api.gate.authentication import CallerCache, KeyGuessThrottle
from api.gate.rate_limiter import RateLimiter
from recorder import clock
from recorder.access.keys import Caller as Known
from recorder.access.keys import NewKey
from recorder.access.rate_tiers import STRANGERS
from recorder.errors import InvalidApiKey, RateLimited
from recorder.models.workspace import KeyRow
from tests.support.factories import Service


class HeldCallers(CallerCache):
    """Queries whose answer, once read, is delayed until a test releases it."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.runtime)
        self.has_read = threading.Event()
        self.may_answer = threading.Event()
        self.count = 0

    def _authenticate_key(self, key: str) -> Known:
        caller = super()._authenticate_key(key)
        self.count += 1
        self.has_read.set()
        assert self.may_answer.wait(10)
        return caller


@pytest.fixture
def key(service: Service) -> NewKey:
    """Return a key that no request has used yet."""
    return service.make_caller().key


def bearer(key: NewKey) -> bytes:
    """Return the header that carries the key."""
    return f"Bearer {key.key}".encode()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's work to its end."""
    asyncio.run(work)


@asynccontextmanager
async def looking_up(callers: HeldCallers, key: NewKey) -> AsyncIterator["asyncio.Task[Known]"]:
    """Yield a look-up that has read its answer, and gives it when the block ends."""
    task = asyncio.create_task(callers.look_up(bearer(key)))
    await asyncio.to_thread(callers.has_read.wait, 10)
    try:
        yield task
    finally:
        callers.may_answer.set()
        await task


def test_an_answer_read_before_a_revocation_is_not_kept(service: Service, key: NewKey) -> None:
    async def work() -> None:
        callers = HeldCallers(service)
        async with looking_up(callers, key):
            callers.forget_key(key.key_id)
        assert callers.get(bearer(key)) is None

    run(work())


def test_who_asks_after_a_change_does_not_get_the_answer_before_it(service: Service, key: NewKey) -> None:
    async def work() -> None:
        callers = HeldCallers(service)
        async with looking_up(callers, key):
            callers.forget_workspace(key.workspace_id)
            later = asyncio.create_task(callers.look_up(bearer(key)))
            await asyncio.sleep(0)
        await later
        assert callers.count == 2
        assert callers.get(bearer(key)) is not None

    run(work())


@pytest.mark.parametrize(
    ("expires_in_s", "later_s", "is_known"),
    [(None, 4.0, True), (None, 5.1, False), (4.5, 2.0, True), (2.5, 4.0, False), (3600.0, 4.0, True)],
)
def test_nobody_is_remembered_beyond_five_seconds_or_the_end_of_a_key(
    service: Service,
    key: NewKey,
    monkeypatch: pytest.MonkeyPatch,
    expires_in_s: float | None,
    later_s: float,
    is_known: bool,
) -> None:
    if expires_in_s is not None:
        with service.runtime.database.transaction(write=True) as db:
            row = db.get_one(KeyRow, key.key_id)
            row.expires_at = clock.now() + timedelta(seconds=expires_in_s)
            db.add(row)

    async def work() -> None:
        callers = CallerCache(service.runtime)
        began, now = time.monotonic(), time.monotonic
        await callers.look_up(bearer(key))
        # Time goes on as it does, but for a leap.
        leap_s = later_s - (now() - began)
        monkeypatch.setattr(time, "monotonic", lambda: now() + leap_s)
        assert (callers.get(bearer(key)) is not None) == is_known
        monkeypatch.undo()
        await asyncio.gather(*callers._look_ups.values())

    run(work())


def test_many_requests_at_once_cost_one_look_up(service: Service, key: NewKey) -> None:
    async def work() -> None:
        callers = HeldCallers(service)
        callers.may_answer.set()
        answers = await asyncio.gather(*(callers.look_up(bearer(key)) for _ in range(50)))
        assert {caller.key_id for caller in answers} == {key.key_id}
        assert callers.count == 1

    run(work())


def test_a_request_that_goes_away_takes_nobodys_answer_with_it(service: Service, key: NewKey) -> None:
    async def work() -> None:
        callers = HeldCallers(service)
        async with looking_up(callers, key) as first:
            second = asyncio.create_task(callers.look_up(bearer(key)))
            await asyncio.sleep(0)
            second.cancel()
        assert (await first).key_id == key.key_id

    run(work())


def test_only_so_many_are_remembered(service: Service) -> None:

    async def work() -> None:
        callers = CallerCache(service.runtime, size=2)
        keys = [service.make_caller().key for _ in range(3)]
        for each in keys:
            await callers.look_up(bearer(each))
        assert [callers.has_seen(bearer(each)) for each in keys] == [False, True, True]

    run(work())


def test_no_more_guesses_run_at_once_than_the_bucket_has_tokens(service: Service) -> None:
    async def work() -> None:
        guesses = KeyGuessThrottle(RateLimiter(service.runtime.settings))
        let_go = asyncio.Event()

        async def guess(key: bytes) -> None:
            async with guesses.reserve("192.0.2.1", key, {}):
                await let_go.wait()
                raise InvalidApiKey

        tasks = [asyncio.create_task(guess(b"%d" % number)) for number in range(STRANGERS.burst + 5)]
        while sum(task.done() for task in tasks) < 5:
            await asyncio.sleep(0)
        let_go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in answers].count(RateLimited) == 5
        assert [type(error) for error in answers].count(InvalidApiKey) == STRANGERS.burst

    run(work())


def test_requests_with_one_key_are_one_guess(service: Service) -> None:
    async def work() -> None:
        guesses = KeyGuessThrottle(RateLimiter(service.runtime.settings))
        let_go = asyncio.Event()

        async def call() -> None:
            async with guesses.reserve("192.0.2.1", b"one key", {}):
                await let_go.wait()

        tasks = [asyncio.create_task(call()) for _ in range(STRANGERS.burst * 3)]
        await asyncio.sleep(0)
        let_go.set()
        assert await asyncio.gather(*tasks) == [None] * len(tasks)

    run(work())
