"""Services under load: one uvicorn process on loopback, or `recorder up` with all that it starts."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from recorder.access.dagster_login import log_in_to_dagster
from recorder.settings import Settings, make_child_environment
from recorder.supervisor.child_commands import choose_child_port

_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60.0
_STOP_S = 15.0


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
        """Return the CPU time of the process with all its threads, user and system."""
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
    """Yield one uvicorn process (uvloop, httptools) that serves `factory` while the block runs.

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


@dataclass(frozen=True)
class Deployment:
    """`recorder up` with Dagster, as a process."""

    process: "subprocess.Popen[bytes]"
    settings: Settings
    url: str
    dagster_url: str

    def open_dagster(self) -> AbstractContextManager[httpx.Client]:
        """Return a client that is logged in to Dagster's pages."""
        return log_in_to_dagster(self.settings, self.dagster_url)


@contextmanager
def running_up(settings: Settings) -> Iterator[Deployment]:
    """Run the command `recorder up` with Dagster while the block runs.

    Raises:
        ServerFailed: if it ends, or has not printed its addresses in time.
    """
    port = choose_child_port("127.0.0.1", 0, option="--port")
    pages = choose_child_port("127.0.0.1", 0, option="--dagster-port")
    arguments = [sys.executable, "-m", "recorder.cli", "up", "--data", str(settings.data_dir)]
    arguments += ["--port", str(port), "--dagster-port", str(pages)]
    printed = settings.data_dir / "printed"
    with printed.open("wb") as file:
        process = subprocess.Popen(
            arguments,
            env=make_child_environment(settings, {}),
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        until = time.monotonic() + 2 * _START_S
        # The addresses are printed once every process answers.
        while not any(line.startswith("Dagster  ") for line in printed.read_text().splitlines()):
            if process.poll() is not None or time.monotonic() > until:
                raise ServerFailed(f"`recorder up` did not start: {printed.read_text()}")
            time.sleep(0.1)
        yield Deployment(process, settings, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{pages}")
    finally:
        process.terminate()
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:  # its guard ends the children
            process.kill()
            process.wait()


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
