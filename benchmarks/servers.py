"""A server under load: one uvicorn process on loopback, its CPU time, and its end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from recorder.settings import Settings, make_child_environment
from recorder.supervisor.child_commands import choose_child_port

_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60.0


class ServerFailed(RuntimeError):
    """A server under test did not come up."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: "subprocess.Popen[bytes]"
    host: str
    port: int

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self.host}:{self.port}"

    def cpu_seconds(self) -> float:
        """CPU time of the process with all its threads, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def kill(self) -> None:
        """End it without a warning, as a power cut or the kernel would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(
    settings: Settings, factory: str = "api.app:create_app", *, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """One uvicorn process (uvloop, httptools) that serves `factory` while the block runs.

    Args:
        factory: what makes the app, as `module:function`; it must answer `/healthz`.
        environment: variables beside those of the settings.

    Raises:
        ServerFailed: if it ends or does not answer in time.
    """
    port = choose_child_port("127.0.0.1", 0, option="--port")
    arguments = [sys.executable, "-m", "uvicorn", "--factory", factory, "--host", "127.0.0.1"]
    arguments += ["--port", str(port), "--loop", "uvloop"]
    arguments += [
        "--http",
        "api.gate.slow_clients:SlowClientProtocol",
        "--ws",
        "api.streams.websocket_protocol:WatchedSocket",
    ]
    arguments += ["--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "3"]
    process = subprocess.Popen(
        arguments,
        env=make_child_environment(settings, {"RECORDER_LOG_LEVEL": "warning", **(environment or {})}),
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
    )
    server = Server(process, "127.0.0.1", port)
    try:
        wait_for_answer(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()


def wait_for_answer(server: Server, path: str = "/healthz", *, seconds: float = _START_S) -> None:
    """Wait until a server answers a path with 200.

    Raises:
        ServerFailed: if its process ends or the time is over before.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}{path}", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    state = "ended" if server.process.poll() is not None else f"did not start in {seconds:g} s"
    raise ServerFailed(f"The server under test {state}: {server.url}{path} has not answered with 200.")
