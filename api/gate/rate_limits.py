"""Limits of requests: token buckets of requests and bytes, requests under way, and the four headers.

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
#: Bytes of small bodies are charged by so many at once, at the first request that reaches them: of requests
#: of 25 KB every tenth asks the token buckets of bytes. A process may be ahead by so much for each key and
#: surface.
_UNPAID_BYTES = 262_144
_WEBHOOK_ID = re.compile(r"whk_[0-9a-z]{26}")


class Admission:
    """What the limits say to a request.

    Attributes:
        headers: `X-RateLimit-Limit`, `-Remaining`, `-Reset` and `X-Scope`, for the response whatever it is;
            never changed, as requests share them.
        share: of its size that the bucket in the headers still holds.
        error: why the request goes no further; None where it may.
    """

    __slots__ = ("error", "headers", "share")

    def __init__(self, headers: list[Header], share: float, error: RateLimited | None = None) -> None:
        self.headers = headers
        self.share = share
        self.error = error


class _Speaker:
    """What the headers say of one bucket: always, and as they said it last."""

    __slots__ = ("limit", "per_second", "remaining", "reset", "said", "scope", "size")

    def __init__(self, bucket: Bucket) -> None:
        self.size = float(bucket.size)
        self.per_second = bucket.per_second
        self.limit = (b"x-ratelimit-limit", b"%d" % bucket.size)
        self.scope = (b"x-scope", bucket.scope.encode())
        self.remaining = self.reset = -1
        self.said = Admission([], 0.0)

    def headers(self, remaining: int, reset: int) -> list[Header]:
        """The four of them."""
        return [self.limit, (_REMAINING, b"%d" % remaining), (_RESET, b"%d" % reset), self.scope]


class _Plan:
    """Token buckets that one kind of request draws on, and the headers for each."""

    __slots__ = ("group", "speakers")

    def __init__(self, *buckets: Bucket) -> None:
        self.group = Group(*buckets)
        self.speakers = [_Speaker(bucket) for bucket in buckets]


class CallerPlan(_Plan):
    """Limits of one key on one surface.

    Attributes:
        with_bytes: the same token buckets, then those of bytes.
        only_bytes: those of bytes alone.
        unpaid: bytes of small bodies that no bucket was charged for yet; negative where too much was paid.
        tier: the one that the sizes are taken from.
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
        self.with_bytes = _Plan(*requests, *body_bytes)
        self.with_bytes.speakers[:2] = self.speakers
        self.only_bytes = _Plan(*body_bytes)
        self.unpaid = 0
        self.tier = tier
        self.of_key, self.of_workspace = counts
        self.most_of_key, self.most_of_workspace = tier.requests_per_key, tier.requests_per_workspace

    def begin(self) -> None:
        """Count a request as under way, until `end`.

        Raises:
            RateLimited: if the key or the workspace has as many under way as its tier admits.
        """
        if self.of_key.count >= self.most_of_key:
            raise RateLimited(KEY_SCOPE, 1, limit=self.most_of_key)
        if self.of_workspace.count >= self.most_of_workspace:
            raise RateLimited(WORKSPACE_SCOPE, 1, limit=self.most_of_workspace)
        self.of_key.count += 1
        self.of_workspace.count += 1

    def end(self) -> None:
        """Count it no longer."""
        self.of_key.count -= 1
        self.of_workspace.count -= 1


class Charge:
    """Bytes that a body of unknown length costs while it arrives."""

    __slots__ = ("_limiting", "_plan", "_state")

    def __init__(self, limiting: "Limiting", plan: CallerPlan, state: dict[str, Any]) -> None:
        self._limiting = limiting
        self._plan = plan
        self._state = state

    async def pay(self, count: int) -> None:
        """Take bytes from the token buckets of the key and the workspace.

        Raises:
            RateLimited: if one of them holds too few.
        """
        admission = await self._limiting.pay_bytes(self._plan, count)
        if admission.error is not None:
            self._state["admission"] = admission
            raise admission.error

    def give_back(self, count: int) -> None:
        """Count bytes that were paid and did not come towards the next body."""
        self._plan.unpaid -= count


class Limiting:
    """The limits of one process, or of all that share a Redis; used from the event loop."""

    def __init__(self, settings: Settings) -> None:
        #: Where the buckets of keys, workspaces and webhooks are, and where those of addresses.
        self.callers: Buckets
        self.addresses: Buckets
        self.callers, self.addresses = open_buckets(settings)
        self._plans: dict[tuple[str, str], CallerPlan] = {}
        self._address_plans: dict[tuple[str, str], _Plan] = {}
        # A count lives as long as a plan or a request under way holds it.
        self._counts: WeakValueDictionary[str, WorkCount] = WeakValueDictionary()

    async def admit(self, caller: Caller, endpoint: Endpoint | None, *, body_bytes: int = 0) -> Admission:
        """Draw on the token buckets of a key and its workspace.

        Args:
            caller: the key.
            endpoint: what it asks for.
            body_bytes: of the request, as it is announced. They are charged together with the request, or
                with a later one where they are few: then the token buckets of bytes need not be asked.
        """
        plan = self.plan_of(caller, endpoint)
        unpaid = plan.unpaid + body_bytes
        if unpaid < _UNPAID_BYTES:
            admission = await _draw(self.callers, plan)
            plan.unpaid += body_bytes
            return admission
        # Requests that come while Redis is asked must not pay the same bytes again.
        plan.unpaid = 0
        admission = await _draw(self.callers, plan.with_bytes, cost=(1.0, 1.0, unpaid, unpaid))
        if admission.error is not None:
            plan.unpaid += unpaid - body_bytes
        return admission

    def admit_now(self, plan: CallerPlan, body_bytes: int) -> Admission | None:
        """Do the same at once, and count the request as under way where it is admitted.

        Returns:
            None where other processes must be asked, and waited for; then nothing is counted.

        Raises:
            RateLimited: if the key or its workspace has as many requests under way as it may.
        """
        key, workspace = plan.of_key, plan.of_workspace
        if key.count >= plan.most_of_key or workspace.count >= plan.most_of_workspace:
            plan.begin()  # raises
        unpaid = plan.unpaid + body_bytes
        if unpaid < _UNPAID_BYTES:
            found = self.callers.draw_now(plan.group)
            if found is None:
                return None
            plan.unpaid = unpaid
            admission = _admission(plan, found)
        else:
            cost = (1.0, 1.0, unpaid, unpaid)
            found = self.callers.draw_now(plan.with_bytes.group, cost=cost)
            if found is None:
                return None
            if found[0]:
                plan.unpaid = 0
            admission = _admission(plan.with_bytes, found, cost)
        if admission.error is None:
            key.count += 1
            workspace.count += 1
        return admission

    async def pay_bytes(self, plan: CallerPlan, count: int) -> Admission:
        """Draw on the token buckets of bytes alone, for what comes of a body whose length is unknown."""
        return await _draw(self.callers, plan.only_bytes, cost=(count, count))

    async def look(self, caller: Caller, endpoint: Endpoint | None) -> Admission:
        """The same buckets, with nothing drawn."""
        return await _draw(self.callers, self.plan_of(caller, endpoint), cost=0)

    async def admit_address(self, address: str, *, is_signed: bool) -> Admission:
        """Draw on the bucket of a client address: strangers, and downloads by signed address."""
        return await _draw(self.addresses, self._plan_of_address(address, is_signed=is_signed))

    async def look_address(self, address: str) -> Admission:
        """The bucket of a stranger, with nothing drawn."""
        return await _draw(self.addresses, self._plan_of_address(address, is_signed=False), cost=0)

    async def admit_webhook(self, caller: Caller, webhook_id: str) -> Admission:
        """Draw on the bucket of a webhook, as its own workspace sees it: nobody can empty a foreign one."""
        name = f"recorder:limit:{caller.workspace_id}:{webhook_id}"
        return await _draw(self.callers, _Plan(Bucket.of(WEBHOOK_CALLS, "per_webhook", name)))

    async def close(self) -> None:
        """Give the connections back."""
        await self.callers.close()
        await self.addresses.close()

    def plan_of(self, caller: Caller, endpoint: Endpoint | None) -> CallerPlan:
        """Return the limits that a key's request is held against."""
        surface: Surface = "other" if endpoint is None else endpoint.surface
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

    def _plan_of_address(self, address: str, *, is_signed: bool) -> _Plan:
        kind = "signed" if is_signed else "strangers"
        plan = self._address_plans.get((address, kind))
        if plan is not None:
            return plan
        rate = SIGNED_READS if is_signed else STRANGERS
        name = f"recorder:limit:{network_of(address)}:{kind}"
        if len(self._address_plans) >= _PLANS:
            self._address_plans.clear()
        plan = self._address_plans[address, kind] = _Plan(Bucket.of(rate, "per_address", name))
        return plan


async def limit_webhook(request: Request, webhook_id: str) -> None:
    """Let a route that makes the service call a webhook draw on that webhook's bucket too.

    Raises:
        RateLimited: if it was called too often of late.
    """
    if not _WEBHOOK_ID.fullmatch(webhook_id):
        return  # no webhook has such an id, so the route finds none
    limiting: Limiting = request.app.state.limiting
    admission = await limiting.admit_webhook(request.state.caller, webhook_id)
    if admission.error is not None or admission.share < request.state.admission.share:
        request.state.admission = admission
    if admission.error is not None:
        raise admission.error


#: For `dependencies=[…]` of a route with `webhook_id` in its path.
WebhookLimit: Any = Depends(limit_webhook)


def describe_refusal(state: dict[str, Any], error: RecorderError) -> None:
    """Make the headers of the answer show the limit on work under way that refused, where one did.

    Args:
        state: the request's.
        error: what the request failed with.
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


async def _draw(store: Buckets, plan: _Plan, *, cost: Cost = 1.0) -> Admission:
    found = store.draw_now(plan.group, cost=cost)
    if found is None:
        found = await store.draw(plan.group.buckets, cost=cost)
    return _admission(plan, found, cost)


def _admission(plan: _Plan, found: Draw, cost: Cost = 1.0) -> Admission:
    is_granted, tokens = found
    now = clock.unix_seconds()
    if not is_granted:
        return _refusal(plan, tokens, cost, now)
    speaker, left = plan.speakers[0], tokens[0]
    # Token buckets of bytes, behind these two, speak only where they refuse.
    if len(tokens) > 1:
        other, others = plan.speakers[1], tokens[1]
        # The smaller share of two, without a division.
        if others * speaker.size < left * other.size:
            speaker, left = other, others
    remaining, reset = int(left), ceil(now + (speaker.size - left) / speaker.per_second)
    # Whoever asks more slowly than the bucket fills is told the same for a second.
    if remaining != speaker.remaining or reset != speaker.reset:
        speaker.remaining, speaker.reset = remaining, reset
        speaker.said = Admission(speaker.headers(remaining, reset), remaining / speaker.size)
    return speaker.said


def _refusal(plan: _Plan, tokens: list[float], cost: Cost, now: float) -> Admission:
    """Return the refusal by the token bucket that holds too little for longest."""
    buckets = plan.group.buckets
    costs = cost if isinstance(cost, tuple) else (cost,) * len(buckets)
    waits = [
        (each - left) / bucket.per_second for each, left, bucket in zip(costs, tokens, buckets, strict=True)
    ]
    wait_s = max(waits)
    emptiest = waits.index(wait_s)
    retry_after_s = max(1, ceil(wait_s))
    headers = plan.speakers[emptiest].headers(int(tokens[emptiest]), ceil(now) + retry_after_s)
    return Admission(headers, 0.0, RateLimited(buckets[emptiest].scope, retry_after_s))


@lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """What one client has to itself: its address, of version 6 the 64 bits that it was given."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> 64 << 64))
