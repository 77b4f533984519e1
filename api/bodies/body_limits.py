"""Arriving bodies: refused beyond the endpoint's size and time, paid for as they are read. Contract §1."""

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from anyio import CancelScope
from starlette.types import Message, Receive

from api.bodies.body_memory import BodyMemory
from recorder import limits
from recorder.errors import Overloaded, PayloadTooLarge, RequestTimeout

if TYPE_CHECKING:
    from api.gate.rate_limiter import RateLimitCharge

#: Name that the server sets in the state of a request whose body is late.
IS_LATE = "body_is_late"
#: A body of at most this size fits into the buffer that each connection has. The gate compares the number of
#: digits of its length.
SMALL_BYTES = 99_999
#: A body may arrive for half an hour. If it took longer than this, its key is looked up again.
TRUSTED_S = 5.0
#: A body reserves memory in portions of this size; one of unknown length is charged in them too.
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
            raise RequestTimeout(
                limits.REQUEST_BODY_SECONDS, part="body", bytes_per_s=limits.REQUEST_BODY_BYTES_PER_SECOND
            )
        return message


class LargeBody(BoundedBody):
    """Body with a large or an unknown length: holds memory for the bytes that arrived until its request ends.

    Memory is reserved in portions before their bytes are read, so a body that does not arrive holds little.

    Attributes:
        is_complete: whether the whole body was read; if not, the connection cannot be used again.
        reserved: bytes that the body holds.
    """

    __slots__ = (
        "_admitted_at",
        "_announced",
        "_charge",
        "_check_again",
        "_is_ended",
        "_memory",
        "_owner",
        "_reading",
        "is_complete",
        "reserved",
    )

    def __init__(
        self, receive: Receive, announced: int | None, limit: int, memory: BodyMemory, state: dict[str, Any]
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
        self._owner = ""
        self._charge: RateLimitCharge | None = None
        self._check_again: Callable[[], Awaitable[None]] | None = None
        self._admitted_at = 0.0
        self._reading: CancelScope | None = None
        self._is_ended = False
        self.reserved = 0
        self.is_complete = False

    @property
    def first_cost(self) -> int:
        """Bytes to charge before anything is read; 0 if nothing will be read."""
        if self._announced is None:
            return min(PORTION_BYTES, self._limit)
        return 0 if self._announced > self._limit else self._announced

    def admit(
        self,
        owner: str,
        charge: "RateLimitCharge | None",
        check_again: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Allow the body to be read.

        Args:
            owner: the workspace whose share of the memory the body uses.
            charge: charges the bytes beyond `first_cost`; None for requests without a caller.
            check_again: raises if the caller may send requests no longer; called at the end of a slow body.

        Raises:
            PayloadTooLarge: if the announced length exceeds the limit.
        """
        if self._announced is not None and self._announced > self._limit:
            raise PayloadTooLarge(self._limit)
        self._owner = owner
        self._charge = charge
        self._check_again = check_again
        self._admitted_at = time.monotonic()

    async def receive(self) -> Message:
        """Return the next part.

        Raises:
            Overloaded: if the process, or the workspace, has no memory left.
            RateLimited: if the key or its workspace has no bytes left for the next portion.
            PayloadTooLarge: if the body exceeds the limit.
            RequestTimeout: if the body is late.
            Unauthenticated, Forbidden: if the key, or its workspace, is not valid any more.
        """
        if self.is_complete:
            return await self._receive()  # waits for the client to disconnect
        with CancelScope() as self._reading:
            if self._received >= self.reserved:
                await self._reserve_portion()
            message = await super().receive()
        if self._is_ended:
            raise Overloaded
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_complete = True
            self._memory.remove_arriving_body(self._owner, self)
            if self._announced is None and self._charge is not None:
                self._charge.refund(self.reserved - self._received)
            if self._check_again is not None and time.monotonic() - self._admitted_at > TRUSTED_S:
                await self._check_again()
        return message

    def end(self) -> None:
        """Refuse the rest of a body that is not complete, since others need the memory."""
        self._is_ended = True
        if self._reading is not None:
            self._reading.cancel()

    def release(self) -> None:
        """Release the memory and what holds the request; further calls have no effect."""
        self._memory.remove_arriving_body(self._owner, self)
        self._memory.release(self._owner, self.reserved)
        self.reserved = 0
        self._charge = self._check_again = self._reading = None

    async def _reserve_portion(self) -> None:
        """Reserve memory for the next portion of the body; pay its bytes if no length was announced."""
        count = PORTION_BYTES
        if self._announced is not None:
            count = min(count, self._announced - self.reserved)
        elif self.reserved and self._charge is not None:
            await self._charge.pay(count)
        if count:  # a server that passes on more than was announced is bounded by the limit alone
            await self._memory.reserve(self._owner, count)
        self.reserved += count
        self._memory.add_arriving_body(self._owner, self)
