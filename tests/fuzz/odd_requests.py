"""Requests that no OpenAPI client makes: HEAD, byte ranges, odd methods, charsets and escapes, broken bytes.

Each is sent over a socket of its own. Every answer must have the headers of the interface, every error a
problem body with the request id, and none is 5xx.
"""

import json
import re
import socket
from collections import Counter
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FETCH", "get", "")
RANGES = (
    "bytes=0-",
    "bytes=0-9",
    "bytes=-5",
    "bytes=9999999999-",
    "bytes=5-4",
    "bytes=-0",
    "bytes=a-b",
    "bytes=",
    "x",
)
CHARSETS = ("utf-8", "UTF-8", "latin-1", "utf-16", "utf-7", '"utf8"', "", "x" * 300, "utf-8; charset=latin-1")
TYPES = ("application/json", "multipart/form-data; boundary=b", "text/plain", "application/xml", "", "a/b/c")
ESCAPES = ("%", "%z", "%zz", "%00", "%ff", "%c3%28", "%C3%A9", "%2F", "%2e%2e", "%0a", "%25", "+", "%u0041")
QUERIES = (
    "",
    "?limit=5",
    "?limit=%",
    "?x=1",
    "?limit=5&limit=6",
    "?cursor=a",
    "?since=yesterday",
    "?type=a&type=b",
)
VERSIONS = ("HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "http/1.1", "")
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"\xff\xfe",
    b'{"workflow": "checkout"}',
    b'{"events": [{"t_ms": 1, "type": "a"}]}',
    b"--b--",
)
CHUNKS = (
    b"2\r\n{}\r\n0\r\n\r\n",
    b"zz\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}x\r\n0\r\n\r\n",
    b"-1\r\n",
    b"ffffffffffffffff1\r\n{}",
)
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
HEADERS = (
    b"x-request-id",
    b"service-version",
    b"x-ratelimit-limit",
    b"x-ratelimit-remaining",
    b"x-ratelimit-reset",
    b"x-scope",
)
#: A request that a change made incomplete is waited for by the service, and not answered.
SILENCE_S = 0.3


@dataclass(frozen=True)
class Target:
    """The service, a key, and the ids in its addresses."""

    url: str
    key: str
    paths: list[str]
    known: dict[str, list[str]]

    def dial(self) -> socket.socket:
        """A fresh connection."""
        address = urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port), timeout=SILENCE_S)


def make_request(target: Target, random: Random) -> bytes:
    """One odd request."""
    path = re.sub(
        r"\{(\w+)\}",
        lambda name: random.choice(target.known.get(name[1], ["nothing"])),
        random.choice(target.paths),
    )
    # One oddity at a time, mostly: a request with several is refused for the first.
    query = random.choice(QUERIES) if random.random() < 0.4 else ""
    version = random.choice(VERSIONS) if random.random() < 0.15 else "HTTP/1.1"
    headers, body = ["Host: 127.0.0.1"], b""
    method = random.choice(("HEAD", "HEAD", "GET", "POST", *METHODS))
    if path.endswith("/stream") and method == "GET":
        method = "HEAD"  # a stream has no end
    if random.random() < 0.9:
        headers.append(f"Authorization: Bearer {target.key}")
    if random.random() < 0.4:
        headers.append(f"Range: {random.choice(RANGES)}")
    if random.random() < 0.1:
        path += random.choice(("", "/", "x")) + random.choice(ESCAPES)
    if random.random() < 0.1:
        query += ("&" if query else "?") + random.choice(ESCAPES) + "=" + random.choice(ESCAPES)
    if path.endswith("/ws") or random.random() < 0.03:
        headers += [line for line in HANDSHAKE if random.random() < 0.9]
    if method not in ("GET", "HEAD") or random.random() < 0.1:
        headers.append(f"Content-Type: {random.choice(TYPES)}; charset={random.choice(CHARSETS)}")
        if random.random() < 0.3:
            headers.append("Transfer-Encoding: chunked")
            body = random.choice(CHUNKS)
        else:
            body = random.choice(BODIES)
            headers.append(f"Content-Length: {len(body)}")
    headers.append("Connection: close")
    raw = (
        "\r\n".join([f"{method} {path}{query} {version}", *headers, "", ""]).encode("latin-1", "replace")
        + body
    )
    return _change(raw, random) if random.random() < 0.3 else raw


def _change(raw: bytes, random: Random) -> bytes:
    """Change a request by a few bytes."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(raw))
        piece = random.choice(
            (b"\0", b"\r", b"\n", b" ", b":", b"\xff", b"\r\n\r\n", bytes([random.randrange(256)]))
        )
        raw = raw[:at] + piece + raw[at + random.choice((0, 0, 1, 5)) :]
    return raw


def send(target: Target, raw: bytes) -> bytes:
    """Return the bytes until the service closes the connection, or is silent."""
    received = b""
    with target.dial() as connection:
        try:
            connection.sendall(raw)
            while chunk := connection.recv(65_536):
                received += chunk
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return received


def judge(raw: bytes, received: bytes) -> int | None:
    """The status of an answer that is complete; None where none came.

    Raises:
        AssertionError: if it lacks a header or the request id, or is 5xx.
    """
    if not received:
        return None
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    status = int(first.split()[1])
    context = (raw, received[:2000])
    assert status < 500, context
    if status == 101:
        return status
    assert all(headers.get(name) for name in HEADERS), context
    # Line ends before a request are skipped (RFC 9112 §2.2).
    is_head = raw.lstrip(b"\r\n").startswith(b"HEAD ")
    if is_head and not body:
        return status
    # A body behind HEAD is that of bytes that are no request: they have no method.
    assert not is_head or headers[b"x-scope"] == b"per_address", context
    if status >= 400:
        assert headers[b"content-type"] == b"application/problem+json", context
        length = int(headers[b"content-length"])
        assert len(body) >= length, context
        problem = json.loads(body[:length])
        assert problem["request_id"].encode() == headers[b"x-request-id"], context
    return status


def send_odd_requests(target: Target, count: int, seed: int) -> Counter[int | None]:
    """Send so many requests; how often each status was answered."""
    random = Random(seed)
    counts_by_status: Counter[int | None] = Counter()
    for _ in range(count):
        raw = make_request(target, random)
        counts_by_status[judge(raw, send(target, raw))] += 1
    return counts_by_status
