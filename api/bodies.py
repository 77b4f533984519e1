"""Bodies as they arrive: bounded before they are in memory, and in time. Contract §1 (order of checks)."""

from typing import Any

from starlette.types import Message, Receive

from recorder import limits
from recorder.errors import PayloadTooLarge, RequestTimeout

#: What a server that watches the clock sets in the state of a request whose body does not come.
IS_LATE = "body_is_late"
#: Lengths of so many digits lie below every cap, and need not be read.
_SHORT = len(str(limits.BODY_BYTES)) - 1


class BoundedBody:
    """The body, refused as soon as it is known to be too large: by its announced or its counted length."""

    # Every request has one; a closure takes twice as long to make.
    __slots__ = ("_limit", "_receive", "_received", "_state")

    def __init__(self, receive: Receive, announced: bytes | None, limit: int, state: dict[str, Any]) -> None:
        """Look at what is announced.

        Args:
            receive: gives the body as it arrives.
            announced: the Content-Length, where there is one.
            limit: bytes that the address takes.
            state: the request's, in which the server says that it waited too long.

        Raises:
            PayloadTooLarge: if more is announced.
        """
        if announced is not None and len(announced) > _SHORT and _length(announced) > limit:
            raise PayloadTooLarge(limit)
        self._receive = receive
        self._received = 0
        self._limit = limit
        self._state = state

    async def receive(self) -> Message:
        """The next part.

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


def _length(announced: bytes) -> int:
    return int(announced[:18]) if announced.isdigit() else 0
