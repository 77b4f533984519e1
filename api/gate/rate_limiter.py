"""Rate limits: token buckets of requests and bytes, and concurrent requests. Spec §8.1, contract §1."""

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any
from weakref import WeakValueDictionary

from api.gate.bucket_decisions import (
    BucketDecision,
    BucketPlan,
    CallerPlan,
    decide_by_token_buckets,
    make_bucket_decision,
)
from api.gate.endpoints import Endpoint
from recorder.access.concurrency import WorkCount
from recorder.access.keys import Caller
from recorder.access.rate_limits.bucket_stores import TokenBucketStore, open_token_buckets
from recorder.access.rate_limits.token_buckets import TokenBucket
from recorder.access.rate_tiers import SIGNED_READS, STRANGERS, WEBHOOK_CALLS, Surface, SurfaceRates
from recorder.settings import Settings

_PLANS = 20_000
#: Bytes of small bodies are charged together once they reach this sum: with bodies of 25 KB every tenth
#: request draws on the token buckets of bytes. A process may be ahead by this much for each key and surface.
_UNPAID_BYTES = 262_144


class RateLimitCharge:
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
        rate_decision = await self._rate_limiter.pay_bytes(self._plan, count)
        if rate_decision.error is not None:
            self._state["rate_decision"] = rate_decision
            raise rate_decision.error

    def refund(self, count: int) -> None:
        """Credit bytes that were paid, but not sent, to the next body."""
        self._plan.unpaid -= count


class RateLimiter:
    """Limits of one process, or of all processes that share a Redis; used from the event loop."""

    def __init__(self, settings: Settings) -> None:
        #: The buckets of keys, workspaces and webhooks, and those of addresses.
        self.callers: TokenBucketStore
        self.addresses: TokenBucketStore
        self.callers, self.addresses = open_token_buckets(settings)
        self._plans: dict[tuple[str, str], CallerPlan] = {}
        self._address_plans: dict[tuple[str, str], BucketPlan] = {}
        # A count lives as long as a plan or a running request holds it.
        self._counts: WeakValueDictionary[str, WorkCount] = WeakValueDictionary()

    async def admit(
        self, caller: Caller, endpoint: Endpoint | None, *, body_bytes: int = 0
    ) -> BucketDecision:
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
            rate_decision = await decide_by_token_buckets(self.callers, plan)
            plan.unpaid += body_bytes
            return rate_decision
        # Requests that arrive while Redis answers must not pay the same bytes again.
        plan.unpaid = 0
        rate_decision = await decide_by_token_buckets(
            self.callers, plan.with_bytes, cost=(1.0, 1.0, unpaid, unpaid)
        )
        if rate_decision.error is not None:
            plan.unpaid += unpaid - body_bytes
        return rate_decision

    def admit_now(self, plan: CallerPlan, body_bytes: int) -> BucketDecision | None:
        """Draw on the token buckets of a key and its workspace without waiting.

        An admitted request counts as running.

        Returns:
            None if only a store outside of this process can decide; then nothing is counted.

        Raises:
            RateLimited: if the key or its workspace has as many running requests as its tier admits.
        """
        key, workspace = plan.of_key, plan.of_workspace
        if key.count >= plan.most_of_key or workspace.count >= plan.most_of_workspace:
            plan.begin_request()  # raises
        unpaid = plan.unpaid + body_bytes
        if unpaid < _UNPAID_BYTES:
            grant = self.callers.take_tokens_without_waiting(plan.group)
            if grant is None:
                return None
            plan.unpaid = unpaid
            rate_decision = make_bucket_decision(plan, grant)
        else:
            cost = (1.0, 1.0, unpaid, unpaid)
            grant = self.callers.take_tokens_without_waiting(plan.with_bytes.group, cost=cost)
            if grant is None:
                return None
            if grant[0]:
                plan.unpaid = 0
            rate_decision = make_bucket_decision(plan.with_bytes, grant, cost)
        if rate_decision.error is None:
            key.count += 1
            workspace.count += 1
        return rate_decision

    async def pay_bytes(self, plan: CallerPlan, count: int) -> BucketDecision:
        """Draw on the token buckets of bytes, for parts of a body whose length is unknown."""
        return await decide_by_token_buckets(self.callers, plan.only_bytes, cost=(count, count))

    async def peek(self, caller: Caller, endpoint: Endpoint | None) -> BucketDecision:
        """Return the state of the buckets of a key and its workspace, with nothing drawn."""
        return await decide_by_token_buckets(self.callers, self.plan_of(caller, endpoint), cost=0)

    async def admit_address(self, address: str, *, is_signed: bool) -> BucketDecision:
        """Draw on the bucket of a client address, for requests without a valid key or with a signed URL."""
        return await decide_by_token_buckets(
            self.addresses, self._plan_of_address(address, is_signed=is_signed)
        )

    async def peek_address(self, address: str) -> BucketDecision:
        """Return the state of an address's bucket for requests without a valid key."""
        return await decide_by_token_buckets(
            self.addresses, self._plan_of_address(address, is_signed=False), cost=0
        )

    async def admit_webhook(self, caller: Caller, webhook_id: str) -> BucketDecision:
        """Draw on the bucket of a webhook; other workspaces have a bucket of another name."""
        name = f"recorder:limit:{caller.workspace_id}:{webhook_id}"
        description = "redeliveries and test events of this webhook"
        return await decide_by_token_buckets(
            self.callers,
            BucketPlan(TokenBucket.of(WEBHOOK_CALLS, "per_webhook", name, description=description)),
        )

    async def admit_surface(self, caller: Caller, surface: Surface) -> BucketDecision:
        """Take a token of a surface that only some requests to an endpoint use, such as live replays."""
        return await decide_by_token_buckets(self.callers, self._plan_of_surface(caller, surface))

    async def close(self) -> None:
        """Close the connections to the stores."""
        await self.callers.close()
        await self.addresses.close()

    def plan_of(self, caller: Caller, endpoint: Endpoint | None) -> CallerPlan:
        """Return the limits for a key's requests to an endpoint."""
        return self._plan_of_surface(caller, "other" if endpoint is None else endpoint.surface)

    def _plan_of_surface(self, caller: Caller, surface: Surface) -> CallerPlan:
        """Return the cached token buckets of a caller for requests of a surface and their body bytes."""
        plan = self._plans.get((caller.key_id, surface))
        if plan is not None and plan.tier is caller.tier:
            return plan
        tier, rates = caller.tier, caller.tier.rates[surface]
        plan = CallerPlan(
            _make_bucket_pair(caller, rates, surface, subject=f"`{surface}`"),
            _make_bucket_pair(caller, tier.body_bytes, "bytes", subject="body bytes", suffix="_bytes"),
            (self._find_work_count(caller.key_id), self._find_work_count(caller.workspace_id)),
            tier,
        )
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[caller.key_id, surface] = plan
        return plan

    def _find_work_count(self, name: str) -> WorkCount:
        """Return the count of work under way of a key or workspace."""
        count = self._counts.get(name)
        if count is None:
            count = self._counts[name] = WorkCount()
        return count

    def _plan_of_address(self, address: str, *, is_signed: bool) -> BucketPlan:
        """Return the token bucket of a client network: for signed reads, or requests without a valid key."""
        kind = "signed" if is_signed else "strangers"
        plan = self._address_plans.get((address, kind))
        if plan is not None:
            return plan
        rate = SIGNED_READS if is_signed else STRANGERS
        subject = "downloads by signed address" if is_signed else "requests without a valid key"
        name = f"recorder:limit:{find_client_network(address)}:{kind}"
        if len(self._address_plans) >= _PLANS:
            self._address_plans.clear()
        bucket = TokenBucket.of(rate, "per_address", name, description=f"{subject} from your address")
        plan = self._address_plans[address, kind] = BucketPlan(bucket)
        return plan


def _make_bucket_pair(
    caller: Caller, rates: SurfaceRates, name: str, *, subject: str, suffix: str = ""
) -> tuple[TokenBucket, TokenBucket]:
    """Return the buckets of a key and of its workspace; scopes end with the suffix."""
    key, workspace = f"recorder:limit:{caller.key_id}", f"recorder:limit:{caller.workspace_id}"
    return (
        TokenBucket.of(
            rates.per_key, f"per_key{suffix}", f"{key}:{name}", description=f"{subject} for this key"
        ),
        TokenBucket.of(
            rates.per_workspace,
            f"per_workspace{suffix}",
            f"{workspace}:{name}",
            description=f"{subject} for this workspace",
        ),
    )


@lru_cache(maxsize=10_000)
def find_client_network(address: str) -> str:
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
