"""Connections to a service that break: by chance after so many bytes, or when they are switched off."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from urllib.parse import urlsplit


class UnreliableLine:
    """Proxy on the loopback that passes bytes on, as far as its hooks allow."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._target = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def may_forward(self) -> bool:
        """Return whether bytes of a request are passed on."""
        return True

    def limit_answer(self) -> int:
        """Return the bytes of answers that a new connection passes on."""
        return 2**62

    def may_return(self) -> bool:
        """Return whether bytes of an answer are passed on."""
        return True

    def note_cut(self) -> None:
        """Note that a connection passed on as many bytes as it may."""

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                ends = (far, near, self.limit_answer())
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
                threading.Thread(target=self._return, args=ends, daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while (data := near.recv(65_536)) and self.may_forward():
                far.sendall(data)
        _hang_up(far)

    def _return(self, far: socket.socket, near: socket.socket, budget: int) -> None:
        with suppress(OSError):
            while budget and (data := far.recv(min(budget, 65_536))) and self.may_return():
                near.sendall(data)
                budget -= len(data)
            if not budget:
                self.note_cut()
        for end in (near, far):
            _hang_up(end)
            end.close()


class CuttingLine(UnreliableLine):
    """Cuts a connection when it has brought as many bytes back as chance gave it."""

    def __init__(self, url: str, *, seed: int, most_bytes: int) -> None:
        self._random = Random(seed)
        self._most_bytes = most_bytes
        #: How many connections were cut.
        self.cuts = 0
        super().__init__(url)

    def limit_answer(self) -> int:
        """Return a number by chance."""
        return self._random.randint(1, self._most_bytes)

    def note_cut(self) -> None:
        """Count it."""
        self.cuts += 1


class SwitchedLine(UnreliableLine):
    """Closes each connection at its next byte while it is switched off."""

    def __init__(self, url: str) -> None:
        self.is_on = True
        #: Whether requests arrive and their answers do not.
        self.loses_answers = False
        super().__init__(url)

    def may_forward(self) -> bool:
        """Return whether it is on."""
        return self.is_on

    def may_return(self) -> bool:
        """Return whether it is on and loses no answers."""
        return self.is_on and not self.loses_answers


def _hang_up(end: socket.socket) -> None:
    # To close it would wait for the thread that reads from it.
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(url: str, *, seed: int, most_bytes: int = 3_000) -> Iterator[CuttingLine]:
    """Run a proxy before a service for the block, whose connections break by chance."""
    line = CuttingLine(url, seed=seed, most_bytes=most_bytes)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def switched_line(url: str) -> Iterator[SwitchedLine]:
    """Run a proxy before a service for the block, which can be switched off."""
    line = SwitchedLine(url)
    try:
        yield line
    finally:
        line.close()
