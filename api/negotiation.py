"""Content negotiation: formats by the Accept header, parts by the Range header. RFC 9110 §12.5.1, §14."""

import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse

from recorder.errors import NotAcceptable, RangeNotSatisfiable


def negotiate_format(request: Request, *given: str) -> str:
    """Return the format that the header names; the first of `given` if it allows any.

    Raises:
        NotAcceptable: if the header names only other formats.
    """
    qualities = _read_accept_qualities(",".join(request.headers.getlist("accept")))
    named = [(quality, name) for name, quality in qualities.items() if name in given and quality > 0]
    if named:
        return max(named, key=lambda pair: pair[0])[1]
    if not qualities or any(
        _allows_any_format(name, given) for name, quality in qualities.items() if quality > 0
    ):
        return given[0]
    raise NotAcceptable(" or ".join(given))


def _read_accept_qualities(header: str) -> dict[str, float]:
    """Return the media ranges with their quality, in the order of the header."""
    qualities = {}
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name:
            qualities[name] = _parse_accept_quality(parameters)
    return qualities


def _parse_accept_quality(parameters: list[str]) -> float:
    values = (item.removeprefix("q=") for item in parameters if item.startswith("q="))
    try:
        return float(next(values, "1"))
    except ValueError:
        return 1.0


def _allows_any_format(name: str, given: tuple[str, ...]) -> bool:
    return name == "*/*" or name == f"{given[0].partition('/')[0]}/*"


async def get_range(
    range_header: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header(alias="If-Range", include_in_schema=False)] = None,
) -> str | None:
    """Return the header `Range`; None with `If-Range`: no answer has a validator that could match it."""
    return range_header if if_range is None else None


ByteRange = Annotated[str | None, Depends(get_range)]

_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)", re.ASCII)
#: Positions with more digits lie beyond every body; to convert thousands of digits takes quadratic time.
_POSITION_DIGITS = 18
_BEYOND = 10**_POSITION_DIGITS


def respond_with_byte_range(
    read: Callable[[int, int], bytes], size: int, content_type: str, range_header: str | None
) -> Response:
    """Return 200 with all bytes of a body, or 206 with the requested range, and read no others.

    Args:
        read: returns the bytes from its first argument to its second, exclusive.
        size: of the whole body.
        content_type: of the body.
        range_header: the request's; None for the whole body.

    Raises:
        RangeNotSatisfiable: if the range is outside of the bytes.
    """
    first, last, headers = _select_byte_range(range_header, size)
    status = 206 if "Content-Range" in headers else 200
    return Response(read(first, last + 1), status, headers, content_type)


def respond_with_streamed_range(
    read: Callable[[int, int], AsyncIterator[bytes]],
    size: int,
    content_type: str,
    range_header: str | None,
    headers: dict[str, str],
) -> Response:
    """Return 200 or 206 for a body that is read in pieces.

    Args:
        read: yields the bytes from its first argument to its second, exclusive.
        size: of the whole body.
        content_type: of the body.
        range_header: the request's; None for the whole body.
        headers: further headers of the answer.

    Raises:
        RangeNotSatisfiable: if the range is outside of the body.
    """
    first, last, range_headers = _select_byte_range(range_header, size)
    status = 206 if "Content-Range" in range_headers else 200
    headers = {**headers, **range_headers, "Content-Length": str(last + 1 - first)}
    return StreamingResponse(read(first, last + 1), status, headers, content_type)


def _select_byte_range(header: str | None, size: int) -> tuple[int, int, dict[str, str]]:
    """Return the first and the last byte to send, and the headers; a malformed header means all bytes."""
    headers = {"Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    match = _RANGE.fullmatch(header) if header else None
    if match is None or match[0] == "bytes=-":
        return 0, size - 1, headers
    if match[1]:
        first = _parse_position(match[1])
        last = min(_parse_position(match[2]), size - 1) if match[2] else size - 1
    else:  # the last bytes
        first, last = max(0, size - _parse_position(match[2])), size - 1
    if first >= size or first > last:
        raise RangeNotSatisfiable(size)
    return first, last, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}


def _parse_position(digits: str) -> int:
    """Return the number that digits name, or one beyond every body if they are many."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= _POSITION_DIGITS else _BEYOND
