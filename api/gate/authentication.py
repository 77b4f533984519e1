"""Who calls, by key: looked up in the database, remembered for seconds. Contract §1 (keys)."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Depends, Request
from starlette.types import Scope

from api.gate.endpoints import Endpoint
from api.gate.rate_limits import Limiting, network_of
from api.gate.responses import client_address
from recorder import clock
from recorder.access.keys import Caller, authenticate, is_well_formed
from recorder.access.rate_tiers import STRANGERS
from recorder.audit.log import Origin, record
from recorder.errors import InsufficientScope, InvalidApiKey, RateLimited, Unauthenticated, Unavailable
from recorder.runtime import Runtime

#: A revoked key is refused everywhere after this long.
_SECONDS = 5.0
# Looked up again while the last answer still serves: under load a worker thread may need a second for it.
_FRESH_SECONDS = 2.0
_SIZE = 10_000


class _Known:
    """A caller, and for how long the answer serves."""

    __slots__ = ("caller", "fresh_until", "good_until")

    def __init__(self, caller: Caller, asked_at: float) -> None:
        self.caller = caller
        self.good_until = asked_at + _SECONDS
        if caller.expires_at is not None:
            left_s = (caller.expires_at - clock.now()).total_seconds()
            self.good_until = min(self.good_until, time.monotonic() + left_s)
        self.fresh_until = min(self.good_until, asked_at + _FRESH_SECONDS)


class Callers:
    """The callers of one process, by the Authorization header they send; used from its event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # A plain dict: a look-up in cachetools takes 1.1 µs instead of 0.2, 12 % of all that the gate takes.
        self._known: dict[bytes, _Known] = {}
        self._asked: dict[bytes, asyncio.Task[Caller]] = {}
        #: Counts what was forgotten: a look-up that began before it may have read what was before.
        self._forgotten = 0

    def recall(self, authorization: bytes) -> Caller | None:
        """The caller, where the last seconds tell who it is; costs no query and no wait."""
        digest = _digest(authorization)
        known = self._known.get(digest)
        if known is None:
            return None
        now = time.monotonic()
        if now < known.fresh_until:
            return known.caller
        if now >= known.good_until:
            return None
        if digest not in self._asked:
            self._ask(digest, authorization)
        return known.caller

    def has_met(self, authorization: bytes) -> bool:
        """Whether this header opened the service before, be it long ago."""
        return _digest(authorization) in self._known

    async def find(self, authorization: bytes) -> Caller:
        """The caller that a key stands for, as the database knows it now.

        Raises:
            InvalidApiKey: if there is no Bearer key, or it is malformed, unknown, revoked or expired.
        """
        digest = _digest(authorization)
        if digest not in self._asked:
            if not is_well_formed(_key(authorization)):
                raise InvalidApiKey
            self._ask(digest, authorization)
        # Shielded: others wait for the same answer when this request goes away.
        return await asyncio.shield(self._asked[digest])

    def forget(self, key_id: str) -> None:
        """Look this key up anew from now on."""
        self._forget(lambda caller: caller.key_id == key_id)

    def forget_workspace(self, workspace_id: str) -> None:
        """Look the keys of this workspace up anew from now on."""
        self._forget(lambda caller: caller.workspace_id == workspace_id)

    def _forget(self, is_meant: Callable[[Caller], bool]) -> None:
        self._forgotten += 1
        self._asked.clear()
        for digest in [digest for digest, known in self._known.items() if is_meant(known.caller)]:
            del self._known[digest]

    def _ask(self, digest: bytes, authorization: bytes) -> None:
        task = asyncio.create_task(self._look_up(digest, _key(authorization), self._forgotten))
        self._asked[digest] = task
        task.add_done_callback(lambda done: self._answered(digest, done))

    async def _look_up(self, digest: bytes, key: str, forgotten: int) -> Caller:
        asked_at = time.monotonic()
        caller = await anyio.to_thread.run_sync(self._authenticate, key)
        if forgotten == self._forgotten:
            self._remember(digest, _Known(caller, asked_at))
        return caller

    def _remember(self, digest: bytes, known: _Known) -> None:
        # Put behind the others, so that those longest unused come first.
        self._known.pop(digest, None)
        if len(self._known) >= _SIZE:
            del self._known[next(iter(self._known))]
        self._known[digest] = known

    def _answered(self, digest: bytes, done: "asyncio.Task[Caller]") -> None:
        if self._asked.get(digest) is done:
            del self._asked[digest]
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Unauthenticated):  # in force at once
            self._known.pop(digest, None)

    def _authenticate(self, key: str) -> Caller:
        with self._runtime.database.transaction(write=False) as db:
            return authenticate(db, key, secret=self._runtime.settings.secret)


def _digest(authorization: bytes) -> bytes:
    """What stands for a header here: keys themselves are kept nowhere."""
    return blake2b(authorization).digest()


def _key(authorization: bytes) -> str:
    scheme, _, key = authorization.partition(b" ")
    return key.decode("latin-1") if scheme.lower() == b"bearer" else ""


class Forgetting:
    """Callers that a request changed: looked up anew by its process once the change is committed."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._keys: list[str] = []
        self._workspaces: list[str] = []

    def key(self, key_id: str) -> None:
        """Forget a key that was revoked."""
        self._keys.append(key_id)

    def workspace(self, workspace_id: str) -> None:
        """Forget the keys of a workspace whose settings, or whose workflows' settings, were changed."""
        self._workspaces.append(workspace_id)

    def forget(self) -> None:
        """Do so."""
        for key_id in self._keys:
            self._callers.forget(key_id)
        for workspace_id in self._workspaces:
            self._callers.forget_workspace(workspace_id)


async def _get_forgetting(request: Request) -> AsyncIterator[Forgetting]:
    forgetting = Forgetting(request.app.state.callers)
    yield forgetting
    forgetting.forget()


# A route takes it before its `Db`: what is taken first ends last, here after the commit.
ForgettingDep = Annotated[Forgetting, Depends(_get_forgetting, scope="function")]


class Guesses:
    """Look-ups of unknown keys that are under way, by address.

    The address's bucket is drawn on when a look-up fails: who shows good keys pays nothing. So that many
    guesses at once do not pass before the first has failed, no more keys are looked up than the bucket has
    tokens. Requests with one key share its look-up, so they count once: a client that opens a hundred
    connections after a restart guesses nothing.
    """

    def __init__(self, limiting: Limiting) -> None:
        self._limiting = limiting
        self._under_way: dict[str, Counter[bytes]] = {}

    @asynccontextmanager
    async def room(self, address: str, authorization: bytes, state: dict[str, Any]) -> AsyncIterator[None]:
        """Room for the look-up of one header, while the block runs.

        Args:
            state: the request's; it keeps what the limits said.

        Raises:
            RateLimited: if there is none.
        """
        found = await self._limiting.look_address(address)
        network = network_of(address)
        under_way = self._under_way.get(network, Counter())
        is_new = authorization not in under_way
        if is_new and round(found.share * STRANGERS.burst) <= len(under_way):
            admission = await self._limiting.admit_address(address, is_signed=False)
            state["admission"] = admission
            raise admission.error or RateLimited("per_address", 1)
        self._under_way[network] = under_way
        under_way[authorization] += 1
        try:
            yield
        finally:
            self._end(network, under_way, authorization)

    def _end(self, network: str, under_way: Counter[bytes], authorization: bytes) -> None:
        under_way[authorization] -= 1
        if not under_way[authorization]:
            del under_way[authorization]
        if not under_way:
            del self._under_way[network]


log = logging.getLogger("recorder.api")

#: A key that keeps trying is told of once in this long: it must not fill the log.
_REPEAT_SECONDS = 60.0
_REPEATS_KEPT = 10_000


class Refusals:
    """The refusals of one process; used from its event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told: dict[tuple[str, Endpoint], float] = {}

    async def tell(self, scope: Scope, error: InsufficientScope) -> None:
        """Record that the caller of a request lacks the scope for it; the answer is the same without."""
        caller, endpoint = scope["state"]["caller"], scope["state"]["endpoint"]
        if caller is None or endpoint is None or not self._is_new(caller.key_id, endpoint):
            return
        request_id, address = scope["state"]["request_id"], client_address(scope)
        origin = Origin(caller.workspace_id, "key", caller.key_id, request_id, address, caller.mode)
        try:
            await anyio.to_thread.run_sync(self._record, origin, caller, endpoint, error.needed)
        except Unavailable:
            log.error("a refusal was not recorded: the database does not answer")

    def _is_new(self, key_id: str, endpoint: Endpoint) -> bool:
        now = time.monotonic()
        if now - self._told.get((key_id, endpoint), -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return False
        if len(self._told) >= _REPEATS_KEPT:
            self._told.clear()
        self._told[key_id, endpoint] = now
        return True

    def _record(self, origin: Origin, caller: Caller, endpoint: Endpoint, needed: str) -> None:
        with self._runtime.database.transaction(write=True) as db:
            record(
                db,
                origin,
                "endpoint.call",
                resource_type="endpoint",
                resource_id=f"{endpoint.method} {endpoint.path}",
                outcome="refused",
                details={"needed": needed, "held": str(caller.scope)},
            )
