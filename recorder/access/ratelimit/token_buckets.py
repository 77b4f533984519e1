"""Token buckets: the arithmetic alone. Spec §8.1, contract §1 (rate limits), decision 0012."""

from collections.abc import Sequence
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
