"""Which of several formats a request asks for by its Accept header. RFC 9110 §12.5.1, contract §7 (audit)."""

import re
from collections.abc import Callable, Iterator

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from recorder.errors import NotAcceptable, RangeNotSatisfiable


def choose_format(request: Request, *given: str) -> str:
    """The format that the header names; the first of `given` where it leaves the choice to us.

    Raises:
        NotAcceptable: if it names formats, and none of these.
    """
    wanted = _wanted(",".join(request.headers.getlist("accept")))
    named = [(quality, name) for name, quality in wanted.items() if name in given and quality > 0]
    if named:
        return max(named, key=lambda pair: pair[0])[1]
    if not wanted or any(_fits_all(name, given) for name, quality in wanted.items() if quality > 0):
        return given[0]
    raise NotAcceptable(" or ".join(given))


def _wanted(header: str) -> dict[str, float]:
    """Media ranges with their quality, in the order of the header."""
    found = {}
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name:
            found[name] = _quality(parameters)
    return found


def _quality(parameters: list[str]) -> float:
    text = next((one.removeprefix("q=") for one in parameters if one.startswith("q=")), "1")
    try:
        return float(text)
    except ValueError:
        return 1.0


def _fits_all(name: str, given: tuple[str, ...]) -> bool:
    return name == "*/*" or name == f"{given[0].partition('/')[0]}/*"


_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


def ranged(data: bytes, content_type: str, range_header: str | None) -> Response:
    """Return 200 with all bytes, or 206 with the range asked for.

    Raises:
        RangeNotSatisfiable: if the range lies outside.
    """
    headers = {"Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    match = _RANGE.fullmatch(range_header) if range_header else None
    if match is None or match[0] == "bytes=-":
        return Response(data, 200, headers, content_type)
    first, last = _bounds(match[1], match[2], len(data))
    if first >= len(data) or first > last:
        raise RangeNotSatisfiable(len(data))
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], 206, headers, content_type)


def ranged_stream(
    read: Callable[[int, int], Iterator[bytes]],
    size: int,
    content_type: str,
    range_header: str | None,
    headers: dict[str, str],
) -> Response:
    """Return the same for a body that is read piece by piece.

    Args:
        read: gives the bytes from its first argument up to, not including, its second.
        size: of the whole body.
        content_type: of the body.
        range_header: what the request asks for; None for all.
        headers: further ones of the answer.

    Raises:
        RangeNotSatisfiable: if the range lies outside.
    """
    headers = {**headers, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    match = _RANGE.fullmatch(range_header) if range_header else None
    if match is None or match[0] == "bytes=-":
        headers["Content-Length"] = str(size)
        return StreamingResponse(read(0, size), 200, headers, content_type)
    first, last = _bounds(match[1], match[2], size)
    if first >= size or first > last:
        raise RangeNotSatisfiable(size)
    headers |= {"Content-Range": f"bytes {first}-{last}/{size}", "Content-Length": str(last + 1 - first)}
    return StreamingResponse(read(first, last + 1), 206, headers, content_type)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1
