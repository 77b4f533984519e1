"""Token buckets: the arithmetic alone. Spec §8.1, contract §1 (rate limits), decision 0012."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recorder.access.rate_tiers import Rate


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket as it was made: what it is called, what it holds, and how fast it fills."""

    name: str
    #: Whose it is, as `X-Scope` says it: `per_key`, `per_workspace`, `per_address`, `per_webhook`,
    #: `per_key_bytes`, `per_workspace_bytes`.
    scope: str
    size: int
    per_second: float

    @classmethod
    def of(cls, rate: Rate, scope: str, name: str) -> "Bucket":
        """The bucket of a rate."""
        return cls(name, scope, rate.burst, rate.per_second)

    @property
    def fill_s(self) -> float:
        """Seconds in which it fills from empty: one that rested as long is as good as new."""
        return self.size / self.per_second


class Level:
    """How full a bucket was, and when."""

    # Size and speed stand here too, as what they are reckoned with: every request reads them.
    __slots__ = ("at", "bucket", "per_second", "size", "tokens")

    def __init__(self, bucket: Bucket, at: float) -> None:
        self.belong_to(bucket)
        self.tokens = self.size
        self.at = at

    def belong_to(self, bucket: Bucket) -> None:
        """Be the level of this bucket, perhaps of another size than the last, from now on."""
        self.bucket = bucket
        self.size = float(bucket.size)
        self.per_second = bucket.per_second


class Group:
    """Buckets that are drawn on together, again and again; a store notes here where it found their levels."""

    __slots__ = ("buckets", "found_in", "levels")

    def __init__(self, *buckets: Bucket) -> None:
        self.buckets = buckets
        self.levels: Sequence[Level] = ()
        #: What the store gave for a sign that the levels are still these.
        self.found_in: object = None


#: Tokens to take: the same from each bucket, or so many from each in turn.
Cost = float | tuple[float, ...]
#: Whether tokens were granted, and what each bucket holds now, in the order in which they were asked.
Draw = tuple[bool, list[float]]


def draw(levels: Sequence[Level], *, now: float, cost: float = 1.0) -> Draw:
    """Take tokens from all buckets, or from none where one of them has too few.

    A clock that went back gives nothing twice: the level waits until the clock has caught up. Where it went
    back by more than the time in which the bucket fills, waiting would be worse than a bucketful too many,
    so the level goes on from there.

    Args:
        levels: of the buckets; they are changed.
        now: seconds of any clock, the same for every call.
        cost: tokens to take from each; 0 only looks.
    """
    is_granted, tokens = True, []
    for level in levels:
        left, passed = level.tokens, now - level.at
        if passed > 0.0:
            left += passed * level.per_second
            if left > level.size:
                left = level.size
            level.at = now
        elif passed < -level.bucket.fill_s:
            level.at = now
        # Nearly all are granted: each level pays at once, and is paid back where another cannot.
        left -= cost
        if left < 0.0:
            is_granted = False
        level.tokens = left
        tokens.append(left)
    if not is_granted:
        for n, level in enumerate(levels):
            level.tokens = tokens[n] = tokens[n] + cost
    return is_granted, tokens


def draw_each(levels: Sequence[Level], *, now: float, costs: Sequence[float]) -> Draw:
    """Take other tokens from each bucket, or from none where one of them has too few.

    Args:
        levels: of the token buckets; they are changed.
        now: as in `draw`.
        costs: tokens to take from each, in the order of the levels.
    """
    _, tokens = draw(levels, now=now, cost=0.0)
    for left, cost in zip(tokens, costs, strict=True):
        if left < cost:
            return False, tokens
    for n, level in enumerate(levels):
        level.tokens = tokens[n] = tokens[n] - costs[n]
    return True, tokens


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
