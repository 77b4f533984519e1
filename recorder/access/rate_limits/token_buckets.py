"""Token buckets, and their levels in the memory of one process. Spec §8.1, contract §1, decision 0012."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recorder.access.rate_tiers import Rate


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Token bucket: name, size and refill rate."""

    name: str
    #: Scope that `X-Scope` shows: `per_key`, `per_workspace`, `per_address`, `per_webhook`,
    #: `per_key_bytes`, `per_workspace_bytes`.
    scope: str
    size: int
    per_second: float
    #: What is limited, and how: "`exports` for this key (5 a minute)"; for the sentence of a refusal.
    description: str = ""

    @classmethod
    def of(cls, rate: Rate, scope: str, name: str, *, description: str = "") -> "TokenBucket":
        """Return the bucket of a rate, which is appended to the description."""
        window = "second" if rate.window_s == 1 else "minute"
        shown = description and f"{description} ({rate.limit:,} a {window})"
        return cls(name, scope, rate.burst, rate.per_second, shown)

    @property
    def fill_s(self) -> float:
        """Seconds in which it fills from empty; after so long without a draw it is full."""
        return self.size / self.per_second


class BucketLevel:
    """Level of a token bucket at a moment."""

    # Copies of size and refill rate as floats: every request reads them.
    __slots__ = ("at", "bucket", "per_second", "size", "tokens")

    def __init__(self, bucket: TokenBucket, at: float) -> None:
        self.belong_to(bucket)
        self.tokens = self.size
        self.at = at

    def belong_to(self, bucket: TokenBucket) -> None:
        """Make this the level of another bucket, perhaps of another size."""
        self.bucket = bucket
        self.size = float(bucket.size)
        self.per_second = bucket.per_second


class BucketGroup:
    """Token buckets that are drawn on together repeatedly; a store caches their levels here."""

    __slots__ = ("buckets", "levels", "validity")

    def __init__(self, *buckets: TokenBucket) -> None:
        self.buckets = buckets
        self.levels: Sequence[BucketLevel] = ()
        #: Object that the store replaces when the cached levels become invalid.
        self.validity: object = None


#: Tokens to take: the same from each bucket, or so many from each in turn.
Cost = float | tuple[float, ...]
#: Whether tokens were granted, and the tokens left in each bucket, in the order of the buckets.
TokenGrant = tuple[bool, list[float]]


def take_tokens(levels: Sequence[BucketLevel], *, now: float, cost: float = 1.0) -> TokenGrant:
    """Take tokens from all buckets, or from none where one of them has too few.

    A clock that went back gives nothing twice: the level waits until the clock has caught up. Where it went
    back by more than the time in which the bucket fills, waiting would be worse than a bucketful too many,
    so the level goes on from there.

    Args:
        levels: of the buckets; they are changed.
        now: seconds of any clock, the same for every call.
        cost: tokens to take from each; 0 only reads the levels.
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


def take_tokens_by_cost(levels: Sequence[BucketLevel], *, now: float, costs: Sequence[float]) -> TokenGrant:
    """Take different numbers of tokens from the buckets, or from none where one of them has too few.

    Args:
        levels: of the token buckets; they are changed.
        now: as in `take_tokens`.
        costs: tokens to take from each, in the order of the levels.
    """
    _, tokens = take_tokens(levels, now=now, cost=0.0)
    for left, cost in zip(tokens, costs, strict=True):
        if left < cost:
            return False, tokens
    for n, level in enumerate(levels):
        level.tokens = tokens[n] = tokens[n] - costs[n]
    return True, tokens


#: No bucket takes longer to fill (those per minute take this long).
LONGEST_FILL_S = 60.0


class InProcessBuckets:
    """Token buckets of this process; used from its event loop, so no lock is needed.

    Buckets are kept in two generations. A bucket that was not drawn on for a whole generation is full and is
    dropped with it, so memory follows the active callers without a sweep through all buckets.
    """

    def __init__(self, *, capacity: int = 50_000, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a store without buckets.

        Args:
            capacity: buckets of one generation. With more than that a generation ends early, and the buckets
                of idle callers are full again: a flood of callers costs accuracy, not memory.
            clock: seconds that need not be those of the calendar.
        """
        self._capacity = capacity
        self._clock = clock
        self._young: dict[str, BucketLevel] = {}
        self._old: dict[str, BucketLevel] = {}
        self._ends_at = clock() + LONGEST_FILL_S
        #: Replaced when groups must find their levels again.
        self._validity = object()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    async def take_tokens(self, buckets: Sequence[TokenBucket], *, cost: Cost = 1.0) -> TokenGrant:
        """Take tokens from all buckets, or from none where one of them has too few."""
        return self.take_tokens_without_waiting(BucketGroup(*buckets), cost=cost)

    def take_tokens_without_waiting(self, group: BucketGroup, *, cost: Cost = 1.0) -> TokenGrant:
        """Take tokens from the buckets of a group, whose levels are cached.

        Args:
            group: buckets that are drawn on together.
            cost: tokens to take from each, or a number for each in turn; 0 only reads the levels.
        """
        now = self._clock()
        if now >= self._ends_at:
            self._end_generation(now)
        levels = group.levels if group.validity is self._validity else self._find_levels(group, now, cost)
        if isinstance(cost, tuple):
            return take_tokens_by_cost(levels, now=now, costs=cost)
        return take_tokens(levels, now=now, cost=cost)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _find_levels(self, group: BucketGroup, now: float, cost: Cost) -> list[BucketLevel]:
        """Return the fill levels of a group's token buckets, of those with a new rate adapted to it."""
        validity, levels = self._validity, []
        for bucket in group.buckets:
            level = self._young.get(bucket.name) or self._find_level(bucket, now, cost)
            if level.bucket != bucket:
                # Its workspace has another tier now; groups with levels of the old one must find them again.
                level.belong_to(bucket)
                self._validity = object()
            levels.append(level)
        if cost:
            group.levels, group.validity = levels, validity
        return levels

    def _find_level(self, bucket: TokenBucket, now: float, cost: Cost) -> BucketLevel:
        """Return the fill level of a token bucket, a full one if it was not used lately."""
        level = self._old.get(bucket.name) or BucketLevel(bucket, now)
        if cost:  # reading creates no bucket
            if len(self._young) >= self._capacity:
                self._end_generation(now)
            self._old.pop(bucket.name, None)
            self._young[bucket.name] = level
        return level

    def _end_generation(self, now: float) -> None:
        """Forget token buckets that were not used for so long that they are full."""
        self._old, self._young = self._young, {}
        self._ends_at = now + LONGEST_FILL_S
        self._validity = object()
