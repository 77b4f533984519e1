"""Bytes that are no request, or hardly one, and their answers, over a socket."""

import json
import re
import socket
from urllib.parse import urlsplit

from recorder import limits
from tests.support.http_service import RunningService

PATIENCE_S = 10.0
TE = "Transfer-Encoding: chunked"
AS_JSON = "Content-Type: application/json"
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade")
SOCKET = "/v1/sessions/ses_1/events/ws"


def request(line: str, *headers: str, body: bytes = b"", version: str = "HTTP/1.1") -> bytes:
    """Return the bytes of a request to this host; `KEY` is replaced by the key's header."""
    return "\r\n".join([f"{line} {version}", "Host: 127.0.0.1", *headers, "", ""]).encode("latin-1") + body


def send(service: RunningService, raw: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Send bytes; return all answers of the connection, which the service closes."""
    address = urlsplit(service.url)
    raw = raw.replace(b"KEY", f"Authorization: Bearer {service.key}".encode())
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(raw)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
    answers = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", "0"))
        answers.append((int(first.split()[1]), headers, received[:length]))
        received = received[length:]
    return answers


def assert_complete(answer: tuple[int, dict[str, str], bytes]) -> None:
    """Check the headers that every answer has, and the request id of a problem."""
    status, headers, body = answer
    assert re.fullmatch("req_[0-9a-z]{26}", headers["x-request-id"]) and headers["service-version"]
    limit, left = int(headers["x-ratelimit-limit"]), int(headers["x-ratelimit-remaining"])
    assert 0 <= left <= limit and int(headers["x-ratelimit-reset"]) > 0 and headers["x-scope"]
    if status >= 400:
        assert headers["content-type"] == "application/problem+json"
        problem = json.loads(body)
        assert problem["request_id"] == headers["x-request-id"] and problem["status"] == status
        assert problem["code"] and problem["detail"] and problem["title"]


#: What is sent, and the statuses and the last code that are answered.
CASES: dict[str, tuple[bytes, list[int], str]] = {
    "no HTTP": (b"GARBAGE\r\n\r\n", [400], "invalid_request"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400], "invalid_request"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], "invalid_request"),
    "HTTP/9.9": (request("GET /v1/limits", "KEY", version="HTTP/9.9"), [400], "invalid_request"),
    "method unknown": (request("FETCH /v1/limits", "KEY"), [400], "invalid_request"),
    "CONNECT": (request("CONNECT a.example:443", "KEY"), [400], "invalid_request"),
    "path not ASCII": (request("GET /v1/\xff", "KEY"), [400], "invalid_request"),
    "NUL in the path": (request("GET /v1/limits\0", "KEY"), [400], "invalid_request"),
    "broken escape in the path": (
        request("GET /v1/workflows/%zz", "KEY", "Connection: close"),
        [404],
        "not_found",
    ),
    "escape that is no UTF-8": (
        request("GET /v1/workflows/%ff", "KEY", "Connection: close"),
        [404],
        "not_found",
    ),
    "header without a name": (request("GET /v1/limits", "KEY", ": x"), [400], "invalid_request"),
    "space in a header's name": (request("GET /v1/limits", "KEY", "a b: x"), [400], "invalid_request"),
    "lines without CR": (b"GET /v1/limits HTTP/1.1\nHost: 127.0.0.1\n\n", [400], "invalid_request"),
    "two lengths": (
        request("POST /v1/sessions", "KEY", "Content-Length: 2", "Content-Length: 3"),
        [400],
        "invalid_request",
    ),
    "negative length": (request("POST /v1/sessions", "KEY", "Content-Length: -1"), [400], "invalid_request"),
    "length and chunks": (
        request("POST /v1/sessions", "KEY", "Content-Length: 2", TE, body=b"0\r\n\r\n"),
        [400],
        "invalid_request",
    ),
    "chunk size that is none": (
        request("POST /v1/sessions", "KEY", AS_JSON, TE, body=b"zz\r\n{}\r\n0\r\n\r\n"),
        [400],
        "invalid_request",
    ),
    "second chunk malformed": (
        request("POST /v1/sessions", "KEY", AS_JSON, TE, body=b"1\r\n{\r\n!\r\n}\r\n0\r\n\r\n"),
        [400],
        "invalid_request",
    ),
    "request line too long": (
        request(f"GET /v1/limits?{'a' * (limits.REQUEST_HEAD_BYTES + 1)}", "KEY"),
        [413],
        "payload_too_large",
    ),
    "header too long": (
        request("GET /v1/limits", "KEY", f"X-Long: {'a' * limits.REQUEST_HEAD_BYTES}"),
        [413],
        "payload_too_large",
    ),
    "address too long": (
        request(f"GET /v1/limits?{'a' * limits.REQUEST_ADDRESS_BYTES}", "KEY"),
        [413],
        "payload_too_large",
    ),
    "too many parameters": (
        request(f"GET /v1/sessions?{'&' * limits.QUERY_PARAMETERS}", "KEY"),
        [413],
        "payload_too_large",
    ),
    "too many parameters of a page without a key": (
        request(f"GET /healthz?{'a&' * limits.QUERY_PARAMETERS}", "KEY"),
        [413],
        "payload_too_large",
    ),
    "values of a header too long": (
        request("GET /v1/limits", "KEY", *(f"Cookie: {'a=b;' * 1_000}" for _ in range(3))),
        [413],
        "payload_too_large",
    ),
    "content type too long": (
        request(
            "POST /v1/sessions",
            "KEY",
            f"Content-Type: application/json{';a=b' * 2_500}",
            "Content-Length: 2",
            body=b"{}",
        ),
        [413],
        "payload_too_large",
    ),
    "second head too large": (
        request("GET /v1/limits", "KEY") + request("GET /v1/limits", "KEY", f"X-Long: {'a' * 9_000}"),
        [200],
        "",
    ),
    "empty lines before a request": (
        b"\r\n\r\n" + request("GET /v1/limits", "KEY", "Connection: close"),
        [200],
        "",
    ),
    "too many headers": (
        request("GET /v1/limits", "KEY", *(f"X-{n}: 1" for n in range(limits.REQUEST_HEADERS))),
        [413],
        "payload_too_large",
    ),
    "too many headers without an end": (
        request("GET /v1/limits", "KEY", *(f"X-{n}: 1" for n in range(limits.REQUEST_HEADERS)))[:-2],
        [413],
        "payload_too_large",
    ),
    "header without an end": (
        request("GET /v1/limits", "KEY")[:-4] + b"\r\nX: " + b"a" * (limits.REQUEST_HEAD_BYTES + 1),
        [413],
        "payload_too_large",
    ),
    **{
        f"transfer encoding {codings}": (
            request(
                "POST /v1/sessions",
                "KEY",
                AS_JSON,
                f"Transfer-Encoding: {codings}",
                body=b"1\r\n{\r\n0\r\n\r\n",
            ),
            [415],
            "unsupported_media_type",
        )
        for codings in ("gzip, chunked", "deflate,chunked", "identity, chunked", "x\tchunked, Chunked")
    },
    "transfer encodings of two headers": (
        request(
            "POST /v1/sessions", "KEY", AS_JSON, "Transfer-Encoding: gzip", TE, body=b"1\r\n{\r\n0\r\n\r\n"
        ),
        [415],
        "unsupported_media_type",
    ),
    "chunks that are compressed": (
        request("POST /v1/sessions", "KEY", AS_JSON, "Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"),
        [400],
        "invalid_request",
    ),
    "transfer encoding gzip": (
        request("POST /v1/sessions", "KEY", AS_JSON, "Transfer-Encoding: gzip", body=b"0\r\n\r\n"),
        [400],
        "invalid_request",
    ),
    "two content types": (
        request(
            "POST /v1/sessions",
            "KEY",
            AS_JSON,
            "content-type: application/json",
            "Content-Length: 2",
            "Connection: close",
            body=b"{}",
        ),
        [415],
        "unsupported_media_type",
    ),
    "HTTP/1.0": (request("GET /v1/limits", "KEY", version="HTTP/1.0"), [200], ""),
    "HTTP/1.0 without a key": (request("GET /v1/limits", version="HTTP/1.0"), [401], "missing_authorization"),
    "OPTIONS *": (request("OPTIONS *", "KEY", "Connection: close"), [404], "not_found"),
    "no host": (b"GET /v1/limits HTTP/1.1\r\nConnection: close\r\n\r\n", [400], "invalid_host"),
    "garbage behind a request": (request("GET /v1/quota", "KEY") + b"\0\1garbage\r\n\r\n", [200], ""),
    "garbage behind two requests": (
        request("GET /v1/quota", "KEY") + request("GET /v1/none", "KEY") + b"\0garbage\r\n\r\n",
        [200, 404],
        "not_found",
    ),
    "handshake without its key": (request(f"GET {SOCKET}", "KEY", *UPGRADE), [400], "invalid_request"),
    "handshake of another version": (
        request(
            f"GET {SOCKET}",
            "KEY",
            *UPGRADE,
            "Sec-WebSocket-Version: 12",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        [400],
        "invalid_request",
    ),
    "handshake as POST": (request(f"POST {SOCKET}", "KEY", *UPGRADE), [400], "invalid_request"),
    "handshake with 200 headers": (
        request(f"GET {SOCKET}", "KEY", *UPGRADE, *(f"X-{n}: 1" for n in range(200))),
        [413],
        "payload_too_large",
    ),
    "handshake of a missing session": (
        request(
            f"GET {SOCKET}",
            "KEY",
            *UPGRADE,
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        [404],
        "not_found",
    ),
    "upgrade to something else": (
        request("GET /v1/quota", "KEY", "Upgrade: h2c", "Connection: Upgrade, close"),
        [200],
        "",
    ),
}
