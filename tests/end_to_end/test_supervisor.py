"""`recorder up` as people start it: it serves, revives what crashes, and leaves nothing running."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from recorder.settings import Settings
from recorder.supervisor import running
from recorder.supervisor.commands import claim_port
from tests.processes import left_after, processes_of, start_up

ROOT = Path(__file__).parents[2]


@contextmanager
def recorder_up(data: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`recorder up` in a process of its own, started from another folder; with the address of its API."""
    port = claim_port("127.0.0.1", 0, option="--port")
    with start_up(data, "--port", str(port), *options, folder=data.parent) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_said(f"API      {url}", process)
            yield process, url
        finally:
            process.kill()
            left_after(data, 15)


def wait_said(words: str, process: subprocess.Popen[str]) -> None:
    """Return once it says these words: from then on it watches what it started."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:  # ends with the process
        said.append(line)
        if line.startswith(words):
            return
    raise AssertionError("".join(said))


def wait_ready(url: str, process: subprocess.Popen[str]) -> None:
    """Return once the API answers."""
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(url)


def api_process(data: Path) -> int:
    """Id of the API's process."""
    return next(pid for pid, command in processes_of(data).items() if "uvicorn" in command)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_within_ten_seconds_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, _):
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert processes_of(data) == {}


def test_killed_outright_it_takes_its_children_along(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, _):
        process.kill()
        assert left_after(data, 10) == {}


def test_an_api_that_crashed_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, url):
        first = api_process(data)
        os.kill(first, signal.SIGKILL)
        time.sleep(0.5)
        wait_ready(url, process)
        assert api_process(data) != first


def test_a_taken_port_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start_up(tmp_path, "--port", str(port), folder=tmp_path) as process:
            _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"port {port}" in said and "Traceback" not in said


def test_the_library_alone_says_what_is_missing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recorder", tmp_path / "library" / "recorder")
    with start_up(tmp_path / "data", folder=tmp_path, checkout=tmp_path / "library") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "make up" in said


def test_a_block_of_code_gets_a_service_for_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(Settings.from_env(data_dir=data)) as service:
        assert httpx.get(f"{service.base_url}/healthz").status_code == 200
    assert processes_of(data) == {}
