"""Slots of open streams: so many a key, so many a workspace, in all processes together. Spec §8.1.

A process counts its own streams. With a Redis it also claims a slot for each there, under a lease that it
renews while the stream is open, so the slots of a process that was killed come free by themselves.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from recorder.access.keys import Caller
from recorder.errors import TooManyStreams

_KEY = "on this key"
_WORKSPACE = "in this workspace"


@dataclass(frozen=True, slots=True)
class Slot:
    """One open stream."""

    name: str
    key_id: str
    workspace_id: str


class SharedSlots(Protocol):
    """The slots of all processes; what is away is taken for free."""

    #: Seconds between two renewals.
    renew_s: float

    async def claim(self, slot: Slot, *, per_key: int, per_workspace: int) -> str | None:
        """Take a slot; where none is free, say whose are all taken: `per_key` or `per_workspace`."""

    async def renew(self, slots: Iterable[Slot]) -> None:
        """Hold these for another lease."""

    async def free(self, slots: Iterable[Slot]) -> None:
        """Give these back."""

    async def close(self) -> None:
        """Give the connections back."""


class StreamSlots:
    """The open streams of this process; used from its event loop."""

    def __init__(self, shared: SharedSlots | None = None) -> None:
        self._shared = shared
        self._open: dict[str, Slot] = {}
        self._of_key: Counter[str] = Counter()
        self._of_workspace: Counter[str] = Counter()
        self._process = secrets.token_hex(8)
        self._made = 0
        self._renewal: asyncio.Task[None] | None = None
        self._is_closing = False
        self._freeing: set[asyncio.Task[None]] = set()
        # A slot that is given back while others are renewed must not be renewed after it.
        self._turn = asyncio.Lock()

    @property
    def open_count(self) -> int:
        """Streams that are open in this process."""
        return len(self._open)

    @asynccontextmanager
    async def hold(self, caller: Caller) -> AsyncIterator[None]:
        """A slot for as long as the block runs; enter it before the answer begins.

        Raises:
            TooManyStreams: if the key or the workspace has as many open as its tier admits.
        """
        slot = await self.acquire(caller)
        try:
            yield
        finally:
            self.release(slot)

    async def acquire(self, caller: Caller) -> Slot:
        """Take a slot, to be given to `release` whatever happens.

        Raises:
            TooManyStreams: if the key or the workspace has as many open as its tier admits.
        """
        per_key, per_workspace = caller.tier.streams_per_key, caller.tier.streams_per_workspace
        if self._of_key[caller.key_id] >= per_key:
            raise TooManyStreams(_KEY, per_key)
        if self._of_workspace[caller.workspace_id] >= per_workspace:
            raise TooManyStreams(_WORKSPACE, per_workspace)
        slot = self._add(caller)
        if self._shared is None:
            return slot
        try:
            taken = await self._shared.claim(slot, per_key=per_key, per_workspace=per_workspace)
        except BaseException:
            self.release(slot)
            raise
        if taken is None:
            return slot
        self._forget(slot)
        raise (
            TooManyStreams(_KEY, per_key) if taken == "per_key" else TooManyStreams(_WORKSPACE, per_workspace)
        )

    def release(self, slot: Slot) -> None:
        """Give a slot back; again is no harm. It waits for nothing, so a cancelled request can do it too."""
        if slot.name not in self._open:
            return
        self._forget(slot)
        if self._shared is not None:
            task = asyncio.create_task(self._free(self._shared, slot))
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)

    async def close(self) -> None:
        """Give everything back, at the end of the process."""
        if self._shared is None:
            return
        self._is_closing = True
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
        await asyncio.gather(*self._freeing)
        await self._shared.free(list(self._open.values()))
        await self._shared.close()

    def _add(self, caller: Caller) -> Slot:
        self._made += 1
        slot = Slot(f"{self._process}:{self._made}", caller.key_id, caller.workspace_id)
        self._open[slot.name] = slot
        self._of_key[slot.key_id] += 1
        self._of_workspace[slot.workspace_id] += 1
        if self._shared is not None and self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(self._shared))
        return slot

    def _forget(self, slot: Slot) -> None:
        del self._open[slot.name]
        for counts, name in ((self._of_key, slot.key_id), (self._of_workspace, slot.workspace_id)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    async def _free(self, shared: SharedSlots, slot: Slot) -> None:
        async with self._turn:
            await shared.free([slot])

    async def _renew(self, shared: SharedSlots) -> None:
        # A client library may swallow the cancellation that comes while it waits for its server.
        while not self._is_closing:
            await asyncio.sleep(shared.renew_s)
            async with self._turn:
                await shared.renew(list(self._open.values()))
