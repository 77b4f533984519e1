"""Heads of HTTP/1.1 requests and answers, as the proxy of a live replay reads and writes them."""

import asyncio
import re

from recorder.net.addresses import CalledAddress

REQUEST_LINE = re.compile(rb"([A-Za-z]{1,20}) ([^\x00-\x20\x7f]{1,32768}) HTTP/1\.[01]")
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}):[ \t]*([^\r\n\x00]*)")
#: Fields of one connection, which are not passed on.
_OWN_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection",
     b"te", b"trailer", b"upgrade")
)  # fmt: skip
Fields = list[tuple[bytes, bytes]]


async def read_http_head(reader: asyncio.StreamReader) -> tuple[bytes, Fields]:
    """Return first line and fields, their names in lower case.

    Raises:
        ValueError: if it is too long, or no head.
        EOFError: if it is cut.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError from error
    line, *rest = head[:-4].split(b"\r\n")
    fields = []
    for text in rest:
        parts = _FIELD.fullmatch(text)
        if parts is None:
            raise ValueError
        fields.append((parts[1].lower(), parts[2].rstrip(b" \t")))
    return line, fields


def format_http_head(line: bytes, fields: Fields, target: CalledAddress | None) -> bytes:
    """Return the bytes of a head to forward: without hop-by-hop headers, and with the `Host` of a target."""
    named = {
        name.strip().lower()
        for field, value in fields
        if field == b"connection"
        for name in value.split(b",")
    }
    dropped = _OWN_FIELDS | named | ({b"host"} if target is not None else set())
    lines = [line]
    if target is not None:
        lines.append(b"Host: " + target.host_header.encode())
    lines += [name + b": " + value for name, value in fields if name not in dropped]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])
