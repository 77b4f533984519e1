"""Memory of request bodies under way in one process, shared by the workspaces. Contract §1 (rate limits)."""

import asyncio
from collections import deque
from typing import Protocol

from recorder import limits
from recorder.errors import Overloaded
from recorder.recording.whole_reads import release_memory

#: After bodies of so many bytes at once, free memory is returned once no large body is under way.
_RETURNED_BYTES = 32 * 1024 * 1024
_RETURN_AFTER_S = 5.0


class BodyHoldingMemory(Protocol):
    """Body that is not complete and holds memory."""

    reserved: int

    def end(self) -> None:
        """Refuse the rest of the body; its memory is released soon."""


class BodyMemory:
    """Memory of all bodies in one process, with a cap.

    A workspace may hold as many bytes as it leaves free for others, so alone at most half of the cap; or
    those of one largest body. A body that does not fit waits for a moment, in the order of arrival. If the
    cap is reached, the workspace that holds most loses bodies that are still arriving: the oldest, which
    arrive most slowly.

    Used from the event loop.
    """

    def __init__(self, cap: int) -> None:
        """Create it with no reservations.

        Args:
            cap: bytes of all bodies together; at least two of the largest.
        """
        #: A body waits so many seconds for memory before it is refused; after half of them others are ended.
        self.patience_s = 0.5
        self.returned_bytes, self.return_after_s = _RETURNED_BYTES, _RETURN_AFTER_S
        self._cap = cap
        self._taken = 0
        self._taken_by: dict[str, int] = {}
        #: Bodies of each workspace that are not complete; the oldest is the first.
        self._arriving: dict[str, dict[BodyHoldingMemory, None]] = {}
        #: Bodies that were ended and still hold memory.
        self._ending: set[BodyHoldingMemory] = set()
        #: Most bytes at once since free memory was returned to the system.
        self._most_taken = 0
        self._returning: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """Bytes that are reserved."""
        return self._taken

    async def reserve(self, owner: str, count: int) -> None:
        """Reserve memory, to be released with `release`.

        Raises:
            Overloaded: if not enough memory becomes free in time.
        """
        if not self._waiting and self._fits_in_memory(owner, count):
            self._take_bytes(owner, count)
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        entry = (owner, count, turn)
        self._waiting.append(entry)
        self._serve_waiting()
        making_room = loop.call_later(self.patience_s / 2, self._make_room, owner, count)
        try:
            await asyncio.wait_for(asyncio.shield(turn), self.patience_s)
        except BaseException as error:
            if turn.done():  # memory was reserved at the moment at which the wait ended
                if isinstance(error, TimeoutError):
                    return
                self.release(owner, count)
            else:
                self._waiting.remove(entry)
                turn.cancel()
                self._serve_waiting()
            if isinstance(error, TimeoutError):
                raise Overloaded from error
            raise
        finally:
            making_room.cancel()

    def release(self, owner: str, count: int) -> None:
        """Release memory, and serve waiting bodies."""
        if not count:
            return
        self._taken -= count
        self._taken_by[owner] -= count
        if not self._taken_by[owner]:
            del self._taken_by[owner]
        self._serve_waiting()
        if not self._taken and self._most_taken >= self.returned_bytes and self._returning is None:
            loop = asyncio.get_running_loop()
            self._returning = loop.call_later(self.return_after_s, self._return_memory, loop)

    def add_arriving_body(self, owner: str, body: BodyHoldingMemory) -> None:
        """Register a body that still arrives: it may be refused to free its memory. Once is enough."""
        self._arriving.setdefault(owner, {})[body] = None

    def remove_arriving_body(self, owner: str, body: BodyHoldingMemory) -> None:
        """Forget a body that is complete or refused, if it was registered."""
        self._ending.discard(body)
        bodies = self._arriving.get(owner)
        if bodies is not None:
            bodies.pop(body, None)
            if not bodies:
                del self._arriving[owner]

    def _make_room(self, owner: str, count: int) -> None:
        """End bodies of the workspace that holds most, if it would still hold more than the waiting one."""
        missing = self._taken + count - self._cap - sum(body.reserved for body in self._ending)
        if missing <= 0 or not self._may_take_body_bytes(owner, count):
            return
        most = max(self._arriving, key=lambda other: self._taken_by[other], default=owner)
        if self._taken_by.get(most, 0) <= self._taken_by.get(owner, 0) + count:
            return
        for body in list(self._arriving[most]):
            if missing <= 0:
                return
            missing -= body.reserved
            self.remove_arriving_body(most, body)
            self._ending.add(body)
            body.end()

    def _return_memory(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return free memory to the system in a thread; if bodies are under way, the last one asks again."""
        self._returning = None
        if not self._taken:
            self._most_taken = 0
            loop.run_in_executor(None, release_memory)

    def _serve_waiting(self) -> None:
        """Reserve memory for waiting bodies; those of a workspace at its share are skipped."""
        for entry in list(self._waiting):
            owner, count, turn = entry
            if self._taken + count > self._cap:
                return
            if self._fits_in_memory(owner, count):
                self._waiting.remove(entry)
                self._take_bytes(owner, count)
                turn.set_result(None)

    def _fits_in_memory(self, owner: str, count: int) -> bool:
        return self._taken + count <= self._cap and self._may_take_body_bytes(owner, count)

    def _may_take_body_bytes(self, owner: str, count: int) -> bool:
        """Return whether the share of a workspace allows more bytes."""
        held, free = self._taken_by.get(owner, 0) + count, self._cap - self._taken - count
        return held <= max(free, limits.FRAMES_REQUEST_BYTES)

    def _take_bytes(self, owner: str, count: int) -> None:
        self._taken += count
        self._most_taken = max(self._most_taken, self._taken)
        self._taken_by[owner] = self._taken_by.get(owner, 0) + count
