"""Lost connections are freed at once: no garbage collection stops the process for them. Decision 0048."""

import gc
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from api.bodies.body_limits import LargeBody
from api.gate.lingering_close import LingeringTransport
from api.gate.slow_clients import SlowClientProtocol
from recorder.errors import RateLimited
from tests.support.http_service import RunningService, running_service

PATIENCE_S = 10.0
KINDS = (SlowClientProtocol, LingeringTransport, LargeBody, RateLimited)


class CountedProtocol(SlowClientProtocol):
    """The protocol of the service of this test alone."""

    grace_s = 0.5


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    """Return a request after which the connection is closed."""
    lines = [line, "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def send(service: RunningService, sent: bytes) -> bytes:
    """Send bytes on a connection of their own; return what the service answers until it closes."""
    address = urlsplit(service.url)
    received = b""
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        while sent and (chunk := connection.recv(65_536)):
            received += chunk
    return received


def count_instances() -> dict[str, int]:
    """Return how many objects of each kind there are."""
    objects = gc.get_objects()
    return {kind.__name__: sum(isinstance(each, kind) for each in objects) for kind in KINDS}


def test_lost_connections_leave_no_reference_cycles(tmp_path: Path) -> None:
    with running_service(tmp_path, http=CountedProtocol) as service:
        key = f"Authorization: Bearer {service.key}"
        chunked = b"7\r\nX-{...}\r\n0\r\n\r\n"
        requests = {
            "answered": request("GET /v1/sessions HTTP/1.1", key),
            "refused": request("GET /v1/sessions HTTP/1.1"),
            "body of unknown length": request(
                "POST /v1/sessions HTTP/1.1", key, "Transfer-Encoding: chunked", body=chunked
            ),
            "body that is not read": request(
                "POST /v1/sessions HTTP/1.1", key, "Content-Length: 90000000", body=b"{" * 100_000
            ),
            "handshake": b"\r\n".join(
                [
                    b"GET /v1/sessions/ses_1/events/ws HTTP/1.1",
                    b"Host: 127.0.0.1",
                    b"Upgrade: websocket",
                    b"Connection: Upgrade",
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                    b"Sec-WebSocket-Version: 13",
                    b"",
                    b"",
                ]
            ),
            "malformed": b"no request at all\r\n\r\n",
            "silent": b"",
        }
        statuses = {name: send(service, sent)[9:12] for name, sent in requests.items()}
        assert list(statuses.values()) == [b"200", b"401", b"400", b"413", b"401", b"400", b""]
        gc.collect()
        before = count_instances()
        gc.disable()
        try:
            for sent in requests.values():
                for _ in range(3):
                    send(service, sent)
            # Without a key, more than the bucket of an address holds.
            answers = [send(service, requests["refused"])[9:12] for _ in range(60)]
            assert b"429" in answers
            until = time.monotonic() + PATIENCE_S
            while (after := count_instances()) != before and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            gc.enable()
    assert after == before
