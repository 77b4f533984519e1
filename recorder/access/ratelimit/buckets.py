"""Token buckets: the arithmetic alone. Spec §8.1, contract §1 (rate limits), decision 0012."""

from collections.abc import Sequence
from dataclasses import dataclass

from recorder.access.surfaces import Rate


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket as it was made: what it is called, what it holds, and how fast it fills."""

    name: str
    #: Whose it is, as `X-Scope` says it: `per_key`, `per_workspace`, `per_address`, `per_webhook`.
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

    __slots__ = ("at", "bucket", "tokens")

    def __init__(self, bucket: Bucket, at: float) -> None:
        self.bucket = bucket
        self.tokens = float(bucket.size)
        self.at = at


#: Whether tokens were granted, and what each bucket holds now, in the order in which they were asked.
Draw = tuple[bool, list[float]]


def draw(levels: Sequence[Level], *, now: float, cost: int = 1) -> Draw:
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
        bucket, left, passed = level.bucket, level.tokens, now - level.at
        if passed > 0.0:
            left += passed * bucket.per_second
            if left > bucket.size:
                left = float(bucket.size)
            level.tokens = left
            level.at = now
        elif passed < -bucket.fill_s:
            level.at = now
        if left < cost:
            is_granted = False
        tokens.append(left)
    if is_granted and cost:
        for n, level in enumerate(levels):
            level.tokens = tokens[n] = tokens[n] - cost
    return is_granted, tokens
