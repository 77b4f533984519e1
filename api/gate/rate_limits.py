"""Rate limits: token buckets of requests and bytes, concurrent requests, and the four headers.

Spec §8.1, contract §1 (rate limits).
"""

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Any
from weakref import WeakValueDictionary

from fastapi import Depends, Request

from api.gate.endpoints import Endpoint
from recorder import clock
from recorder.access.concurrency import KEY_SCOPE, WORKSPACE_SCOPE, WorkCount
from recorder.access.keys import Caller
from recorder.access.rate_tiers import SIGNED_READS, STRANGERS, WEBHOOK_CALLS, Surface, Tier
from recorder.access.ratelimit.stores import Buckets, open_buckets
from recorder.access.ratelimit.token_buckets import Bucket, Cost, Draw, Group
from recorder.errors import RateLimited, RecorderError
from recorder.settings import Settings

Header = tuple[bytes, bytes]

_REMAINING = b"x-ratelimit-remaining"
_RESET = b"x-ratelimit-reset"
_PLANS = 20_000
#: Bytes of small bodies are charged together once they reach this sum: with bodies of 25 KB every tenth
#: request draws on the token buckets of bytes. A process may be ahead by this much for each key and surface.
_UNPAID_BYTES = 262_144
_WEBHOOK_ID = re.compile(r"whk_[0-9a-z]{26}")


class Admission:
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
    """Headers of one bucket: the constant ones, and the admission that was made last."""

    __slots__ = ("last", "limit", "per_second", "remaining", "reset", "scope", "size")

    def __init__(self, bucket: Bucket) -> None:
        self.size = float(bucket.size)
        self.per_second = bucket.per_second
        self.limit = (b"x-ratelimit-limit", b"%d" % bucket.size)
        self.scope = (b"x-scope", bucket.scope.encode())
        self.remaining = self.reset = -1
        self.last = Admission([], 0.0)

    def make(self, remaining: int, reset: int) -> list[Header]:
        """Return the four headers."""
        return [self.limit, (_REMAINING, b"%d" % remaining), (_RESET, b"%d" % reset), self.scope]


class _BucketPlan:
    """Token buckets that one kind of request draws on, and the headers of each."""

    __slots__ = ("group", "headers")

    def __init__(self, *buckets: Bucket) -> None:
        self.group = Group(*buckets)
        self.headers = [_BucketHeaders(bucket) for bucket in buckets]


class CallerPlan(_BucketPlan):
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
        requests: tuple[Bucket, Bucket],
        body_bytes: tuple[Bucket, Bucket],
        counts: tuple[WorkCount, WorkCount],
        tier: Tier,
    ) -> None:
        super().__init__(*requests)
        self.with_bytes = _BucketPlan(*requests, *body_bytes)
        self.with_bytes.headers[:2] = self.headers
        self.only_bytes = _BucketPlan(*body_bytes)
        self.unpaid = 0
        self.tier = tier
        self.of_key, self.of_workspace = counts
        self.most_of_key, self.most_of_workspace = tier.requests_per_key, tier.requests_per_workspace

    def begin(self) -> None:
        """Count a request as running, until `end`.

        Raises:
            RateLimited: if the key or the workspace has as many running requests as its tier admits.
        """
        if self.of_key.count >= self.most_of_key:
            raise RateLimited(KEY_SCOPE, 1, limit=self.most_of_key)
        if self.of_workspace.count >= self.most_of_workspace:
            raise RateLimited(WORKSPACE_SCOPE, 1, limit=self.most_of_workspace)
        self.of_key.count += 1
        self.of_workspace.count += 1

    def end(self) -> None:
        """Count the request no longer."""
        self.of_key.count -= 1
        self.of_workspace.count -= 1


class TokenCharge:
    """Charge for the bytes of a body of unknown length while it arrives."""

    __slots__ = ("_plan", "_rate_limiter", "_state")

    def __init__(self, rate_limiter: "RateLimiter", plan: CallerPlan, state: dict[str, Any]) -> None:
        self._rate_limiter = rate_limiter
        self._plan = plan
        self._state = state

    async def pay(self, count: int) -> None:
        """Take bytes from the token buckets of the key and the workspace.

        Raises:
            RateLimited: if one of them holds too few.
        """
        admission = await self._rate_limiter.pay_bytes(self._plan, count)
        if admission.error is not None:
            self._state["admission"] = admission
            raise admission.error

    def refund(self, count: int) -> None:
        """Credit bytes that were paid, but not sent, to the next body."""
        self._plan.unpaid -= count


class RateLimiter:
    """Limits of one process, or of all processes that share a Redis; used from the event loop."""

    def __init__(self, settings: Settings) -> None:
        #: The buckets of keys, workspaces and webhooks, and those of addresses.
        self.callers: Buckets
        self.addresses: Buckets
        self.callers, self.addresses = open_buckets(settings)
        self._plans: dict[tuple[str, str], CallerPlan] = {}
        self._address_plans: dict[tuple[str, str], _BucketPlan] = {}
        # A count lives as long as a plan or a running request holds it.
        self._counts: WeakValueDictionary[str, WorkCount] = WeakValueDictionary()

    async def admit(self, caller: Caller, endpoint: Endpoint | None, *, body_bytes: int = 0) -> Admission:
        """Draw on the token buckets of a key and its workspace.

        Args:
            caller: the key.
            endpoint: the requested endpoint.
            body_bytes: the announced length. Few bytes are charged with a later request, which saves a
                draw on the token buckets of bytes.
        """
        plan = self.plan_of(caller, endpoint)
        unpaid = plan.unpaid + body_bytes
        if unpaid < _UNPAID_BYTES:
            admission = await _draw_tokens(self.callers, plan)
            plan.unpaid += body_bytes
            return admission
        # Requests that arrive while Redis answers must not pay the same bytes again.
        plan.unpaid = 0
        admission = await _draw_tokens(self.callers, plan.with_bytes, cost=(1.0, 1.0, unpaid, unpaid))
        if admission.error is not None:
            plan.unpaid += unpaid - body_bytes
        return admission

    def admit_now(self, plan: CallerPlan, body_bytes: int) -> Admission | None:
        """Do the same without waiting, and count the request as running if it is admitted.

        Returns:
            None if only a store outside of this process can decide; then nothing is counted.

        Raises:
            RateLimited: if the key or its workspace has as many running requests as its tier admits.
        """
        key, workspace = plan.of_key, plan.of_workspace
        if key.count >= plan.most_of_key or workspace.count >= plan.most_of_workspace:
            plan.begin()  # raises
        unpaid = plan.unpaid + body_bytes
        if unpaid < _UNPAID_BYTES:
            draw = self.callers.draw_now(plan.group)
            if draw is None:
                return None
            plan.unpaid = unpaid
            admission = _make_admission(plan, draw)
        else:
            cost = (1.0, 1.0, unpaid, unpaid)
            draw = self.callers.draw_now(plan.with_bytes.group, cost=cost)
            if draw is None:
                return None
            if draw[0]:
                plan.unpaid = 0
            admission = _make_admission(plan.with_bytes, draw, cost)
        if admission.error is None:
            key.count += 1
            workspace.count += 1
        return admission

    async def pay_bytes(self, plan: CallerPlan, count: int) -> Admission:
        """Draw on the token buckets of bytes, for parts of a body whose length is unknown."""
        return await _draw_tokens(self.callers, plan.only_bytes, cost=(count, count))

    async def peek(self, caller: Caller, endpoint: Endpoint | None) -> Admission:
        """Return the state of the buckets of a key and its workspace, with nothing drawn."""
        return await _draw_tokens(self.callers, self.plan_of(caller, endpoint), cost=0)

    async def admit_address(self, address: str, *, is_signed: bool) -> Admission:
        """Draw on the bucket of a client address, for requests without a valid key or with a signed URL."""
        return await _draw_tokens(self.addresses, self._plan_of_address(address, is_signed=is_signed))

    async def peek_address(self, address: str) -> Admission:
        """Return the state of an address's bucket for requests without a valid key."""
        return await _draw_tokens(self.addresses, self._plan_of_address(address, is_signed=False), cost=0)

    async def admit_webhook(self, caller: Caller, webhook_id: str) -> Admission:
        """Draw on the bucket of a webhook; other workspaces have a bucket of another name."""
        name = f"recorder:limit:{caller.workspace_id}:{webhook_id}"
        return await _draw_tokens(self.callers, _BucketPlan(Bucket.of(WEBHOOK_CALLS, "per_webhook", name)))

    async def admit_surface(self, caller: Caller, surface: Surface) -> Admission:
        """Draw on the buckets of a surface that the requested endpoint does not name for every request."""
        return await _draw_tokens(self.callers, self._plan_of_surface(caller, surface))

    async def close(self) -> None:
        """Close the connections to the stores."""
        await self.callers.close()
        await self.addresses.close()

    def plan_of(self, caller: Caller, endpoint: Endpoint | None) -> CallerPlan:
        """Return the limits for a key's requests to an endpoint."""
        return self._plan_of_surface(caller, "other" if endpoint is None else endpoint.surface)

    def _plan_of_surface(self, caller: Caller, surface: Surface) -> CallerPlan:
        plan = self._plans.get((caller.key_id, surface))
        if plan is not None and plan.tier is caller.tier:
            return plan
        tier, rates = caller.tier, caller.tier.rates[surface]
        key, workspace = f"recorder:limit:{caller.key_id}", f"recorder:limit:{caller.workspace_id}"
        plan = CallerPlan(
            (
                Bucket.of(rates.per_key, "per_key", f"{key}:{surface}"),
                Bucket.of(rates.per_workspace, "per_workspace", f"{workspace}:{surface}"),
            ),
            (
                Bucket.of(tier.body_bytes.per_key, "per_key_bytes", f"{key}:bytes"),
                Bucket.of(tier.body_bytes.per_workspace, "per_workspace_bytes", f"{workspace}:bytes"),
            ),
            (self._count_of(caller.key_id), self._count_of(caller.workspace_id)),
            tier,
        )
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[caller.key_id, surface] = plan
        return plan

    def _count_of(self, name: str) -> WorkCount:
        count = self._counts.get(name)
        if count is None:
            count = self._counts[name] = WorkCount()
        return count

    def _plan_of_address(self, address: str, *, is_signed: bool) -> _BucketPlan:
        kind = "signed" if is_signed else "strangers"
        plan = self._address_plans.get((address, kind))
        if plan is not None:
            return plan
        rate = SIGNED_READS if is_signed else STRANGERS
        name = f"recorder:limit:{network_of(address)}:{kind}"
        if len(self._address_plans) >= _PLANS:
            self._address_plans.clear()
        plan = self._address_plans[address, kind] = _BucketPlan(Bucket.of(rate, "per_address", name))
        return plan


async def limit_webhook(request: Request, webhook_id: str) -> None:
    """Draw on a webhook's bucket, for routes that make the service call the webhook.

    Raises:
        RateLimited: if the webhook was called too often.
    """
    if not _WEBHOOK_ID.fullmatch(webhook_id):
        return  # no webhook has such an id; the route answers 404
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    _apply_smaller(request, await rate_limiter.admit_webhook(request.state.caller, webhook_id))


async def limit_live_replay(request: Request) -> None:
    """Draw on the buckets of live replays, for a request whose body asks for one.

    Raises:
        RateLimited: if the key or its workspace asked for too many.
    """
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    _apply_smaller(request, await rate_limiter.admit_surface(request.state.caller, "live_replays"))


def _apply_smaller(request: Request, admission: Admission) -> None:
    """Show the bucket with the smaller share in the answer's headers, and raise the error of a refusal."""
    if admission.error is not None or admission.share < request.state.admission.share:
        request.state.admission = admission
    if admission.error is not None:
        raise admission.error


#: For `dependencies=[…]` of a route with `webhook_id` in its path.
WebhookLimit: Any = Depends(limit_webhook)


def show_refusing_limit(state: dict[str, Any], error: RecorderError) -> None:
    """Make the answer's headers show the limit on concurrent work, if such a limit refused the request.

    Args:
        state: the request's.
        error: the error of the request.
    """
    if not isinstance(error, RateLimited) or error.limit is None or error.retry_after_s is None:
        return
    headers = [
        (b"x-ratelimit-limit", b"%d" % error.limit),
        (_REMAINING, b"0"),
        (_RESET, b"%d" % (ceil(clock.unix_seconds()) + error.retry_after_s)),
        (b"x-scope", error.scope.encode()),
    ]
    state["admission"] = Admission(headers, 0.0, error)


async def _draw_tokens(store: Buckets, plan: _BucketPlan, *, cost: Cost = 1.0) -> Admission:
    draw = store.draw_now(plan.group, cost=cost)
    if draw is None:
        draw = await store.draw(plan.group.buckets, cost=cost)
    return _make_admission(plan, draw, cost)


def _make_admission(plan: _BucketPlan, draw: Draw, cost: Cost = 1.0) -> Admission:
    is_granted, tokens = draw
    now = clock.unix_seconds()
    if not is_granted:
        return _make_refusal(plan, tokens, cost, now)
    headers, left = plan.headers[0], tokens[0]
    # The token buckets of bytes, which follow these two, are shown only when they refuse.
    if len(tokens) > 1:
        other_headers, other_left = plan.headers[1], tokens[1]
        # Compares the shares of the two without a division.
        if other_left * headers.size < left * other_headers.size:
            headers, left = other_headers, other_left
    remaining, reset = int(left), ceil(now + (headers.size - left) / headers.per_second)
    # Requests that come more slowly than the bucket fills share an admission for a second.
    if remaining != headers.remaining or reset != headers.reset:
        headers.remaining, headers.reset = remaining, reset
        headers.last = Admission(headers.make(remaining, reset), remaining / headers.size)
    return headers.last


def _make_refusal(plan: _BucketPlan, tokens: list[float], cost: Cost, now: float) -> Admission:
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
    return Admission(headers, 0.0, RateLimited(buckets[emptiest].scope, retry_after_s))


@lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """Return the network that one client has: its IPv4 address, or the first 64 bits of its IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> 64 << 64))
