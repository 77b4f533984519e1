"""Decisions of the limits: the token buckets of one kind of request, and the four headers of an answer.

Spec §8.1, contract §1 (rate limits).
"""

from math import ceil
from typing import Any

from recorder import clock
from recorder.access.concurrency import KEY_SCOPE, WORKSPACE_SCOPE, WorkCount
from recorder.access.rate_limits.bucket_stores import TokenBucketStore
from recorder.access.rate_limits.token_buckets import BucketGroup, Cost, TokenBucket, TokenGrant
from recorder.access.rate_tiers import Tier
from recorder.errors import NoFreeConnection, RateLimited, RecorderError

Header = tuple[bytes, bytes]

_REMAINING = b"x-ratelimit-remaining"
_RESET = b"x-ratelimit-reset"


class BucketDecision:
    """Decision of the limits on a request.

    Attributes:
        headers: `X-RateLimit-Limit`, `-Remaining`, `-Reset` and `X-Scope` of the answer; never changed,
            since requests share them.
        share: of its size that the bucket in the headers still holds.
        error: the refusal; None if the request is admitted.
    """

    __slots__ = ("error", "headers", "share")

    def __init__(self, headers: list[Header], share: float, error: RateLimited | None = None) -> None:
        self.headers = headers
        self.share = share
        self.error = error


class _BucketHeaders:
    """Headers of one bucket: the constant ones, and the decision that was made last."""

    __slots__ = ("last", "limit", "per_second", "remaining", "reset", "scope", "size")

    def __init__(self, bucket: TokenBucket) -> None:
        self.size = float(bucket.size)
        self.per_second = bucket.per_second
        self.limit = (b"x-ratelimit-limit", b"%d" % bucket.size)
        self.scope = (b"x-scope", bucket.scope.encode())
        self.remaining = self.reset = -1
        self.last = BucketDecision([], 0.0)

    def make(self, remaining: int, reset: int) -> list[Header]:
        """Return the four headers."""
        return [self.limit, (_REMAINING, b"%d" % remaining), (_RESET, b"%d" % reset), self.scope]


class BucketPlan:
    """Token buckets that one kind of request draws on, and the headers of each."""

    __slots__ = ("group", "headers")

    def __init__(self, *buckets: TokenBucket) -> None:
        self.group = BucketGroup(*buckets)
        self.headers = [_BucketHeaders(bucket) for bucket in buckets]


class CallerPlan(BucketPlan):
    """Limits of one key on one surface.

    Attributes:
        with_bytes: the same token buckets, then those of bytes.
        only_bytes: only the token buckets of bytes.
        unpaid: bytes of small bodies that were not charged yet; negative after an overpayment.
        tier: the tier that defines the sizes.
    """

    __slots__ = (
        "most_of_key",
        "most_of_workspace",
        "of_key",
        "of_workspace",
        "only_bytes",
        "tier",
        "unpaid",
        "with_bytes",
    )

    def __init__(
        self,
        requests: tuple[TokenBucket, TokenBucket],
        body_bytes: tuple[TokenBucket, TokenBucket],
        counts: tuple[WorkCount, WorkCount],
        tier: Tier,
    ) -> None:
        super().__init__(*requests)
        self.with_bytes = BucketPlan(*requests, *body_bytes)
        self.with_bytes.headers[:2] = self.headers
        self.only_bytes = BucketPlan(*body_bytes)
        self.unpaid = 0
        self.tier = tier
        self.of_key, self.of_workspace = counts
        self.most_of_key, self.most_of_workspace = tier.requests_per_key, tier.requests_per_workspace

    def begin_request(self) -> None:
        """Count a running request of the caller, until `end_request`.

        Raises:
            RateLimited: if the key or the workspace has as many running requests as its tier admits.
        """
        if self.of_key.count >= self.most_of_key:
            raise RateLimited(KEY_SCOPE, 1, limit=self.most_of_key)
        if self.of_workspace.count >= self.most_of_workspace:
            raise RateLimited(WORKSPACE_SCOPE, 1, limit=self.most_of_workspace)
        self.of_key.count += 1
        self.of_workspace.count += 1

    def end_request(self) -> None:
        """Stop counting a request that `begin_request` counted."""
        self.of_key.count -= 1
        self.of_workspace.count -= 1


def show_refusing_limit(state: dict[str, Any], error: RecorderError) -> None:
    """Make the answer's headers show the limit on concurrent work, if such a limit refused the request.

    Args:
        state: the request's.
        error: the error of the request.
    """
    if isinstance(error, RateLimited) and error.limit is not None:
        state["rate_decision"] = BucketDecision(make_limit_headers(error), 0.0, error)


def make_limit_headers(error: RateLimited | NoFreeConnection) -> list[Header]:
    """Return the four headers of an answer that a limit on something open or under way refused."""
    return [
        (b"x-ratelimit-limit", b"%d" % (error.limit or 0)),
        (_REMAINING, b"0"),
        (_RESET, b"%d" % (ceil(clock.unix_seconds()) + (error.retry_after_s or 0))),
        (b"x-scope", error.scope.encode()),
    ]


async def decide_by_token_buckets(
    store: TokenBucketStore, plan: BucketPlan, *, cost: Cost = 1.0
) -> BucketDecision:
    """Take tokens from the buckets of a plan; return the decision."""
    grant = store.take_tokens_without_waiting(plan.group, cost=cost)
    if grant is None:
        grant = await store.take_tokens(plan.group.buckets, cost=cost)
    return make_bucket_decision(plan, grant, cost)


def make_bucket_decision(plan: BucketPlan, grant: TokenGrant, cost: Cost = 1.0) -> BucketDecision:
    """Return the decision that a grant means, with the headers of the bucket that is emptiest."""
    is_granted, tokens = grant
    now = clock.unix_seconds()
    if not is_granted:
        return _make_bucket_refusal(plan, tokens, cost, now)
    headers, left = plan.headers[0], tokens[0]
    # The token buckets of bytes, which follow these two, are shown only when they refuse.
    if len(tokens) > 1:
        other_headers, other_left = plan.headers[1], tokens[1]
        # Compares the shares of the two without a division.
        if other_left * headers.size < left * other_headers.size:
            headers, left = other_headers, other_left
    remaining, reset = int(left), ceil(now + (headers.size - left) / headers.per_second)
    # Requests that come more slowly than the bucket fills share a decision for a second.
    if remaining != headers.remaining or reset != headers.reset:
        headers.remaining, headers.reset = remaining, reset
        headers.last = BucketDecision(headers.make(remaining, reset), remaining / headers.size)
    return headers.last


def _make_bucket_refusal(plan: BucketPlan, tokens: list[float], cost: Cost, now: float) -> BucketDecision:
    """Return the refusal by the token bucket with the longest wait."""
    buckets = plan.group.buckets
    costs = cost if isinstance(cost, tuple) else (cost,) * len(buckets)
    waits = [
        (each - left) / bucket.per_second for each, left, bucket in zip(costs, tokens, buckets, strict=True)
    ]
    wait_s = max(waits)
    emptiest = waits.index(wait_s)
    retry_after_s = max(1, ceil(wait_s))
    headers = plan.headers[emptiest].make(int(tokens[emptiest]), ceil(now) + retry_after_s)
    refusing = buckets[emptiest]
    error = RateLimited(refusing.scope, retry_after_s, description=refusing.description)
    return BucketDecision(headers, 0.0, error)
