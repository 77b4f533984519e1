"""Who calls, by key: looked up in the database, remembered for seconds. Contract §1 (keys)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request

from recorder import clock
from recorder.access.keys import Caller, authenticate, is_well_formed
from recorder.errors import InvalidApiKey, Unauthenticated
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
