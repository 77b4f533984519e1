"""A line to a service that keeps breaking: a proxy that cuts each connection after so many bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes on, and cuts a connection when it has brought as many back as chance gave it."""

    def __init__(self, url: str, *, seed: int, most_bytes: int) -> None:
        address = urlsplit(url)
        self._target = (address.hostname, address.port)
        self._random = Random(seed)
        self._most_bytes = most_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        #: How many connections were cut.
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                budget = self._random.randint(1, self._most_bytes)
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
                threading.Thread(target=self._return, args=(far, near, budget), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(65_536):
                far.sendall(data)
        _hang_up(far)

    def _return(self, far: socket.socket, near: socket.socket, budget: int) -> None:
        with suppress(OSError):
            while budget and (data := far.recv(min(budget, 65_536))):
                near.sendall(data)
                budget -= len(data)
            self.cuts += not budget
        for end in (near, far):
            _hang_up(end)
            end.close()


def _hang_up(end: socket.socket) -> None:
    # To close it would wait for the thread that reads from it.
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(url: str, *, seed: int, most_bytes: int = 3_000) -> Iterator[CuttingProxy]:
    """A proxy before a service while the block runs."""
    proxy = CuttingProxy(url, seed=seed, most_bytes=most_bytes)
    try:
        yield proxy
    finally:
        proxy.close()
