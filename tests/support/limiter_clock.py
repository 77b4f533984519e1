"""Buckets of a running application under a clock that a test sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.gate.endpoints import Endpoint
from api.gate.rate_limiter import RateLimiter
from recorder.access import keys, workspaces
from recorder.access.rate_limits.token_buckets import InProcessBuckets
from recorder.access.rate_tiers import TIERS, SurfaceRates
from recorder.ids import new_id
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant
from tests.support.factories import Caller, Service

HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-scope")
TIER = TIERS["default"]


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def stopped_clock(service: Service) -> Iterator[Clock]:
    """Yield fresh buckets that fill only as the test lets time pass."""
    limiting: RateLimiter = service.app.state.rate_limiter
    clock, callers, addresses = Clock(), limiting.callers, limiting.addresses
    limiting.callers, limiting.addresses = InProcessBuckets(clock=clock), InProcessBuckets(clock=clock)
    try:
        yield clock
    finally:
        limiting.callers, limiting.addresses = callers, addresses


def use(caller: Caller, endpoint: Endpoint, count: int, *, key_id: str | None = None) -> None:
    """Draw so many times, as so many requests of the caller (or of another key of its workspace) would."""
    who = keys.Caller(Tenant(caller.key.workspace_id, "live"), key_id or caller.key.key_id, tier=TIER)
    limiting: RateLimiter = caller.service.app.state.rate_limiter

    async def draw() -> None:
        for _ in range(count):
            admission = await limiting.admit(who, endpoint)
            assert admission.error is None

    caller.service.client.portal.call(draw)  # type: ignore[union-attr]


def use_by_many_keys(caller: Caller, endpoint: Endpoint, rates: SurfaceRates) -> None:
    """Empty the bucket of the caller's workspace, and not that of its key."""
    left = rates.per_workspace.burst
    while left:
        count = min(left, rates.per_key.burst)
        use(caller, endpoint, count, key_id=new_id("key"))
        left -= count


def limit_headers(answer: Any) -> tuple[int, int, int, str]:
    """Return the four headers of an answer about its limit, each of which is there once."""
    names = [name.lower() for name, _ in answer.headers.multi_items()]
    assert [names.count(name) for name in HEADERS] == [1] * 4, answer.headers
    limit, remaining, reset, scope = (answer.headers[name] for name in HEADERS)
    return int(limit), int(remaining), int(reset), scope


def limited_key(folder: Path) -> str:
    """Return a key of a running service's folder, with the limits of the specification."""
    settings = Settings.from_env({}, data_dir=folder)
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = workspaces.create_workspace(db, new_id("wsp"), region=settings.region, secret=settings.secret)
    runtime.close()
    return made.key
