"""A line to a service that can be switched off, and that can lose answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class SwitchedLine:
    """Proxy on the loopback: switched off, it closes each connection at its next byte."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._target = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_on = True
        #: Whether requests arrive and their answers do not.
        self.loses_answers = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
                threading.Thread(target=self._return, args=(far, near), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while (data := near.recv(65_536)) and self.is_on:
                far.sendall(data)
        _hang_up(far)

    def _return(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while (data := far.recv(65_536)) and self.is_on and not self.loses_answers:
                near.sendall(data)
        for end in (near, far):
            _hang_up(end)
            end.close()


def _hang_up(end: socket.socket) -> None:
    # To close it would wait for the thread that reads from it.
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def switched_line(url: str) -> Iterator[SwitchedLine]:
    """A line before a service while the block runs."""
    line = SwitchedLine(url)
    try:
        yield line
    finally:
        line.close()
