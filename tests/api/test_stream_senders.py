"""Clients of WebSocket streams that send messages, which the service ignores. Contract §3."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from tests.support.factories import event
from tests.support.stream_clients import Streamer, StreamService, streaming_service
from tests.support.waiting import wait_for

#: Masked text frames with one character each.
_TINY = b"\x81\x81\0\0\0\0a" * 10_000
_PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamService]:
    """Yield a running service."""
    with streaming_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def streamer(service: StreamService) -> Iterator[Streamer]:
    """Yield a key of a workspace that no other test sees."""
    with service.streamer() as made:
        yield made


def open_socket(streamer: Streamer, session_id: str) -> socket.socket:
    """Return a WebSocket after its handshake."""
    address = urlsplit(streamer.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=_PATIENCE_S)
    head = [f"GET /v1/sessions/{session_id}/events/ws HTTP/1.1", "Host: 127.0.0.1"]
    head += [f"Authorization: Bearer {streamer.key.key}", "Connection: Upgrade", "Upgrade: websocket"]
    head += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {'A' * 22}==", "", ""]
    connection.sendall("\r\n".join(head).encode())
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        received += connection.recv(1)
    assert received.startswith(b"HTTP/1.1 101")
    return connection


def test_a_socket_that_sends_without_end_is_closed(service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with closing(open_socket(streamer, session_id)) as sending:
        with pytest.raises(ConnectionError):
            for _ in range(200):
                sending.sendall(_TINY)
        wait_for(lambda: service.open_streams == 0)


def test_a_socket_that_sends_too_much_learns_why(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with closing(open_socket(streamer, session_id)) as sending:
        sending.sendall(_TINY)
        received = b""
        with suppress(ConnectionResetError):
            while chunk := sending.recv(4_096):
                received += chunk
    assert (1009).to_bytes(2, "big") in received


def test_a_socket_that_sends_a_little_is_read_slowly_and_hears_on(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with streamer.connect(session_id) as talking:
        for _ in range(2_000):
            talking.send("a")
        streamer.add_events(session_id, event(0))
        assert json.loads(talking.recv(timeout=_PATIENCE_S))["id"] == 3


def test_a_socket_that_sent_little_is_closed_at_once(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with streamer.connect(session_id) as talking:
        for _ in range(20):
            talking.send("hello")
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
