"""Limits on open streams per key and per workspace, across all processes. Spec §8.1.

A process counts its own streams. With a Redis it also claims a slot there for each stream, under a lease that
it renews while the stream is open, so that the slots of a killed process become free when their leases end.
"""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from recorder.access.keys import Caller
from recorder.access.rate_limits.bucket_stores import AWAY, RedisAvailability, connect_shared_redis
from recorder.errors import TooManyStreams
from recorder.settings import Settings

_KEY = "on this key"
_WORKSPACE = "in this workspace"


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """One open stream."""

    name: str
    key_id: str
    workspace_id: str


class SharedStreamSlots(Protocol):
    """Slots of all processes; while their store does not answer, every slot counts as free."""

    #: Seconds between two renewals.
    renew_s: float

    async def claim(self, slot: StreamSlot, *, per_key: int, per_workspace: int) -> str | None:
        """Claim a slot; return the limit that is reached, `per_key` or `per_workspace`, or None."""

    async def renew(self, slots: Iterable[StreamSlot]) -> None:
        """Renew the leases of these slots."""

    async def free(self, slots: Iterable[StreamSlot]) -> None:
        """Release these slots."""

    async def close(self) -> None:
        """Close the connections."""


class StreamSlots:
    """The open streams of this process; used from its event loop."""

    def __init__(self, shared: SharedStreamSlots | None = None) -> None:
        self._shared = shared
        self._open: dict[str, StreamSlot] = {}
        self._of_key: Counter[str] = Counter()
        self._of_workspace: Counter[str] = Counter()
        self._process = secrets.token_hex(8)
        self._made = 0
        self._renewal: asyncio.Task[None] | None = None
        self._is_closing = False
        self._freeing: set[asyncio.Task[None]] = set()
        # A slot that is released while others are renewed must not be renewed afterwards.
        self._turn = asyncio.Lock()

    @property
    def open_count(self) -> int:
        """Streams that are open in this process."""
        return len(self._open)

    @asynccontextmanager
    async def hold(self, caller: Caller) -> AsyncIterator[None]:
        """Hold a slot while the block runs; enter it before the answer begins.

        Raises:
            TooManyStreams: if the key or the workspace has as many open as its tier admits.
        """
        slot = await self.acquire(caller)
        try:
            yield
        finally:
            self.release(slot)

    async def acquire(self, caller: Caller) -> StreamSlot:
        """Claim a slot; the caller must release it.

        Raises:
            TooManyStreams: if the key or the workspace has as many open as its tier admits.
        """
        per_key, per_workspace = caller.tier.streams_per_key, caller.tier.streams_per_workspace
        if self._of_key[caller.key_id] >= per_key:
            raise TooManyStreams(_KEY, per_key)
        if self._of_workspace[caller.workspace_id] >= per_workspace:
            raise TooManyStreams(_WORKSPACE, per_workspace)
        slot = self._add_slot(caller)
        if self._shared is None:
            return slot
        try:
            claim = await self._shared.claim(slot, per_key=per_key, per_workspace=per_workspace)
        except BaseException:
            self.release(slot)
            raise
        if claim is None:
            return slot
        self._remove_slot(slot)
        raise (
            TooManyStreams(_KEY, per_key) if claim == "per_key" else TooManyStreams(_WORKSPACE, per_workspace)
        )

    def release(self, slot: StreamSlot) -> None:
        """Release a slot; further calls do nothing. It does not wait, so a cancelled request can call it."""
        if slot.name not in self._open:
            return
        self._remove_slot(slot)
        if self._shared is not None:
            task = asyncio.create_task(self._free_slot(self._shared, slot))
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)

    async def close(self) -> None:
        """Release all slots, at the end of the process."""
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

    def _add_slot(self, caller: Caller) -> StreamSlot:
        """Count a stream of a caller in this process, and begin to renew shared slots."""
        self._made += 1
        slot = StreamSlot(f"{self._process}:{self._made}", caller.key_id, caller.workspace_id)
        self._open[slot.name] = slot
        self._of_key[slot.key_id] += 1
        self._of_workspace[slot.workspace_id] += 1
        if self._shared is not None and self._renewal is None:
            self._renewal = asyncio.create_task(self._renew_slots(self._shared))
        return slot

    def _remove_slot(self, slot: StreamSlot) -> None:
        """Stop counting a stream in this process."""
        del self._open[slot.name]
        for counts, name in ((self._of_key, slot.key_id), (self._of_workspace, slot.workspace_id)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    async def _free_slot(self, shared: SharedStreamSlots, slot: StreamSlot) -> None:
        """Release a slot in Redis, where API processes share them."""
        async with self._turn:
            await shared.free([slot])

    async def _renew_slots(self, shared: SharedStreamSlots) -> None:
        # A client library may swallow the cancellation that comes while it waits for its server.
        while not self._is_closing:
            await asyncio.sleep(shared.renew_s)
            async with self._turn:
                await shared.renew(list(self._open.values()))


# KEYS: the sets of the key and of the workspace. ARGV: the slot, its lease in ms, and the limits of both.
_CLAIM = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
  if redis.call('ZCARD', KEYS[i]) >= tonumber(ARGV[2 + i]) then return i end
end
for i = 1, 2 do
  redis.call('ZADD', KEYS[i], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return 0
"""

# KEYS: the same two. ARGV: the lease in ms, then the slots; a Redis that restarted empty gets them again.
_RENEW = """
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
for i = 1, 2 do
  for j = 2, #ARGV do redis.call('ZADD', KEYS[i], until_ms, ARGV[j]) end
  redis.call('PEXPIRE', KEYS[i], ARGV[1])
end
"""

_FULL = (None, "per_key", "per_workspace")


class RedisStreamSlots:
    """Slots in Redis: a sorted set for each key and each workspace, ordered by the ends of leases.

    Redis is the clock. While it does not answer, every slot counts as free.
    """

    def __init__(self, url: str, *, lease_s: float = 30.0) -> None:
        """Create the store; it connects at the first claim.

        Args:
            url: address of the Redis.
            lease_s: seconds after which the slots of a killed process are free.
        """
        self.renew_s = lease_s / 3
        self._lease_ms = round(lease_s * 1000)
        self._redis = connect_shared_redis(url)
        self._claim = self._redis.register_script(_CLAIM)
        self._renew_slots = self._redis.register_script(_RENEW)
        self._availability = RedisAvailability("count of open streams")

    async def claim(self, slot: StreamSlot, *, per_key: int, per_workspace: int) -> str | None:
        """Claim a slot; return the limit that is reached, `per_key` or `per_workspace`, or None."""
        if not self._availability.may_call():
            return None
        try:
            full = await self._claim(
                _name_slot_sets(slot), [slot.name, self._lease_ms, per_key, per_workspace]
            )
        except AWAY as error:
            self._availability.note_failure(error)
            return None
        self._availability.note_answer()
        return _FULL[full]

    async def renew(self, slots: Iterable[StreamSlot]) -> None:
        """Renew the leases of these slots."""
        names = defaultdict(list)
        for slot in slots:
            names[tuple(_name_slot_sets(slot))].append(slot.name)
        if not names or not self._availability.may_call():
            return
        try:
            for sets, held in names.items():
                await self._renew_slots(list(sets), [self._lease_ms, *held])
        except AWAY as error:
            self._availability.note_failure(error)
        else:
            self._availability.note_answer()

    async def free(self, slots: Iterable[StreamSlot]) -> None:
        """Release these slots; while Redis does not answer, their leases end by themselves."""
        renewed = list(slots)
        if not renewed or not self._availability.may_call():
            return
        try:
            for slot in renewed:
                for name in _name_slot_sets(slot):
                    await self._redis.zrem(name, slot.name)
        except AWAY as error:
            self._availability.note_failure(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _name_slot_sets(slot: StreamSlot) -> list[str]:
    return [f"recorder:streams:{slot.key_id}", f"recorder:streams:{slot.workspace_id}"]


def open_stream_slots(settings: Settings) -> StreamSlots:
    """Return the slots of open streams, shared where the settings name a Redis."""
    return StreamSlots() if settings.redis_url is None else StreamSlots(RedisStreamSlots(settings.redis_url))
