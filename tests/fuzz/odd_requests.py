"""Requests that no OpenAPI client makes: HEAD, byte ranges, odd methods, charsets and escapes, broken bytes.

Each is sent over a socket of its own. Every complete request is answered; silence is right only where the
service waits for the rest of a request. Every answer must have the headers of the interface, every error a
problem body with the request id, and none is 5xx.
"""

import json
import re
import socket
from collections import Counter
from dataclasses import dataclass
from itertools import count
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
#: A complete request is answered within this time, also on a busy machine.
PATIENCE_S = 20.0
#: The service waits for the rest of an incomplete request; what it refuses before that, it refuses at once.
SILENCE_S = 0.3
#: Kinds of incomplete requests, as they are counted where the service is silent.
HEAD_UNFINISHED, BODY_UNFINISHED, CHUNKS_UNFINISHED = (
    "silent, head unfinished",
    "silent, body unfinished",
    "silent, chunks unfinished",
)
_TURNS = count()


@dataclass(frozen=True)
class Target:
    """The service, keys of a workspace, and the ids in its addresses."""

    url: str
    keys: list[str]
    paths: list[str]
    known: dict[str, list[str]]

    def dial(self, patience_s: float) -> socket.socket:
        """Return a fresh connection, from one of many addresses: each has a rate limit of its own."""
        address, source = urlsplit(self.url), f"127.0.0.{1 + next(_TURNS) % 250}"
        return socket.create_connection((address.hostname, address.port), patience_s, (source, 0))


def make_request(target: Target, random: Random) -> bytes:
    """Return one odd request."""
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
        headers.append(f"Authorization: Bearer {random.choice(target.keys)}")
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
    if random.random() < 0.02:
        return raw[: random.randrange(1, len(raw))]
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


def find_missing_part(raw: bytes) -> str | None:
    """Return the kind of an incomplete request, whose rest the service waits for; None for a complete one.

    A complete request may be malformed: it is refused.
    """
    # Line ends before a request are skipped (RFC 9112 §2.2).
    head, end, body = raw.lstrip(b"\r\n").partition(b"\r\n\r\n")
    if not end:
        return HEAD_UNFINISHED
    fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    values = [(name.lower(), value.strip().lower()) for name, _, value in fields]
    if any(name == b"transfer-encoding" and value.endswith(b"chunked") for name, value in values):
        return None if _is_last_chunk_there(body) else CHUNKS_UNFINISHED
    lengths = [int(value) for name, value in values if name == b"content-length" and value.isdigit()]
    return BODY_UNFINISHED if lengths and max(lengths) > len(body) else None


def _is_last_chunk_there(body: bytes) -> bool:
    """Return whether chunks are complete, or malformed before their end."""
    while True:
        line, end, rest = body.partition(b"\r\n")
        size = re.match(rb"[0-9a-fA-F]{1,16}(?=[;\t ]|$)", line)
        if line and not size and not (line == b"\r" and not end):
            return True  # malformed
        if not size or not end:
            return False
        length = int(size[0], 16)
        if length == 0:
            return rest.startswith(b"\r\n") or b"\r\n\r\n" in rest
        if len(rest) < length + 2:
            return not b"\r\n".startswith(rest[length:])
        if rest[length : length + 2] != b"\r\n":
            return True  # malformed
        body = rest[length + 2 :]


def send(target: Target, raw: bytes, patience_s: float) -> bytes | None:
    """Return the bytes of the first answer; None if the service keeps the connection open, silently.

    Raises:
        AssertionError: if the connection ends without an answer, or within one.
    """
    received = b""
    with target.dial(patience_s) as connection:
        try:
            connection.sendall(raw)
            while not _is_answer_whole(raw, received):
                chunk = connection.recv(65_536)
                if not chunk:
                    break
                received += chunk
        except TimeoutError:
            assert b"\r\n\r\n" in received or not received, (raw, received)
            return received or None
        except (ConnectionResetError, BrokenPipeError) as error:
            raise AssertionError(f"The connection was reset after {received!r}: {raw!r}") from error
    assert received, raw
    return received


def _is_head(raw: bytes) -> bool:
    return raw.lstrip(b"\r\n").startswith(b"HEAD ")


def _read_head(received: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return the status, the headers by their names in lower case, and the body."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    return int(first.split()[1]), headers, body


def _is_answer_whole(raw: bytes, received: bytes) -> bool:
    """Return whether nothing of the first answer is still to come; the end of the connection says it too."""
    if b"\r\n\r\n" not in received:
        return False
    status, headers, body = _read_head(received)
    if status == 101:
        return True  # a WebSocket stays open
    # The answer to bytes that are no request has a body also where they begin with HEAD.
    if _is_head(raw):
        return headers.get(b"x-scope") != b"per_address"
    if b"content-length" in headers:
        return len(body) >= int(headers[b"content-length"])
    return body.endswith(b"0\r\n\r\n")


def judge(raw: bytes, received: bytes) -> int:
    """Return the status of an answer.

    Raises:
        AssertionError: if it lacks a header or the request id, or is 5xx.
    """
    status, headers, body = _read_head(received)
    context = (raw, received[:2000])
    assert status < 500, context
    if status == 101:
        return status
    assert all(headers.get(name) for name in HEADERS), context
    is_head = _is_head(raw)
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


def send_odd_requests(target: Target, number: int, seed: int) -> Counter[int | str]:
    """Send so many requests; how often each status was answered, and how often the service waited for what.

    Raises:
        AssertionError: if a complete request is not answered, or an answer is wrong.
    """
    random = Random(seed)
    counts: Counter[int | str] = Counter()
    for _ in range(number):
        raw = make_request(target, random)
        missing = find_missing_part(raw)
        received = send(target, raw, SILENCE_S if missing else PATIENCE_S)
        if received is None:
            assert missing is not None, f"A complete request is not answered: {raw!r}"
            counts[missing] += 1
        else:
            counts[judge(raw, received)] += 1
    return counts


def check_silent(counts: Counter[int | str]) -> None:
    """Check that few requests were not answered: one in fifty is cut, and few changes make one incomplete."""
    silent = sum(number for result, number in counts.items() if isinstance(result, str))
    assert silent <= 0.05 * counts.total(), counts
