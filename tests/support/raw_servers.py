"""Servers of raw bytes in a thread, which note the heads of requests."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class RawServer:
    """Port of a server, and the heads that came there."""

    port: int
    heads: list[str] = field(default_factory=list)


@contextmanager
def raw_server(answer: bytes, *, until: bytes = b"\r\n\r\n") -> Iterator[RawServer]:
    """Answer each connection with these bytes once these others have come, and close it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = RawServer(listener.getsockname()[1])

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            received = b""
            while until not in received:
                chunk = connection.recv(65_536)
                if not chunk:
                    return
                received += chunk
            server.heads.append(received.decode("latin-1"))
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        listener.close()
