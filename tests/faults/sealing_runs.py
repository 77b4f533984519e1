"""Sealing runs as processes of their own, which tests kill and start again."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from recorder.runtime import Runtime
from tests.support.deployment_processes import ROOT
from tests.support.recorded_sessions import open_desk, session_row

_PATIENCE_S = 300.0
_OTHER_WORKSPACE = "wsp_01k0000000000000000000000z"


class SealingRun:
    """One run after another in the same place; each has a name of its own."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        number: int,
        *,
        lease_s: float,
        runs: int = 4,
        module: str = "benchmarks.seal_worker",
    ) -> None:
        """Prepare a run.

        Args:
            folder: data folder of the deployment.
            database_url: its database.
            number: number of the run.
            lease_s: duration of its leases.
            runs: how many runs may seal side by side.
            module: what runs; it ends with its standard input.
        """
        self._command = [sys.executable, "-m", module, str(folder), database_url]
        self._number = number
        self._lease_s, self._runs = lease_s, runs
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the next process."""
        self._lives += 1
        owner = f"run {self._number}, life {self._lives}"
        self._process = subprocess.Popen(
            [*self._command, owner, str(self._lease_s), str(self._runs)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None and self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def stop(self) -> None:
        """Let the process end in order."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextmanager
def sealing_runs(runtime: Runtime, folder: Path, number: int) -> Iterator[Sequence[SealingRun]]:
    """Let so many runs seal side by side, in processes of their own; they have begun once this is entered."""
    runs = [SealingRun(folder, runtime.database.url, n, lease_s=10, runs=number) for n in range(number)]
    for run in runs:
        run.start()
    try:
        with open_desk(runtime, workspace_id=_OTHER_WORKSPACE) as desk:
            assert wait_until_sealed(runtime, [desk.record()]) == []
        yield runs
    finally:
        for run in runs:
            run.stop()


def wait_until_sealed(runtime: Runtime, session_ids: Sequence[str]) -> list[str]:
    """Wait until all sessions are sealed; returns those that are not in time."""
    until = time.monotonic() + _PATIENCE_S
    waiting = list(session_ids)
    while waiting and time.monotonic() < until:
        time.sleep(0.2)
        waiting = [key for key in waiting if session_row(runtime, key).status != "sealed"]
    return waiting
