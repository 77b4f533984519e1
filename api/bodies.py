"""Bodies as they arrive: bounded before they are in memory, and in time. Contract §1 (order of checks)."""

from typing import Any

from starlette.types import Message, Receive

from recorder import limits
from recorder.errors import PayloadTooLarge, RequestTimeout

#: What a server that watches the clock sets in the state of a request whose body does not come.
IS_LATE = "body_is_late"
#: Lengths of so many digits lie below every cap, and need not be read.
_SHORT = len(str(limits.BODY_BYTES)) - 1


def bounded(receive: Receive, announced: bytes | None, limit: int, state: dict[str, Any]) -> Receive:
    """The body, refused as soon as it is known to be too large: by its announced or its counted length.

    Args:
        announced: the Content-Length, where there is one.
        limit: bytes that the address takes.
        state: the request's, in which the server says that it waited too long.

    Raises:
        PayloadTooLarge: at once where the length is announced, else from the call that exceeds it.
        RequestTimeout: from the call that waits for what does not come.
    """
    if announced is not None and len(announced) > _SHORT and _length(announced) > limit:
        raise PayloadTooLarge(limit)
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise PayloadTooLarge(limit)
        if IS_LATE in state:
            raise RequestTimeout(limits.REQUEST_BODY_SECONDS)
        return message

    return receive_bounded


def _length(announced: bytes) -> int:
    return int(announced[:18]) if announced.isdigit() else 0
