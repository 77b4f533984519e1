"""The way to the Redis that processes share, and what is made of its silence. Contract §1 (rate limits)."""

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

from recorder.access.ratelimit.token_buckets import Bucket, Cost, Draw, Group, MemoryBuckets
from recorder.settings import Settings

log = logging.getLogger(__name__)

#: A request waits for its limits no longer than this; then it goes by what this process knows.
TIMEOUT_S = 0.5
_RETRY_S = 1.0
#: What says that Redis is away, or not able to answer.
AWAY = (RedisError, OSError, TimeoutError)


def connect(url: str, *, timeout_s: float = TIMEOUT_S) -> "Redis":
    """A client that gives up soon, and repeats nothing by itself."""
    return Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )


class Presence:
    """Whether Redis answers: while it does not, one call in a second tries it. Both turns are logged once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_away = False
        self._retry_at = 0.0

    def may_ask(self) -> bool:
        """Whether the next call should go to Redis."""
        if not self._is_away:
            return True
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_S
        return True

    def answered(self) -> None:
        """Note that it is there."""
        if self._is_away:
            self._is_away = False
            log.warning("Redis answers again; all processes share %s", self._what)

    def failed(self, error: BaseException) -> None:
        """Note that it is away."""
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
# So many decisions go to Redis in one write: what came together while it was busy with those before.
_PIPELINE = 256


class RedisBuckets:
    """The buckets of all processes that share a Redis; used from one event loop.

    Decisions that wait at the same time share a round trip: that is a third of the work of one for each.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._redis = connect(url, timeout_s=timeout_s)
        self._waiting: list[tuple[list[Any], asyncio.Future[Draw]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def draw(self, buckets: Sequence[Bucket], *, cost: Cost = 1.0) -> Draw:
        """Take tokens from all buckets, or from none where one of them has too few.

        Raises:
            RedisError: if Redis refuses.
            OSError: if it does not answer (a timeout is one).
        """
        keys = [bucket.name for bucket in buckets]
        costs = cost if isinstance(cost, tuple) else (cost,) * len(buckets)
        numbers = [
            number
            for bucket, each in zip(buckets, costs, strict=True)
            for number in (each, bucket.size, bucket.per_second)
        ]
        answer: asyncio.Future[Draw] = asyncio.get_running_loop().create_future()
        self._waiting.append(([len(keys), *keys, *numbers], answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return await answer

    async def close(self) -> None:
        """Give the connections back."""
        if self._sender is not None:
            await self._sender
        await self._redis.aclose()

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_PIPELINE], self._waiting[_PIPELINE:]
                try:
                    found = await self._decide([arguments for arguments, _ in batch])
                except Exception as error:
                    # Those behind would wait as long for the same.
                    batch, self._waiting = batch + self._waiting, []
                    found = [error] * len(batch)
                for (_, answer), one in zip(batch, found, strict=True):
                    _tell(answer, one)
        finally:
            self._sender = None

    async def _decide(self, calls: list[list[Any]]) -> list[Any]:
        found = await self._call("EVALSHA", _SHA, calls)
        missing = [n for n, one in enumerate(found) if isinstance(one, NoScriptError)]
        if missing:  # they were not run, so they can be run now
            again = await self._call("EVAL", _SCRIPT, [calls[n] for n in missing])
            for n, one in zip(missing, again, strict=True):
                found[n] = one
        return found

    async def _call(self, command: str, script: str, calls: list[list[Any]]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for arguments in calls:
            pipeline.execute_command(command, script, *arguments)
        found: list[Any] = await pipeline.execute(raise_on_error=False)
        return found


def _tell(answer: "asyncio.Future[Draw]", found: Any) -> None:
    if answer.done():  # whoever asked has gone
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result((found[0] == 1, [float(tokens) for tokens in found[1:]]))


class SharedBuckets:
    """The buckets in Redis; while it does not answer, those of this process alone.

    So a request is never refused, nor let through unlimited, because Redis is away: each process then grants
    as much as all of them should together.
    """

    def __init__(self, shared: RedisBuckets, own: MemoryBuckets, presence: Presence) -> None:
        self._shared = shared
        self._own = own
        self._presence = presence

    async def draw(self, buckets: Sequence[Bucket], *, cost: Cost = 1.0) -> Draw:
        """Take tokens from all buckets, or from none where one of them has too few."""
        if not self._presence.may_ask():
            return await self._own.draw(buckets, cost=cost)
        try:
            found = await self._shared.draw(buckets, cost=cost)
        except AWAY as error:
            self._presence.failed(error)
            return await self._own.draw(buckets, cost=cost)
        self._presence.answered()
        return found

    def draw_now(self, group: Group, *, cost: Cost = 1.0) -> Draw | None:
        """Nothing: whether Redis answers is known only after waiting for it."""
        return None

    async def close(self) -> None:
        """Give the connections back."""
        await self._shared.close()


class Buckets(Protocol):
    """A place where buckets are kept."""

    async def draw(self, buckets: Sequence[Bucket], *, cost: Cost = 1.0) -> Draw:
        """Take tokens from all buckets, or from none where one has too few; a cost of 0 only looks."""

    def draw_now(self, group: Group, *, cost: Cost = 1.0) -> Draw | None:
        """The same at once; None where others must be asked, and waited for."""

    async def close(self) -> None:
        """Give the connections back."""


def open_buckets(settings: Settings) -> tuple[Buckets, Buckets]:
    """Buckets of callers and, apart from them in memory, of addresses; shared where there is a Redis.

    So a flood of addresses costs no caller the memory of its bucket.
    """
    if settings.redis_url is None:
        return MemoryBuckets(), MemoryBuckets()
    shared, presence = RedisBuckets(settings.redis_url), Presence("rate limits")
    return (
        SharedBuckets(shared, MemoryBuckets(), presence),
        SharedBuckets(shared, MemoryBuckets(), presence),
    )
