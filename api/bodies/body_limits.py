"""Limits of request bodies while they arrive: size, time, rate and memory. Contract §1 (order of checks)."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive

from recorder import limits
from recorder.errors import Overloaded, PayloadTooLarge, RequestTimeout
from recorder.recording.whole_reads import release_memory

if TYPE_CHECKING:
    from api.gate.rate_limits import TokenCharge

#: Name that the server sets in the state of a request whose body is late.
IS_LATE = "body_is_late"
#: A body of at most this size fits into the buffer that each connection has. The gate compares the number of
#: digits of its length.
SMALL_BYTES = 99_999
#: After bodies of so many bytes at once, free memory is returned once no large body is under way.
_RETURNED_BYTES = 32 * 1024 * 1024
_RETURN_AFTER_S = 5.0
#: A body of unknown length is charged, and reserves memory, in portions of this size.
PORTION_BYTES = 262_144


class BoundedBody:
    """Body with a small announced length: refused as soon as more bytes arrive than the endpoint takes."""

    # Every request has one; creating a closure takes twice as long.
    __slots__ = ("_limit", "_receive", "_received", "_state")

    def __init__(self, receive: Receive, limit: int, state: dict[str, Any]) -> None:
        """Create the body before anything is read.

        Args:
            receive: returns the body as it arrives.
            limit: bytes that the endpoint takes.
            state: the request's, in which the server marks a late body.
        """
        self._receive = receive
        self._received = 0
        self._limit = limit
        self._state = state

    async def receive(self) -> Message:
        """Return the next part.

        Raises:
            PayloadTooLarge: if the body exceeds the limit.
            RequestTimeout: if the body is late.
        """
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise PayloadTooLarge(self._limit)
        if IS_LATE in self._state:
            raise RequestTimeout(limits.REQUEST_BODY_SECONDS)
        return message


class LargeBody(BoundedBody):
    """Body with a large or an unknown length: reserves memory until its request ends.

    Memory is reserved when the first part is read, so a request that is refused earlier reserves none.

    Attributes:
        is_complete: whether the whole body was read; if not, the connection cannot be used again.
    """

    __slots__ = ("_announced", "_charge", "_memory", "_owner", "_reserved", "is_complete")

    def __init__(
        self, receive: Receive, announced: int | None, limit: int, memory: "BodyMemory", state: dict[str, Any]
    ) -> None:
        """Create the body before anything is read.

        Args:
            receive: returns the body as it arrives.
            announced: the Content-Length; None for a chunked body.
            limit: bytes that the endpoint takes.
            memory: of all bodies of this process.
            state: the request's, in which the server marks a late body.
        """
        super().__init__(receive, limit, state)
        self._announced = announced
        self._memory = memory
        self._reserved = 0
        self._owner = ""
        self._charge: TokenCharge | None = None
        self.is_complete = False

    @property
    def first_cost(self) -> int:
        """Bytes to charge before anything is read; 0 if nothing will be read."""
        if self._announced is None:
            return min(PORTION_BYTES, self._limit)
        return 0 if self._announced > self._limit else self._announced

    def admit(self, owner: str, charge: "TokenCharge | None") -> None:
        """Allow the body to be read.

        Args:
            owner: the workspace whose share of the memory the body uses.
            charge: charges the bytes beyond `first_cost`; None for requests without a caller.

        Raises:
            PayloadTooLarge: if the announced length exceeds the limit.
        """
        if self._announced is not None and self._announced > self._limit:
            raise PayloadTooLarge(self._limit)
        self._owner = owner
        self._charge = charge

    async def receive(self) -> Message:
        """Return the next part.

        Raises:
            Overloaded: if the process, or the workspace, has no memory left.
            RateLimited: if the key or its workspace has no bytes left for the next portion.
            PayloadTooLarge: if the body exceeds the limit.
            RequestTimeout: if the body is late.
        """
        if self.is_complete:
            return await self._receive()  # waits for the client to disconnect
        if not self._reserved:
            await self._reserve_bytes(self.first_cost)
        elif self._announced is None and self._received >= self._reserved:
            if self._charge is not None:
                await self._charge.pay(PORTION_BYTES)
            await self._reserve_bytes(PORTION_BYTES)
        message = await super().receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_complete = True
            if self._announced is None and self._charge is not None:
                self._charge.refund(self._reserved - self._received)
        return message

    def release(self) -> None:
        """Release the memory; further calls have no effect."""
        self._memory.release(self._owner, self._reserved)
        self._reserved = 0

    async def _reserve_bytes(self, count: int) -> None:
        await self._memory.reserve(self._owner, count)
        self._reserved += count


class BodyMemory:
    """Memory of all bodies in one process, with a cap; a workspace uses at most half of it.

    Used from the event loop. A body that does not fit waits for a moment, in the order of arrival.
    """

    def __init__(self, cap: int) -> None:
        """Create it with no reservations.

        Args:
            cap: bytes of all bodies together; at least two of the largest.
        """
        #: A body waits so many seconds for memory before it is refused.
        self.patience_s = 0.5
        self.returned_bytes, self.return_after_s = _RETURNED_BYTES, _RETURN_AFTER_S
        self._cap = cap
        self._share = max(cap // 2, limits.FRAMES_REQUEST_BYTES)
        self._taken = 0
        self._taken_by: dict[str, int] = {}
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
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (owner, count, turn)
        self._waiting.append(entry)
        self._serve_waiting()
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
        return self._taken + count <= self._cap and self._taken_by.get(owner, 0) + count <= self._share

    def _take_bytes(self, owner: str, count: int) -> None:
        self._taken += count
        self._most_taken = max(self._most_taken, self._taken)
        self._taken_by[owner] = self._taken_by.get(owner, 0) + count
