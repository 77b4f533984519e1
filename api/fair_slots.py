"""Slots of work such as database transactions, shared fairly between the workspaces of one process."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

#: Work of requests that may take long, and how much of each kind runs at a time in a process.
SlowWork = Literal[
    "comparison",
    "destination probe",
    "frame upload",
    "hard delete",
    "hosted file",
    "snapshot",
    "stop search",
    "tag anchor",
]
WORK_SLOTS: dict[SlowWork, int] = {
    "comparison": 4,
    "destination probe": 8,
    "frame upload": 16,
    "hard delete": 4,  # removes objects from the stores
    "hosted file": 8,
    "snapshot": 8,
    "stop search": 4,  # reads through sessions
    "tag anchor": 4,  # of tags, replays and recoveries; may read through the session
}
#: Transactions of requests at a time.
DATABASE_SLOTS = 20
#: Worker threads. On SQLite writers wait for each other in theirs, and the one that may write needs one more
#: to continue. So no work that waits runs in these threads without a slot; a few threads are left for work
#: that takes milliseconds.
WORKER_THREADS = DATABASE_SLOTS + sum(WORK_SLOTS.values()) + 16


class FairSlots:
    """Slots that owners share fairly, and the requests that wait for one; used from one event loop.

    An owner may hold as many slots as it leaves free, alone a half. Of 16 slots, owners that all want more
    hold 8, 4, 2, 1 and 1: a few of them together leave one to another. Owners that wait take turns.
    """

    def __init__(self, slots: int) -> None:
        """Create slots that are all free.

        Args:
            slots: number of slots, of all owners.
        """
        self._free = slots
        self._held: Counter[str] = Counter()
        #: Owners in the order of their turns, each with its requests in the order of their arrival.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def count_waiting(self) -> int:
        """Return the number of requests that wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def hold(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it while the block runs."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)

    async def acquire(self, owner: str) -> None:
        """Wait for a slot; call `release` at the end."""
        if self._may_take_slot(owner):
            self._take_slot(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given a slot before it was cancelled
                self.release(owner)
            elif turn in self._waiting.get(owner, ()):
                self._remove_waiting_turn(owner, turn)
            raise

    def release(self, owner: str) -> None:
        """Release a slot; owners that wait for one get it in turn."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while (following := next(filter(self._may_take_slot, self._waiting), None)) is not None:
            turn = self._waiting[following][0]
            self._remove_waiting_turn(following, turn)
            if not turn.cancelled():
                self._take_slot(following)
                turn.set_result(None)
                if following in self._waiting:
                    self._waiting.move_to_end(following)

    def _may_take_slot(self, owner: str) -> bool:
        return self._free > self._held[owner]

    def _take_slot(self, owner: str) -> None:
        self._free -= 1
        self._held[owner] += 1

    def _remove_waiting_turn(self, owner: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting[owner]
        turns.remove(turn)
        if not turns:
            del self._waiting[owner]
