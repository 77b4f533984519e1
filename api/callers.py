"""Who calls, by key: looked up in the database, remembered for seconds. Contract §1 (keys)."""

import asyncio
import hashlib
import time
from dataclasses import dataclass

import anyio.to_thread

from recorder.access.keys import Caller, authenticate, is_well_formed
from recorder.errors import Forbidden, InvalidApiKey, Unauthenticated
from recorder.runtime import Runtime

#: A revoked key is refused everywhere after this long.
_SECONDS = 5.0
# Looked up again while the last answer still serves: under load a worker thread may need a second for it.
_FRESH_SECONDS = 2.0
_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    since: float


class Callers:
    """The callers of one process; used from its event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[bytes, _Known] = {}
        self._asked: dict[bytes, asyncio.Task[Caller]] = {}

    async def find(self, key: str) -> Caller:
        """The caller that a key stands for.

        Raises:
            InvalidApiKey: if the key is malformed, unknown, revoked or expired.
            WorkspaceDisabled: if its workspace is not active.
        """
        digest = hashlib.sha256(key.encode()).digest()
        known = self._known.get(digest)
        if known is None and not is_well_formed(key):
            raise InvalidApiKey
        age = _SECONDS if known is None else time.monotonic() - known.since
        if age >= _FRESH_SECONDS and digest not in self._asked:
            self._ask(digest, key)
        if known is not None and age < _SECONDS:
            return known.caller
        # Shielded: others wait for the same answer when this request goes away.
        return await asyncio.shield(self._asked[digest])

    def _ask(self, digest: bytes, key: str) -> None:
        task = asyncio.create_task(self._look_up(digest, key))
        self._asked[digest] = task
        task.add_done_callback(lambda done: self._answered(digest, done))

    async def _look_up(self, digest: bytes, key: str) -> Caller:
        now = time.monotonic()
        caller = await anyio.to_thread.run_sync(self._authenticate, key)
        if len(self._known) >= _SIZE:
            self._known.clear()
        self._known[digest] = _Known(caller, now)
        return caller

    def _answered(self, digest: bytes, done: "asyncio.Task[Caller]") -> None:
        del self._asked[digest]
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Unauthenticated | Forbidden):  # in force at once
            self._known.pop(digest, None)

    def _authenticate(self, key: str) -> Caller:
        with self._runtime.database.transaction(write=False) as db:
            return authenticate(db, key, secret=self._runtime.settings.secret)
