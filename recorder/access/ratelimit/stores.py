"""What limits a request while the shared Redis is away. Decision 0012."""

from collections.abc import Sequence
from typing import Protocol

from recorder.access.ratelimit.memory_buckets import MemoryBuckets
from recorder.access.ratelimit.redis_buckets import AWAY, Presence, RedisBuckets
from recorder.access.ratelimit.stream_slots import StreamSlots
from recorder.access.ratelimit.token_buckets import Bucket, Cost, Draw, Group
from recorder.settings import Settings


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
    # Only a deployment that shares needs the package.
    from recorder.access.ratelimit.redis_buckets import Presence, RedisBuckets

    shared, presence = RedisBuckets(settings.redis_url), Presence("rate limits")
    return (
        SharedBuckets(shared, MemoryBuckets(), presence),
        SharedBuckets(shared, MemoryBuckets(), presence),
    )


def open_stream_slots(settings: Settings) -> StreamSlots:
    """The slots of open streams, shared where there is a Redis."""
    if settings.redis_url is None:
        return StreamSlots()
    from recorder.access.ratelimit.redis_slots import RedisSlots

    return StreamSlots(RedisSlots(settings.redis_url))
