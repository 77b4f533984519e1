"""kill -STOP of each child of `recorder up`: it answers again, and the service does its work. Contract §9.

`make faults` stops each of the five children five times, with the silence that is allowed by default; `make
system` stops each once, under a shorter silence and four of them together.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from recorder.settings import Settings
from recorder.supervisor.child_commands import choose_child_port
from tests.end_to_end.test_daemon import make_client, make_key, record, seconds_until_sealed
from tests.faults.results import add_result, skip_if_done
from tests.support.deployment_processes import left_after, processes_of, start_up

#: How often each child is stopped; 0: once, the quick way.
STOPS = int(os.environ.get("RECORDER_FAULT_STOPS", "0"))  # noqa: TID251
_PATIENCE_S = 60.0
#: Heartbeats of Dagster come every five seconds, on a busy machine every eight.
_QUICK_SILENCE_S = 12
#: Name of each child → what stands in its command line.
CHILDREN = {
    "API": "uvicorn",
    "delivery loop": "recorder.cli deliver",
    "Dagster code server": "dagster api grpc",
    "Dagster webserver": "dagster",
    "Dagster daemon": "pipelines.daemon",
}


@dataclass
class Watched:
    """`recorder up` as a process, and what it has said."""

    process: subprocess.Popen[str]
    data: Path
    url: str
    said: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Take lines until the process ends."""
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, ""))

    def find(self, child: str) -> int | None:
        """Return the id of a child's process; a shell that waits to become it does not count."""
        groups = {pid: command for pid, command in processes_of(self.data).items() if os.getpgid(pid) == pid}
        groups = {pid: command for pid, command in groups.items() if not command.startswith("/bin/sh")}
        if child == "Dagster webserver":
            others = {self.find(name) for name in CHILDREN if name != child}
            return next((pid for pid in groups if pid not in others), None)
        return next((pid for pid, command in groups.items() if CHILDREN[child] in command), None)

    def wait_until_said(self, words: str, *, after: int, patience_s: float) -> float:
        """Return the seconds until a line begins so, counted from line `after`."""
        began = time.monotonic()
        while time.monotonic() - began < patience_s:
            if any(line.startswith(words) for line in self.said[after:]):
                return time.monotonic() - began
            time.sleep(0.1)
        raise AssertionError(f"{words!r} was not said within {patience_s} s: {''.join(self.said)}")

    def stop_and_wait(self, *children: str) -> dict[str, float]:
        """Stop children by SIGSTOP; returns the seconds until each answered again."""
        before = {child: self.find(child) for child in children}
        after = len(self.said)
        for child, pid in before.items():
            assert pid is not None, (child, processes_of(self.data))
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        took = {}
        for child in children:
            self.wait_until_said(f"The {child} answers", after=after, patience_s=_PATIENCE_S)
            took[child] = time.monotonic() - began
            assert self.find(child) not in (None, before[child])
        return took


@contextmanager
def watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, silence_s: float
) -> Iterator[tuple[Watched, str]]:
    """Yield a deployment whose children all answer, and a key of it."""
    monkeypatch.setenv("RECORDER_ANSWER_WITHIN", f"{silence_s:g}")
    settings = Settings.from_env({}, data_dir=folder / "data")
    key = make_key(settings)
    port, pages = (choose_child_port("127.0.0.1", 0, option=name) for name in ("--port", "--dagster-port"))
    options = ("--port", str(port), "--dagster-port", str(pages))
    with start_up(settings.data_dir, *options, folder=folder) as process:
        service = Watched(process, settings.data_dir, f"http://127.0.0.1:{port}")
        listener = threading.Thread(target=service.listen, daemon=True)
        listener.start()
        try:
            for child in CHILDREN:
                service.wait_until_said(f"The {child} answers", after=0, patience_s=120)
            yield service, key
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
            assert processes_of(settings.data_dir) == {}
        finally:
            process.kill()
            left_after(settings.data_dir, 15)


def assert_it_works(service: Watched, key: str) -> None:
    """Assert that the API answers and that a session is sealed, whatever was stopped before."""
    assert httpx.get(f"{service.url}/healthz").status_code == 200
    with make_client(service.url, key) as client:
        seconds_until_sealed(client, record(client), patience_s=90)


*_OTHERS, _DAEMON = CHILDREN
#: Children that are stopped together, group after group. The daemon calls the code server, so it is stopped
#: alone.
ROUNDS = [[[child]] * STOPS for child in CHILDREN] if STOPS else [[_OTHERS, [_DAEMON]]]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("groups", ROUNDS, ids=lambda groups: groups[0][0] if STOPS else "all")
def test_children_that_are_stopped_answer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[list[str]]
) -> None:
    name = f"stops of {', '.join(groups[0])}"
    skip_if_done(name, STOPS)
    with watched(tmp_path, monkeypatch, silence_s=30 if STOPS else _QUICK_SILENCE_S) as (service, key):
        took = [service.stop_and_wait(*group) for group in groups]
        print(f"back after {[{child: round(s) for child, s in times.items()} for times in took]} s")
        assert max(seconds for times in took for seconds in times.values()) <= _PATIENCE_S
        assert_it_works(service, key)
    add_result(name, len(groups))
