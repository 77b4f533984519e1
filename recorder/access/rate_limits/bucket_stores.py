"""Stores of token buckets: Redis shared by processes, memory while it does not answer. Decision 0012."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from recorder.access.rate_limits.token_buckets import (
    BucketGroup,
    Cost,
    InProcessBuckets,
    TokenBucket,
    TokenGrant,
)
from recorder.settings import Settings

log = logging.getLogger(__name__)

#: Longest wait of a request for Redis; after it the buckets of this process decide.
TIMEOUT_S = 0.5
_RETRY_S = 1.0
#: A Redis that was away must answer within this time. Decisions wait for those before them, so twice this
#: time is the longest that they take.
_BACK_S = TIMEOUT_S / 2
#: Errors of a Redis that does not answer.
AWAY = (RedisError, OSError, TimeoutError)


def connect_shared_redis(url: str, *, timeout_s: float = TIMEOUT_S) -> "Redis":
    """Return a client with short timeouts that repeats nothing: rate limits must not delay requests."""
    return Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )


class RedisAvailability:
    """State of Redis: while it does not answer, one call a second tries it. Each change is logged once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_away = False
        self._retry_at = 0.0

    @property
    def is_away(self) -> bool:
        """True if Redis did not answer the last call."""
        return self._is_away

    def may_call(self) -> bool:
        """Return whether the next call should go to Redis."""
        if not self._is_away:
            return True
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_S
        return True

    def note_answer(self) -> None:
        """Record that Redis answered."""
        if self._is_away:
            self._is_away = False
            log.warning("Redis answers again; all processes share %s", self._what)

    def note_failure(self, error: BaseException) -> None:
        """Record that Redis did not answer."""
        self._retry_at = time.monotonic() + _RETRY_S
        if not self._is_away:
            self._is_away = True
            # The class alone: the message of an error may hold the address with its password.
            log.error(
                "Redis does not answer (%s); each process has its own %s", type(error).__name__, self._what
            )


_CLOCK = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""

# KEYS: the buckets. ARGV: cost, size and tokens per second of each bucket.
ARITHMETIC = """
local granted = 1
local tokens, at, answer = {}, {}, {}
for i, key in ipairs(KEYS) do
  local size, per_second = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local kept = redis.call('HMGET', key, 'tokens', 'at')
  tokens[i], at[i] = tonumber(kept[1] or size), tonumber(kept[2] or now)
  local passed = now - at[i]
  if passed > 0 then
    tokens[i] = math.min(size, tokens[i] + passed * per_second)
    at[i] = now
  elseif passed < -size / per_second then
    at[i] = now
  end
  if tokens[i] < tonumber(ARGV[3 * i - 2]) then granted = 0 end
end
for i, key in ipairs(KEYS) do
  local left = string.format('%.17g', tokens[i] - granted * ARGV[3 * i - 2])
  redis.call('HSET', key, 'tokens', left, 'at', string.format('%.17g', at[i]))
  redis.call('PEXPIRE', key, math.ceil(ARGV[3 * i - 1] / ARGV[3 * i] * 1000) + 1000)
  answer[i + 1] = left
end
answer[1] = granted
return answer
"""

_SCRIPT = _CLOCK + ARITHMETIC
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
# Most decisions of one round trip: those that arrived while the one before was under way.
_PIPELINE = 256


class RedisBuckets:
    """Token buckets of all processes that share a Redis; used from one event loop.

    Decisions that wait at the same time share a round trip: that is a third of the work of one for each.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._redis = connect_shared_redis(url, timeout_s=timeout_s)
        self._waiting: list[tuple[list[Any], asyncio.Future[TokenGrant]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def take_tokens(self, buckets: Sequence[TokenBucket], *, cost: Cost = 1.0) -> TokenGrant:
        """Take tokens from all buckets, or from none where one of them has too few.

        Raises:
            RedisError: if Redis refuses.
            OSError: if Redis does not answer (a timeout is one).
        """
        keys = [bucket.name for bucket in buckets]
        costs = cost if isinstance(cost, tuple) else (cost,) * len(buckets)
        numbers = [
            number
            for bucket, each in zip(buckets, costs, strict=True)
            for number in (each, bucket.size, bucket.per_second)
        ]
        answer: asyncio.Future[TokenGrant] = asyncio.get_running_loop().create_future()
        self._waiting.append(([len(keys), *keys, *numbers], answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return await answer

    async def close(self) -> None:
        """Close the connections."""
        if self._sender is not None:
            await self._sender
        await self._redis.aclose()

    async def _send(self) -> None:
        """Send waiting decisions to Redis batch by batch, and hand each caller its answer."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_PIPELINE], self._waiting[_PIPELINE:]
                try:
                    answers = await self._send_batch([arguments for arguments, _ in batch])
                except Exception as error:
                    # Decisions that wait would fail after the same timeout.
                    batch, self._waiting = batch + self._waiting, []
                    answers = [error] * len(batch)
                for (_, answer), decision in zip(batch, answers, strict=True):
                    _resolve_token_grant(answer, decision)
        finally:
            self._sender = None

    async def _send_batch(self, calls: list[list[Any]]) -> list[Any]:
        """Run the script for these calls with one pipeline, and load it first where Redis lacks it."""
        answers = await self._execute_script("EVALSHA", _SHA, calls)
        missing = [n for n, decision in enumerate(answers) if isinstance(decision, NoScriptError)]
        if missing:  # they were not run, so they can be run now
            again = await self._execute_script("EVAL", _SCRIPT, [calls[n] for n in missing])
            for n, decision in zip(missing, again, strict=True):
                answers[n] = decision
        return answers

    async def _execute_script(self, command: str, script: str, calls: list[list[Any]]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for arguments in calls:
            pipeline.execute_command(command, script, *arguments)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers


def _resolve_token_grant(answer: "asyncio.Future[TokenGrant]", decision: Any) -> None:
    if answer.done():  # the request was cancelled
        return
    if isinstance(decision, Exception):
        answer.set_exception(decision)
    else:
        answer.set_result((decision[0] == 1, [float(tokens) for tokens in decision[1:]]))


class SharedTokenBucketStore:
    """Token buckets in Redis, or of this process while Redis does not answer.

    A missing Redis neither refuses requests nor lifts the limits: each process then grants as much as all
    processes should together.
    """

    def __init__(
        self, shared: RedisBuckets, local: InProcessBuckets, availability: RedisAvailability
    ) -> None:
        self._shared = shared
        self._local = local
        self._availability = availability
        self._trial: asyncio.Task[None] | None = None

    async def take_tokens(self, buckets: Sequence[TokenBucket], *, cost: Cost = 1.0) -> TokenGrant:
        """Take tokens from all buckets, or from none where one of them has too few."""
        if not self._availability.is_away:
            try:
                # Also for a Redis that answers each call slowly: a decision waits for those before it.
                async with asyncio.timeout(TIMEOUT_S):
                    return await self._shared.take_tokens(buckets, cost=cost)
            except AWAY as error:
                self._availability.note_failure(error)
        elif self._availability.may_call():
            # No request waits for a Redis that was away.
            self._trial = asyncio.create_task(self._try_redis(buckets))
        return await self._local.take_tokens(buckets, cost=cost)

    async def _try_redis(self, buckets: Sequence[TokenBucket]) -> None:
        """Check whether Redis answers again, and soon enough; nothing is drawn."""
        try:
            async with asyncio.timeout(_BACK_S):
                await self._shared.take_tokens(buckets, cost=0)
        except AWAY as error:
            self._availability.note_failure(error)
        else:
            self._availability.note_answer()

    def take_tokens_without_waiting(self, group: BucketGroup, *, cost: Cost = 1.0) -> TokenGrant | None:
        """Take nothing and return None: every decision of this store needs a round trip to Redis."""
        return None

    async def close(self) -> None:
        """Close the connections."""
        if self._trial is not None:
            await self._trial
        await self._shared.close()


class TokenBucketStore(Protocol):
    """Store of token buckets."""

    async def take_tokens(self, buckets: Sequence[TokenBucket], *, cost: Cost = 1.0) -> TokenGrant:
        """Take tokens from all buckets, or from none where one has too few; 0 only reads the levels."""

    def take_tokens_without_waiting(self, group: BucketGroup, *, cost: Cost = 1.0) -> TokenGrant | None:
        """Take tokens without waiting; return None where the decision needs a round trip."""

    async def close(self) -> None:
        """Close the connections."""


def open_token_buckets(settings: Settings) -> tuple[TokenBucketStore, TokenBucketStore]:
    """Return the buckets of callers and those of client addresses, shared where the settings name a Redis.

    They are apart in memory, so that a flood of addresses does not push out the buckets of callers.
    """
    if settings.redis_url is None:
        return InProcessBuckets(), InProcessBuckets()
    shared, availability = RedisBuckets(settings.redis_url), RedisAvailability("rate limits")
    return (
        SharedTokenBucketStore(shared, InProcessBuckets(), availability),
        SharedTokenBucketStore(shared, InProcessBuckets(), availability),
    )
