"""Live replays that lose their browser, proxy or worker: they end typed, and nothing is sent twice.

`RECORDER_FAULT_LIVE_KILLS` is how often each is lost.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.webapp.server import PASSWORD, WebApp, run_webapp
from recorder.live import proxy as proxies
from recorder.live.claimed_replay import LEASE_PREFIX
from recorder.models.operations import LeaseRow
from tests.live.conftest import Recorded, recorded
from tests.support.live_replays import ask_live, read_row, show, work_in_thread
from tests.support.stored_content import read_stored_file
from tests.support.waiting import wait_for

__all__ = ["recorded"]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("RECORDER_FAULT_LIVE_KILLS", "1"))  # noqa: TID251


def browser_processes(parent: int) -> list[int]:
    """Processes of a worker that hold a browser of the live sandbox."""
    processes = []
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or int((folder / "stat").read_text().split()[3]) != parent:
                continue
            if b"recorder.live.browser_process" in (folder / "cmdline").read_bytes():
                processes.append(int(folder.name))
        except OSError:
            continue
    return processes


def is_running(process: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def calls_of(app: WebApp) -> list[str]:
    """Paths of the requests that the application was asked for."""
    return [call["path"] for call in app.calls]


def assert_recorded(recorded: Recorded, shown: dict[str, Any]) -> None:
    """Require that the recording of a run has stopped, with the steps that were done before the loss."""
    path = f"/v1/sessions/{shown['result_session_id']}"
    session = recorded.caller.get(path).json()
    assert (session["status"], session["origin"], session["outcome"]) == ("stopped", "replay", "abandoned")
    assert session["event_count"] >= 1 and session["frame_count"] >= 1


def has_acted(recorded: Recorded, replay_id: str) -> bool:
    """Return whether some steps were done, but not all."""
    return 3 <= read_row(recorded.caller, replay_id).step <= 9


@pytest.mark.parametrize("_", range(KILLS))
def test_a_killed_browser_fails_the_replay(recorded: Recorded, _: int) -> None:
    with run_webapp("slow") as app:
        replay_id = ask_live(recorded.caller, recorded.session_id, app)
        with work_in_thread(recorded.caller):
            wait_for(lambda: has_acted(recorded, replay_id), seconds=120)
            for process in browser_processes(os.getpid()):
                os.kill(process, signal.SIGKILL)
        shown = show(recorded.caller, replay_id)
        assert len(calls_of(app)) == len(set(calls_of(app)))
    assert (shown["status"], shown["error"]["type"]) == ("failed", "sandbox"), shown
    assert_recorded(recorded, shown)


@pytest.mark.parametrize("_", range(KILLS))
def test_a_lost_proxy_fails_the_replay(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, _: int) -> None:
    started: list[proxies.FilteringProxy] = []
    start = proxies.FilteringProxy.start

    def start_and_note(proxy: proxies.FilteringProxy) -> None:
        start(proxy)
        started.append(proxy)

    monkeypatch.setattr(proxies.FilteringProxy, "start", start_and_note)
    with run_webapp("slow") as app:
        replay_id = ask_live(recorded.caller, recorded.session_id, app)
        with work_in_thread(recorded.caller):
            wait_for(lambda: has_acted(recorded, replay_id), seconds=120)
            started[0].stop()
        shown = show(recorded.caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "sandbox"), shown
    assert_recorded(recorded, shown)


@contextmanager
def replay_worker(recorded: Recorded) -> Iterator[subprocess.Popen[bytes]]:
    """A replay worker of the deployment, as `recorder replay-worker` starts one."""
    settings = recorded.caller.service.runtime.settings
    command = [sys.executable, "-m", "recorder.cli", "replay-worker", "--places", "1"]
    environment = {**os.environ, **settings.as_env(), "PYTHONPATH": str(ROOT)}  # noqa: TID251
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stderr is not None
        wait_for(lambda: b"Waiting for live replays" in process.stderr.readline(), seconds=120)  # type: ignore[union-attr]
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stderr.close()


@pytest.mark.parametrize("_", range(KILLS))
def test_a_worker_does_replays_and_a_killed_one_leaves_nothing_open(recorded: Recorded, _: int) -> None:
    caller = recorded.caller
    with run_webapp("base") as app, replay_worker(recorded):
        replay_id = ask_live(caller, recorded.session_id, app)
        wait_for(lambda: read_row(caller, replay_id).finished_at, seconds=120)
        assert show(caller, replay_id)["status"] == "completed"
        assert len(calls_of(app)) == 2
    with run_webapp("slow") as app:
        with replay_worker(recorded) as worker:
            replay_id = ask_live(caller, recorded.session_id, app)
            wait_for(lambda: has_acted(recorded, replay_id), seconds=120)
            (browser,) = browser_processes(worker.pid)
            worker.kill()
            worker.wait()
        wait_for(lambda: not is_running(browser), seconds=20)
        with caller.service.runtime.database.transaction(write=True) as db:
            lease = db.get_one(LeaseRow, LEASE_PREFIX + replay_id)
            lease.expires_ms = 1  # as if half a minute had gone by
            db.add(lease)
        with replay_worker(recorded):
            wait_for(lambda: read_row(caller, replay_id).finished_at, seconds=20)
        assert len(calls_of(app)) == len(set(calls_of(app)))
    shown = show(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "internal"), shown
    assert_recorded(recorded, shown)
    row = read_row(caller, replay_id)
    assert row.input_values is None
    data = caller.service.runtime.settings.data_dir
    files = [path for path in data.rglob("*") if path.is_file()]
    assert not [path for path in files if PASSWORD.encode() in read_stored_file(path)]
