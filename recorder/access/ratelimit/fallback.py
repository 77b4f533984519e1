"""What limits a request while the shared Redis is away. Decision 0012."""

from collections.abc import Sequence

from recorder.access.ratelimit.buckets import Bucket, Cost, Draw, Group
from recorder.access.ratelimit.connection import AWAY, Presence
from recorder.access.ratelimit.memory import MemoryBuckets
from recorder.access.ratelimit.redis_buckets import RedisBuckets


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
