"""Request bodies as they arrive: bounded in size, time, rate and memory. Contract §1 (order of checks)."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive

from recorder import limits
from recorder.errors import Overloaded, PayloadTooLarge, RequestTimeout

if TYPE_CHECKING:
    from api.gate.rate_limits import Charge

#: What a server that watches the clock sets in the state of a request whose body does not come.
IS_LATE = "body_is_late"
#: A body of at most so many bytes is little more than the buffer that each connection has anyway. The gate
#: knows it by its number of digits.
SMALL_BYTES = 99_999
#: A body of unknown length is paid for, and given memory, by so many bytes at once.
PORTION_BYTES = 262_144
#: A body waits this long for memory before it is refused.
_PATIENCE_S = 0.5


class BoundedBody:
    """A body that is announced as small: refused as soon as it is known to be too large."""

    # Every request has one; a closure takes twice as long to make.
    __slots__ = ("_limit", "_receive", "_received", "_state")

    def __init__(self, receive: Receive, limit: int, state: dict[str, Any]) -> None:
        """Create it before anything is read.

        Args:
            receive: returns the body as it arrives.
            limit: bytes that the address takes.
            state: the request's, in which the server says that it waited too long.
        """
        self._receive = receive
        self._received = 0
        self._limit = limit
        self._state = state

    async def receive(self) -> Message:
        """Return the next part.

        Raises:
            PayloadTooLarge: from the call that exceeds the limit.
            RequestTimeout: from the call that waits for what does not come.
        """
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise PayloadTooLarge(self._limit)
        if IS_LATE in self._state:
            raise RequestTimeout(limits.REQUEST_BODY_SECONDS)
        return message


class LargeBody:
    """A body that is announced as large, or not announced: takes memory while its request is under way.

    Memory is taken when the first part is read, not before, so a request that is refused earlier takes none.

    Attributes:
        is_complete: whether all of it was read; if not, the connection cannot be used again.
    """

    __slots__ = (
        "_announced",
        "_charge",
        "_limit",
        "_memory",
        "_owner",
        "_receive",
        "_received",
        "_reserved",
        "_state",
        "is_complete",
    )

    def __init__(
        self, receive: Receive, announced: int | None, limit: int, memory: "BodyMemory", state: dict[str, Any]
    ) -> None:
        """Create it before anything is read.

        Args:
            receive: returns the body as it arrives.
            announced: the Content-Length; None for a body that comes in chunks.
            limit: bytes that the address takes.
            memory: of all bodies of this process.
            state: the request's, in which the server says that it waited too long.
        """
        self._receive = receive
        self._announced = announced
        self._limit = limit
        self._memory = memory
        self._state = state
        self._received = self._reserved = 0
        self._owner = ""
        self._charge: Charge | None = None
        self.is_complete = False

    @property
    def first_cost(self) -> int:
        """Bytes to pay for before anything is read; 0 where nothing will be read."""
        if self._announced is None:
            return min(PORTION_BYTES, self._limit)
        return 0 if self._announced > self._limit else self._announced

    def admit(self, owner: str, charge: "Charge | None") -> None:
        """Allow it to be read.

        Args:
            owner: the workspace whose share of the memory it takes.
            charge: pays for what comes beyond `first_cost`; None where nobody pays.

        Raises:
            PayloadTooLarge: if more is announced than the address takes.
        """
        if self._announced is not None and self._announced > self._limit:
            raise PayloadTooLarge(self._limit)
        self._owner = owner
        self._charge = charge

    async def receive(self) -> Message:
        """Return the next part.

        Raises:
            Overloaded: if the process, or the workspace, has no memory left for it.
            RateLimited: if the key or its workspace has no bytes left for the next portion.
            PayloadTooLarge: from the call that exceeds the limit.
            RequestTimeout: from the call that waits for what does not come.
        """
        if self.is_complete:
            return await self._receive()  # waits for the client to go away
        if not self._reserved:
            await self._reserve(self.first_cost)
        elif self._announced is None and self._received >= self._reserved:
            await self._reserve_portion()
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise PayloadTooLarge(self._limit)
        if IS_LATE in self._state:
            raise RequestTimeout(limits.REQUEST_BODY_SECONDS)
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_complete = True
            if self._announced is None and self._charge is not None:
                self._charge.refund(self._reserved - self._received)
        return message

    def release(self) -> None:
        """Release its memory; again is no harm."""
        self._memory.release(self._owner, self._reserved)
        self._reserved = 0

    async def _reserve(self, count: int) -> None:
        await self._memory.reserve(self._owner, count)
        self._reserved += count

    async def _reserve_portion(self) -> None:
        if self._charge is not None:
            await self._charge.pay(PORTION_BYTES)
        await self._reserve(PORTION_BYTES)


class BodyMemory:
    """Memory of all bodies under way in one process: one cap, of which a workspace takes at most half.

    Used from the event loop. A body that does not fit waits for a moment, first come, first served.
    """

    def __init__(self, cap: int) -> None:
        """Create it with nothing taken.

        Args:
            cap: bytes of all bodies together; at least two of the largest.
        """
        self._cap = cap
        self._share = max(cap // 2, limits.FRAMES_REQUEST_BYTES)
        self._taken = 0
        self._taken_by: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """Bytes that are taken."""
        return self._taken

    async def reserve(self, owner: str, count: int) -> None:
        """Take memory, to be given to `release`.

        Raises:
            Overloaded: if so much does not come free in time.
        """
        if not self._waiting and self._fits(owner, count):
            self._take(owner, count)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (owner, count, turn)
        self._waiting.append(entry)
        self._serve()
        try:
            await asyncio.wait_for(asyncio.shield(turn), _PATIENCE_S)
        except BaseException as error:
            if turn.done():  # it came in the moment in which the wait ended
                if isinstance(error, TimeoutError):
                    return
                self.release(owner, count)
            else:
                self._waiting.remove(entry)
                turn.cancel()
                self._serve()
            if isinstance(error, TimeoutError):
                raise Overloaded from error
            raise

    def release(self, owner: str, count: int) -> None:
        """Give memory back, and serve those who wait."""
        if not count:
            return
        self._taken -= count
        self._taken_by[owner] -= count
        if not self._taken_by[owner]:
            del self._taken_by[owner]
        self._serve()

    def _serve(self) -> None:
        """Give those who wait their turn; a workspace that has its share lets others pass."""
        for entry in list(self._waiting):
            owner, count, turn = entry
            if self._taken + count > self._cap:
                return
            if self._fits(owner, count):
                self._waiting.remove(entry)
                self._take(owner, count)
                turn.set_result(None)

    def _fits(self, owner: str, count: int) -> bool:
        return self._taken + count <= self._cap and self._taken_by.get(owner, 0) + count <= self._share

    def _take(self, owner: str, count: int) -> None:
        self._taken += count
        self._taken_by[owner] = self._taken_by.get(owner, 0) + count
