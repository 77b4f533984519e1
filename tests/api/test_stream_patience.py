"""Silent streams, and readers that take nothing: kept alive, cut off, taken up again. Contract §3."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed

from api.streams.websocket_protocol import WatchedSocket
from recorder.recording.streams import StreamTimes
from tests.support.factories import event
from tests.support.stream_clients import Streamer, StreamService, listening, streaming_service
from tests.support.waiting import wait_for

_ID = re.compile(rb"^id: (\d+)\nevent: [a-z.]+\ndata: .*\n\n", re.MULTILINE)
_TEXT = "x" * 50_000


class HastySocket(WatchedSocket):
    """Protocol that pings often and does not wait for answers."""

    ping_s = 0.2
    pong_s = 2.0
    grace_s = 0.2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamService]:
    """Yield a running service without patience."""
    times = StreamTimes(keep_alive_s=0.2, slow_s=1.0, poll_s=0.2)
    with streaming_service(tmp_path_factory.mktemp("service"), times=times, ws=HastySocket) as running:
        yield running


@pytest.fixture
def streamer(service: StreamService) -> Iterator[Streamer]:
    """Yield a key of a workspace that no other test sees."""
    with service.streamer() as made:
        yield made


def dial(streamer: Streamer, session_id: str, path: str, *headers: str, buffer: int = 4096) -> socket.socket:
    """Return a connection with a small buffer on which a stream was asked for."""
    address = urlsplit(streamer.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(20)
    connection.connect((address.hostname, address.port))
    head = [f"GET /v1/sessions/{session_id}/events/{path} HTTP/1.1", "Host: 127.0.0.1"]
    head += [f"Authorization: Bearer {streamer.key.key}", *headers, "", ""]
    connection.sendall("\r\n".join(head).encode())
    return connection


def read_head(connection: socket.socket) -> bytes:
    """Return the answer's head, read byte by byte, so that nothing of the body is taken."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    return head


def read_to_end(connection: socket.socket) -> bytes:
    """Return the bytes until the other side closes."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def unchunked(body: bytes) -> bytes:
    """Return a chunked body without its framing; one that was cut ends anywhere."""
    received = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        received += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return received


def add_much(streamer: Streamer, session_id: str) -> int:
    """Add more than all buffers on the way hold; return the last position."""
    for n in range(6):
        streamer.add_events(session_id, *[event(n, "log", title=_TEXT)] * 50)
    return 302


def test_a_silent_stream_carries_comments(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id) as heard:
        wait_for(lambda: heard.comments >= 3)
        streamer.add_events(session_id, event(0))
        wait_for(lambda: heard.ids == [3])


def test_a_silent_socket_is_pinged_and_cut_where_nobody_answers(
    service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    with closing(dial(streamer, session_id, "ws", *upgrade, "Sec-WebSocket-Key: " + "A" * 22 + "==")) as deaf:
        assert read_head(deaf).startswith(b"HTTP/1.1 101")
        with streamer.connect(session_id) as answering:
            assert deaf.recv(2) == b"\x89\x04"  # a ping with four bytes
            read_to_end(deaf)
            streamer.add_events(session_id, event(0))
            assert json.loads(answering.recv(timeout=20))["id"] == 3
    wait_for(lambda: service.open_streams == 0)


def test_a_reader_that_takes_nothing_is_cut_and_loses_nothing(
    service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    with closing(dial(streamer, session_id, "stream?from=start")) as slow:
        assert read_head(slow).startswith(b"HTTP/1.1 200")
        last = add_much(streamer, session_id)
        wait_for(lambda: service.open_streams == 0)
        got = [int(match) for match in _ID.findall(unchunked(read_to_end(slow)))]
    assert got == list(range(1, len(got) + 1)) and len(got) < last
    with listening(streamer, session_id, Last_Event_ID=str(got[-1])) as heard:
        wait_for(lambda: len(heard.messages) == last - got[-1])
    assert heard.ids == list(range(got[-1] + 1, last + 1))


def test_a_slow_socket_is_closed_as_such_and_loses_nothing(
    service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    with streamer.connect(session_id, "?from=start") as slow:  # holds sixteen messages, then reads no more
        last = add_much(streamer, session_id)
        hub = service.app.state.streams
        wait_for(lambda: any(reader.ending for reader in hub.list_readers()), seconds=60)
        got = []
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                got.append(json.loads(slow.recv(timeout=20))["id"])
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    assert got == list(range(1, len(got) + 1)) and len(got) < last
    with listening(streamer, session_id, Last_Event_ID=str(got[-1])) as heard:
        wait_for(lambda: len(heard.messages) == last - got[-1])
    assert heard.ids == list(range(got[-1] + 1, last + 1))


def test_a_reader_that_takes_little_at_a_time_is_not_cut(tmp_path: Path) -> None:
    # The reader takes three times the required bytes; the connection's buffers hold more than all.
    times = StreamTimes(slow_s=3.0, poll_s=0.2)
    with streaming_service(tmp_path, times=times) as service, service.streamer() as streamer:
        session_id = streamer.make_session()
        add_much(streamer, session_id)
        with closing(dial(streamer, session_id, "stream?from=start", buffer=65_536)) as slow:
            began, received = time.monotonic(), 0
            while time.monotonic() < began + 3 * times.slow_s:
                while received < (time.monotonic() - began) * 65_536:
                    chunk = slow.recv(16_384)
                    assert chunk, "it was cut"
                    received += len(chunk)
                time.sleep(0.05)
            assert [reader.ending for reader in service.app.state.streams.list_readers()] == [None]


def test_a_reader_that_is_merely_slow_gets_everything(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    last = add_much(streamer, session_id)
    received = bytearray()
    with closing(dial(streamer, session_id, "stream?from=start", buffer=65_536)) as slow:
        while b"\nid: %d\n" % last not in received[-100_000:]:
            chunk = slow.recv(65_536)
            assert chunk, "it was cut"
            received += chunk
            time.sleep(0.002)
    assert len(re.findall(rb"^id: \d+\nevent", received, re.MULTILINE)) == last
