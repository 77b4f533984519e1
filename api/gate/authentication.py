"""Authentication: cached callers, throttle of unknown keys, audit of denied scopes. Contract §1, §7."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any

import anyio
import anyio.to_thread
from cachetools import TTLCache
from fastapi import Depends, Request
from starlette.types import Scope

from api.fair_slots import FairSlots
from api.gate.endpoints import Endpoint
from api.gate.rate_limiter import RateLimiter, find_client_network
from api.gate.responses import read_client_address
from recorder import clock
from recorder.access.keys import Caller, authenticate_key, is_well_formed_key
from recorder.access.rate_tiers import STRANGERS
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import InsufficientScope, InvalidApiKey, RateLimited, Unauthenticated, Unavailable
from recorder.runtime import Runtime

log = logging.getLogger("recorder.api")

# An entry is looked up again while it is still used: under load a worker thread may need a second for it.
_FRESH_S = 2.0
#: A key that keeps trying an endpoint has one audit entry in this long: it must not fill the log.
_DENIAL_REPEAT_S = 60.0
_DENIALS_KEPT = 10_000
#: Entries of one workspace in that time: it may have any number of keys.
_DENIALS_OF_WORKSPACE = 100
#: Entries that are written at a time; a workspace alone has one of them, and workspaces that wait take turns.
_DENIALS_WRITTEN = 2


class _CachedCaller:
    """A caller, and how long the entry may be used."""

    __slots__ = ("caller", "fresh_until", "good_until")

    def __init__(self, caller: Caller, read_at: float, cached_s: float) -> None:
        self.caller = caller
        self.good_until = read_at + cached_s
        if caller.expires_at is not None:
            left_s = (caller.expires_at - clock.now()).total_seconds()
            self.good_until = min(self.good_until, time.monotonic() + left_s)
        self.fresh_until = min(self.good_until, read_at + _FRESH_S)


class CallerCache:
    """Callers of one process by the Authorization header they send; used from its event loop."""

    def __init__(self, runtime: Runtime, *, size: int = 10_000, cached_s: float = 5.0) -> None:
        self._runtime = runtime
        self._size = size
        #: A revoked key is refused in all processes after this long.
        self.cached_s = cached_s
        # A plain dict: a look-up in cachetools takes 1.1 µs instead of 0.2, 12 % of the gate's time.
        self._cached: dict[bytes, _CachedCaller] = {}
        self._look_ups: dict[bytes, asyncio.Task[Caller]] = {}
        #: Number of invalidations: a look-up that began before one may have read the state before it.
        self._invalidations = 0

    def get(self, authorization: bytes) -> Caller | None:
        """Return the caller if it is cached; needs no query and no wait."""
        digest = _digest_authorization(authorization)
        entry = self._cached.get(digest)
        if entry is None:
            return None
        now = time.monotonic()
        if now < entry.fresh_until:
            return entry.caller
        if now >= entry.good_until:
            return None
        if digest not in self._look_ups:
            self._start_caller_look_up(digest, authorization)
        return entry.caller

    def has_seen(self, authorization: bytes) -> bool:
        """Return whether this header was accepted before, however long ago."""
        return _digest_authorization(authorization) in self._cached

    async def look_up(self, authorization: bytes) -> Caller:
        """Return the caller of a header, read from the database.

        Raises:
            InvalidApiKey: if there is no Bearer key, or it is malformed, unknown, revoked or expired.
        """
        digest = _digest_authorization(authorization)
        if digest not in self._look_ups:
            if not is_well_formed_key(_read_bearer_key(authorization)):
                raise InvalidApiKey
            self._start_caller_look_up(digest, authorization)
        # Shielded: other requests wait for the same look-up when this one is cancelled.
        return await asyncio.shield(self._look_ups[digest])

    def forget_key(self, key_id: str) -> None:
        """Remove the entries of a key."""
        self._forget_callers(lambda caller: caller.key_id == key_id)

    def forget_workspace(self, workspace_id: str) -> None:
        """Remove the entries of all keys of a workspace."""
        self._forget_callers(lambda caller: caller.workspace_id == workspace_id)

    def _forget_callers(self, is_concerned: Callable[[Caller], bool]) -> None:
        self._invalidations += 1
        self._look_ups.clear()
        for digest in [digest for digest, entry in self._cached.items() if is_concerned(entry.caller)]:
            del self._cached[digest]

    def _start_caller_look_up(self, digest: bytes, authorization: bytes) -> None:
        task = asyncio.create_task(
            self._look_up_caller(digest, _read_bearer_key(authorization), self._invalidations)
        )
        self._look_ups[digest] = task
        task.add_done_callback(lambda done: self._end_caller_look_up(digest, done))

    async def _look_up_caller(self, digest: bytes, key: str, invalidations: int) -> Caller:
        """Return a key's caller from the database, and cache it unless an entry was invalidated since."""
        read_at = time.monotonic()
        caller = await anyio.to_thread.run_sync(self._authenticate_key, key)
        if invalidations == self._invalidations:
            # Moved to the end, so that the entry that was read longest ago is the first.
            self._cached.pop(digest, None)
            if len(self._cached) >= self._size:
                del self._cached[next(iter(self._cached))]
            self._cached[digest] = _CachedCaller(caller, read_at, self.cached_s)
        return caller

    def _end_caller_look_up(self, digest: bytes, done: "asyncio.Task[Caller]") -> None:
        if self._look_ups.get(digest) is done:
            del self._look_ups[digest]
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Unauthenticated):  # a refusal takes effect at once
            self._cached.pop(digest, None)

    def _authenticate_key(self, key: str) -> Caller:
        with self._runtime.database.transaction(write=False) as db:
            return authenticate_key(db, key, secret=self._runtime.settings.secret)


def _digest_authorization(authorization: bytes) -> bytes:
    """Return the digest under which a header is cached: keys themselves are not stored."""
    return blake2b(authorization).digest()


def _read_bearer_key(authorization: bytes) -> str:
    scheme, _, key = authorization.partition(b" ")
    return key.decode("latin-1") if scheme.lower() == b"bearer" else ""


class CallerInvalidation:
    """Callers that a request changed: removed from the cache once the change is committed."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._workspaces: list[str] = []

    def add_key(self, key_id: str) -> None:
        """Have `apply` remove the caller of a revoked key from the cache."""
        self._keys.append(key_id)

    def add_workspace(self, workspace_id: str) -> None:
        """Have `apply` remove the callers of a workspace whose settings, or workflows, were changed."""
        self._workspaces.append(workspace_id)

    def apply(self, cache: CallerCache) -> None:
        """Remove the entries from the cache."""
        for key_id in self._keys:
            cache.forget_key(key_id)
        for workspace_id in self._workspaces:
            cache.forget_workspace(workspace_id)


async def _get_caller_invalidation(request: Request) -> AsyncIterator[CallerInvalidation]:
    invalidation = CallerInvalidation()
    yield invalidation
    invalidation.apply(request.app.state.caller_cache)


# A route lists it before its `Db`: the first dependency ends last, here after the commit.
CallerInvalidationDep = Annotated[CallerInvalidation, Depends(_get_caller_invalidation, scope="function")]


class KeyGuessThrottle:
    """Limit on the running lookups of unknown keys: the tokens in the bucket of their address.

    A failed look-up takes a token, so clients with valid keys pay nothing. The count of running lookups
    stops parallel guesses before the first of them has failed. Requests with one key share its look-up and
    count once: a client that opens a hundred connections after a restart is not throttled.
    """

    def __init__(self, rate_limiter: RateLimiter) -> None:
        self._rate_limiter = rate_limiter
        self._running: dict[str, Counter[bytes]] = {}

    @asynccontextmanager
    async def reserve(self, address: str, authorization: bytes, state: dict[str, Any]) -> AsyncIterator[None]:
        """Count the look-up of one header as running while the block runs.

        Args:
            address: the client's.
            authorization: the header.
            state: the request's; it receives the rate decision if the look-up is refused.

        Raises:
            RateLimited: if too many lookups of the address are running.
        """
        bucket = await self._rate_limiter.peek_address(address)
        network = find_client_network(address)
        running = self._running.get(network, Counter())
        if authorization not in running and round(bucket.share * STRANGERS.burst) <= len(running):
            rate_decision = await self._rate_limiter.admit_address(address, is_signed=False)
            state["rate_decision"] = rate_decision
            raise rate_decision.error or RateLimited("per_address", 1)
        self._running[network] = running
        running[authorization] += 1
        try:
            yield
        finally:
            running[authorization] -= 1
            if not running[authorization]:
                del running[authorization]
            if not running:
                del self._running[network]


class ScopeDenialAudit:
    """Audit entries for requests whose key lacks the scope; used from the event loop of one process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._recorded: TTLCache[tuple[str, Endpoint], bool] = TTLCache(_DENIALS_KEPT, _DENIAL_REPEAT_S)
        #: Entries of each workspace since a time.
        self._counts: Counter[str] = Counter()
        self._counted_since = time.monotonic()
        # A workspace alone writes one at a time, in threads of their own: denied requests are under no limit,
        # and on SQLite each waits for the other writers.
        self._slots = FairSlots(_DENIALS_WRITTEN)
        self._threads = anyio.CapacityLimiter(_DENIALS_WRITTEN)

    async def record_denial(self, scope: Scope, error: InsufficientScope) -> None:
        """Record that the caller of a request lacks its scope; a failure does not change the answer."""
        state = scope["state"]
        caller, endpoint = state["caller"], state["endpoint"]
        if caller is None or endpoint is None or not self._count_entry(caller, endpoint):
            return
        origin = Origin(
            caller.workspace_id,
            "key",
            caller.key_id,
            state["request_id"],
            read_client_address(scope),
            caller.mode,
        )
        try:
            write = partial(self._record_denied_call, origin, caller, endpoint, error)
            async with self._slots.hold(caller.workspace_id):
                await anyio.to_thread.run_sync(write, limiter=self._threads)
        except Unavailable:
            log.error("a denied request was not recorded: the database does not answer")

    def _count_entry(self, caller: Caller, endpoint: Endpoint) -> bool:
        """Return whether a denial gets an entry, and count it.

        The first one of a key and endpoint in a minute has one, up to a limit for the workspace.
        """
        if time.monotonic() - self._counted_since >= _DENIAL_REPEAT_S:
            self._counts.clear()
            self._counted_since = time.monotonic()
        is_full = self._counts[caller.workspace_id] >= _DENIALS_OF_WORKSPACE
        if is_full or (caller.key_id, endpoint) in self._recorded:
            return False
        self._recorded[caller.key_id, endpoint] = True
        self._counts[caller.workspace_id] += 1
        return True

    def _record_denied_call(
        self, origin: Origin, caller: Caller, endpoint: Endpoint, error: InsufficientScope
    ) -> None:
        details = {"needed": error.needed, "held": str(caller.scope)}
        if error.needed_mode is not None:
            details |= {"needed_mode": error.needed_mode, "held_mode": caller.mode}
        with self._runtime.database.transaction(write=True) as db:
            record_audit_entry(
                db,
                origin,
                "endpoint.call",
                resource_type="endpoint",
                resource_id=f"{endpoint.method} {endpoint.path}",
                outcome="refused",
                details=details,
            )
