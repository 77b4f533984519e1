"""Where buckets and slots are kept, as the settings say: in this process, or in a Redis that many share."""

from collections.abc import Sequence
from typing import Protocol

from recorder.access.ratelimit.buckets import Bucket, Cost, Draw, Group
from recorder.access.ratelimit.memory import MemoryBuckets
from recorder.access.ratelimit.slots import StreamSlots
from recorder.settings import Settings


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
    from recorder.access.ratelimit.connection import Presence
    from recorder.access.ratelimit.fallback import SharedBuckets
    from recorder.access.ratelimit.redis_buckets import RedisBuckets

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
