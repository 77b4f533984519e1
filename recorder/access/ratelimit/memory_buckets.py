"""Buckets in the memory of one process. Contract §1 (rate limits)."""

import time
from collections.abc import Callable, Sequence

from recorder.access.ratelimit.token_buckets import Bucket, Cost, Draw, Group, Level, draw, draw_each

#: No bucket takes longer to fill (those per minute take this long).
LONGEST_FILL_S = 60.0


class MemoryBuckets:
    """The buckets of this process; used from its event loop, so no lock is needed.

    Buckets live in two generations. One that was not drawn on for a whole generation has been full for long,
    and is dropped with it. So memory follows those who call, without a sweep through all.
    """

    def __init__(self, *, capacity: int = 50_000, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without any.

        Args:
            capacity: buckets of one generation. With more than that a generation ends early, and whoever was
                quiet in it begins anew: a flood of callers costs accuracy, not memory.
            clock: seconds that need not be those of the calendar.
        """
        self._capacity = capacity
        self._clock = clock
        self._young: dict[str, Level] = {}
        self._old: dict[str, Level] = {}
        self._ends_at = clock() + LONGEST_FILL_S
        #: Another one as soon as a group may have to look for its levels anew.
        self._sign = object()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    async def draw(self, buckets: Sequence[Bucket], *, cost: Cost = 1.0) -> Draw:
        """Take tokens from all buckets, or from none where one of them has too few."""
        return self.draw_now(Group(*buckets), cost=cost)

    def draw_now(self, group: Group, *, cost: Cost = 1.0) -> Draw:
        """The same for buckets that are often asked together: it need not look for them each time.

        Args:
            group: keeps where its levels were found.
            cost: tokens to take from each, or so many from each in turn; 0 only looks.
        """
        now = self._clock()
        if now >= self._ends_at:
            self._end_generation(now)
        levels = group.levels if group.found_in is self._sign else self._find(group, now, cost)
        if isinstance(cost, tuple):
            return draw_each(levels, now=now, costs=cost)
        return draw(levels, now=now, cost=cost)

    async def close(self) -> None:
        """Nothing is to be given back."""

    def _find(self, group: Group, now: float, cost: Cost) -> list[Level]:
        sign, levels = self._sign, []
        for bucket in group.buckets:
            level = self._young.get(bucket.name) or self._recall(bucket, now, cost)
            if level.bucket != bucket:
                # Its workspace has another tier by now; requests that do not know it yet look here again too.
                level.belong_to(bucket)
                self._sign = object()
            levels.append(level)
        if cost:
            group.levels, group.found_in = levels, sign
        return levels

    def _recall(self, bucket: Bucket, now: float, cost: Cost) -> Level:
        level = self._old.get(bucket.name) or Level(bucket, now)
        if cost:  # whoever only looks leaves no trace
            if len(self._young) >= self._capacity:
                self._end_generation(now)
            self._old.pop(bucket.name, None)
            self._young[bucket.name] = level
        return level

    def _end_generation(self, now: float) -> None:
        self._old, self._young = self._young, {}
        self._ends_at = now + LONGEST_FILL_S
        self._sign = object()
