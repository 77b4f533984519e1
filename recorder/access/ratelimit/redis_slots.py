"""Slots of open streams in Redis: a sorted set for each key and each workspace, by the end of their leases.

Redis holds the clock.
"""

from collections import defaultdict
from collections.abc import Iterable

from recorder.access.ratelimit.redis_buckets import AWAY, Presence, connect
from recorder.access.ratelimit.stream_slots import Slot

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

# KEYS: the same two. ARGV: the lease in ms, then the slots. A Redis that came back empty learns of them so.
_RENEW = """
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
for i = 1, 2 do
  for j = 2, #ARGV do redis.call('ZADD', KEYS[i], until_ms, ARGV[j]) end
  redis.call('PEXPIRE', KEYS[i], ARGV[1])
end
"""

_FULL = (None, "per_key", "per_workspace")


class RedisSlots:
    """The slots of all processes that share a Redis; while it is away every slot is free."""

    def __init__(self, url: str, *, lease_s: float = 30.0) -> None:
        """Connect when the first slot is claimed.

        Args:
            lease_s: seconds after which the slots of a killed process are free.
        """
        self.renew_s = lease_s / 3
        self._lease_ms = round(lease_s * 1000)
        self._redis = connect(url)
        self._claim = self._redis.register_script(_CLAIM)
        self._renew = self._redis.register_script(_RENEW)
        self._presence = Presence("count of open streams")

    async def claim(self, slot: Slot, *, per_key: int, per_workspace: int) -> str | None:
        """Take a slot; where none is free, say whose are all taken: `per_key` or `per_workspace`."""
        if not self._presence.may_ask():
            return None
        try:
            full = await self._claim(_sets(slot), [slot.name, self._lease_ms, per_key, per_workspace])
        except AWAY as error:
            self._presence.failed(error)
            return None
        self._presence.answered()
        return _FULL[full]

    async def renew(self, slots: Iterable[Slot]) -> None:
        """Hold these for another lease."""
        names = defaultdict(list)
        for slot in slots:
            names[tuple(_sets(slot))].append(slot.name)
        if not names or not self._presence.may_ask():
            return
        try:
            for sets, held in names.items():
                await self._renew(list(sets), [self._lease_ms, *held])
        except AWAY as error:
            self._presence.failed(error)
        else:
            self._presence.answered()

    async def free(self, slots: Iterable[Slot]) -> None:
        """Give these back; where Redis is away, their leases run out."""
        given = list(slots)
        if not given or not self._presence.may_ask():
            return
        try:
            for slot in given:
                for name in _sets(slot):
                    await self._redis.zrem(name, slot.name)
        except AWAY as error:
            self._presence.failed(error)

    async def close(self) -> None:
        """Give the connections back."""
        await self._redis.aclose()


def _sets(slot: Slot) -> list[str]:
    return [f"recorder:streams:{slot.key_id}", f"recorder:streams:{slot.workspace_id}"]
