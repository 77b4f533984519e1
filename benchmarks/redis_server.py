"""A throw-away Redis on loopback, which may be stopped and started again."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.figure_reports import Skipped


class RedisServer:
    """A Redis of its own, without a file on disk: it comes back empty."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            Skipped: if there is none on this machine, or it does not come up.
        """
        binary = shutil.which("redis-server")
        if binary is None:
            raise Skipped("redis-server is not installed")
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([binary, *options], cwd="/", stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not self._answers():
            if time.monotonic() > until or self._process.poll() is not None:
                raise Skipped("redis-server did not come up")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Send it a signal, such as one that lets it hang."""
        if self._process is not None:
            self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """Yield a fresh one while the block runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = RedisServer(probe.getsockname()[1])
    try:
        server.start()
        yield server
    finally:
        server.stop()
