"""Limits of what is no body: bytes and headers of a head, its address and query, framing of a body.

The head is checked before any limit of a caller applies, and frameworks read queries, cookies and parameters
of headers in Python: a query of 30,000 parameters took 0.3 s of the event loop, also without a key.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from api.gate.bucket_decisions import Header
from recorder import limits
from recorder.errors import HeadTooLarge, MalformedRequest

_DETAIL: Final = (
    f"Request line and headers may hold at most {limits.REQUEST_HEAD_BYTES} bytes together; there may be at "
    f"most {limits.REQUEST_HEADERS} headers, {limits.REQUEST_HEADER_BYTES} bytes in the values of one "
    f"header, {limits.REQUEST_ADDRESS_BYTES} bytes in the address and {limits.QUERY_PARAMETERS} query "
    "parameters."
)


def make_head_error() -> HeadTooLarge:
    """Return the refusal of a head that is too large, which names the limits."""
    return HeadTooLarge(_DETAIL)


def make_framing_error() -> MalformedRequest:
    """Return the refusal of a body of which too much is framing."""
    text = "The body has too small chunks, or trailers; send it in larger chunks, or with a Content-Length."
    return MalformedRequest(text)


def is_head_too_large(address: bytes, headers: Sequence[Header], *, most_bytes: int) -> bool:
    """Return whether a head is too large, or has too many headers or query parameters.

    Args:
        address: path and query, as far as they arrived.
        headers: name, in lower case, and value of each that arrived.
        most_bytes: bytes that the head has at most; a small one is not measured.
    """
    if len(headers) > limits.REQUEST_HEADERS or address.count(b"&") >= limits.QUERY_PARAMETERS:
        return True
    if most_bytes <= limits.REQUEST_HEADER_BYTES:
        return False
    values = Counter[bytes]()
    for name, value in headers:
        values[name] += len(value)
    return (
        len(address) > limits.REQUEST_ADDRESS_BYTES
        or max(values.values(), default=0) > limits.REQUEST_HEADER_BYTES
        or len(address) + sum(len(name) + len(value) + 4 for name, value in headers)
        > limits.REQUEST_HEAD_BYTES
    )
