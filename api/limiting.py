"""Rate limits of requests: which buckets a request draws on, and the four headers. Spec §8.1, contract §1."""

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Any

from fastapi import Depends, Request

from api.endpoints import Endpoint
from recorder import clock
from recorder.access.keys import Caller
from recorder.access.ratelimit.buckets import Bucket, Draw, Group
from recorder.access.ratelimit.stores import Buckets, open_buckets
from recorder.access.surfaces import SIGNED_READS, STRANGERS, WEBHOOK_CALLS, Surface, Tier
from recorder.errors import RateLimited, RecorderError
from recorder.settings import Settings

Header = tuple[bytes, bytes]

_REMAINING = b"x-ratelimit-remaining"
_RESET = b"x-ratelimit-reset"
_PLANS = 20_000
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
    """The buckets that one kind of request draws on, and who speaks for each."""

    __slots__ = ("group", "speakers", "tier")

    def __init__(self, *buckets: Bucket, tier: Tier | None = None) -> None:
        self.group = Group(*buckets)
        self.speakers = [_Speaker(bucket) for bucket in buckets]
        self.tier = tier


class Limiting:
    """The limits of one process, or of all that share a Redis; used from the event loop."""

    def __init__(self, settings: Settings) -> None:
        #: Where the buckets of keys, workspaces and webhooks are, and where those of addresses.
        self.callers: Buckets
        self.addresses: Buckets
        self.callers, self.addresses = open_buckets(settings)
        self._plans: dict[tuple[str, str], _Plan] = {}

    async def admit(self, caller: Caller, endpoint: Endpoint | None) -> Admission:
        """Draw on the buckets of a key and its workspace."""
        return await _draw(self.callers, self._plan_of(caller, endpoint))

    def admit_now(self, caller: Caller, endpoint: Endpoint | None) -> Admission | None:
        """The same at once; None where other processes must be asked, and waited for."""
        plan = self._plan_of(caller, endpoint)
        found = self.callers.draw_now(plan.group)
        return None if found is None else _admission(plan, found)

    async def look(self, caller: Caller, endpoint: Endpoint | None) -> Admission:
        """The same buckets, with nothing drawn."""
        return await _draw(self.callers, self._plan_of(caller, endpoint), cost=0)

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

    def _plan_of(self, caller: Caller, endpoint: Endpoint | None) -> _Plan:
        surface: Surface = "other" if endpoint is None else endpoint.surface
        plan = self._plans.get((caller.key_id, surface))
        if plan is not None and plan.tier is caller.tier:
            return plan
        rates = caller.tier.rates[surface]
        key, workspace = f"{caller.key_id}:{surface}", f"{caller.workspace_id}:{surface}"
        plan = _Plan(
            Bucket.of(rates.per_key, "per_key", f"recorder:limit:{key}"),
            Bucket.of(rates.per_workspace, "per_workspace", f"recorder:limit:{workspace}"),
            tier=caller.tier,
        )
        return self._keep((caller.key_id, surface), plan)

    def _plan_of_address(self, address: str, *, is_signed: bool) -> _Plan:
        kind = "signed" if is_signed else "strangers"
        plan = self._plans.get((address, kind))
        if plan is not None:
            return plan
        rate = SIGNED_READS if is_signed else STRANGERS
        name = f"recorder:limit:{network_of(address)}:{kind}"
        return self._keep((address, kind), _Plan(Bucket.of(rate, "per_address", name)))

    def _keep(self, name: tuple[str, str], plan: _Plan) -> _Plan:
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[name] = plan
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


async def _draw(store: Buckets, plan: _Plan, *, cost: int = 1) -> Admission:
    found = store.draw_now(plan.group, cost=cost)
    if found is None:
        found = await store.draw(plan.group.buckets, cost=cost)
    return _admission(plan, found)


def _admission(plan: _Plan, found: Draw) -> Admission:
    is_granted, tokens = found
    now = clock.unix_seconds()
    if not is_granted:
        return _refusal(plan, tokens, now)
    speaker, left = plan.speakers[0], tokens[0]
    if len(tokens) == 2:
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


def _refusal(plan: _Plan, tokens: list[float], now: float) -> Admission:
    """Of the buckets that have no token, the one that has none for longest."""
    buckets = plan.group.buckets
    waits = [(1.0 - left) / bucket.per_second for left, bucket in zip(tokens, buckets, strict=True)]
    wait_s = max(waits)
    emptiest = waits.index(wait_s)
    retry_after_s = max(1, ceil(wait_s))
    headers = plan.speakers[emptiest].headers(0, ceil(now) + retry_after_s)
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
