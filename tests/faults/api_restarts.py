"""An API that is killed and started again, on the same port and data."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from recorder.settings import Settings, make_child_environment
from recorder.supervisor.child_commands import api_command, choose_child_port
from tests.support.deployment_processes import ROOT


@dataclass
class Lives:
    """The lives of one API; at most one at a time."""

    host: str
    port: int
    #: How often it was killed.
    kills: int
    _launcher: "subprocess.Popen[str]"
    _life: int | None = None

    def start(self) -> None:
        """Begin the next life; whoever needs it tries until it answers."""
        assert self._launcher.stdin is not None and self._launcher.stdout is not None
        print(file=self._launcher.stdin, flush=True)
        self._life = int(self._launcher.stdout.readline())

    def kill(self) -> None:
        """End this life without a warning."""
        assert self._life is not None
        os.kill(self._life, signal.SIGKILL)
        self._life = None
        self.kills += 1

    def end(self) -> None:
        """Ask the last life to end."""
        if self._life is not None:
            os.kill(self._life, signal.SIGTERM)


@contextmanager
def api_lives(settings: Settings) -> Iterator[Lives]:
    """Yield an API on these settings that can be killed while the block runs."""
    host, port = "127.0.0.1", choose_child_port("127.0.0.1", 0, option="--port")
    options = api_command(settings, {}, ROOT, host, port).arguments[3:]  # without `python -m uvicorn`
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.api_launcher", *options],
        env=make_child_environment(settings, {"PYTHONPATH": str(ROOT), "RECORDER_LOG_LEVEL": "warning"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        lives = Lives(host, port, 0, launcher)
        try:
            lives.start()
            yield lives
        finally:
            lives.end()
            assert launcher.stdin is not None
            launcher.stdin.close()
