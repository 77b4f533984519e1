"""Bodies as they arrive: bounded before they are in memory. Contract §1 (order of checks)."""

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from recorder.errors import PayloadTooLarge


def bounded(receive: Receive, headers: Headers, limit: int) -> Receive:
    """The body, refused as soon as it is known to be too large: by its announced or its counted length.

    Args:
        limit: bytes that the address takes.

    Raises:
        PayloadTooLarge: at once where the length is announced, else from the call that exceeds it.
    """
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > limit:
        raise PayloadTooLarge(limit)
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise PayloadTooLarge(limit)
        return message

    return receive_bounded
