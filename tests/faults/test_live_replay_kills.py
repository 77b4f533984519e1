"""Live replays that lose their browser, proxy, worker or API: they end typed, and nothing is sent twice.

`RECORDER_FAULT_LIVE_KILLS` is how often each is lost, one step later each time.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.webapp.server import PASSWORD, WebApp, run_webapp
from recorder.live import proxy as proxies
from recorder.live.claimed_replay import LEASE_MS
from tests.faults.api_restarts import Lives, api_lives
from tests.faults.replay_losses import (
    AFTER_LEASE_S,
    assert_no_inputs,
    find_command,
    list_descendants,
    wait_until_gone,
)
from tests.live.conftest import Recorded, recorded
from tests.support.factories import Caller
from tests.support.live_replays import ask_live, read_row, show, work_in_thread
from tests.support.waiting import wait_for

__all__ = ["recorded"]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("RECORDER_FAULT_LIVE_KILLS", "1"))  # noqa: TID251
#: Step at which something is lost: the first three sign in, the last one approves the invoice.
FIRST_STEP, LAST_STEP = 3, 10


def browser_processes(parent: int) -> list[int]:
    """Return the processes below one that hold a browser of the live sandbox."""
    return [
        process
        for process in list_descendants(parent)
        if "recorder.live.browser_process" in find_command(process)
    ]


def calls_of(app: WebApp) -> list[str]:
    """Return the paths of the requests that the application got, as `GET /calls` lists them."""
    calls = httpx.get(f"{app.url}/calls", trust_env=False).json()["calls"]
    return [call["path"] for call in calls]


@dataclass(frozen=True)
class Loss:
    """Moment at which a part of a live replay is lost, and the processes that did the replay then."""

    recorded: Recorded
    app: WebApp
    replay_id: str
    at_s: float
    processes: set[int]

    @classmethod
    def wait_for_step(cls, recorded: Recorded, app: WebApp, replay_id: str, kill: int, worker: int) -> "Loss":
        """Wait until a step has begun, a later one with each kill.

        Args:
            recorded: the recording.
            app: application on which it is replayed.
            replay_id: the replay.
            kill: number of the kill.
            worker: process that does the replay.
        """
        step = FIRST_STEP + kill % (LAST_STEP - FIRST_STEP + 1)
        wait_for(lambda: read_row(recorded.caller, replay_id).step >= step, seconds=120)
        browsers = browser_processes(worker)
        assert browsers and read_row(recorded.caller, replay_id).finished_at is None
        processes = {*browsers}.union(*map(list_descendants, browsers))
        return cls(recorded, app, replay_id, time.monotonic(), processes)

    def require_end(self, status: str, error: str | None, caller: Caller | None = None) -> None:
        """Wait for the end of the replay, and require it typed, in time and without remains."""
        caller = caller or self.recorded.caller
        seconds = LEASE_MS / 1_000 + AFTER_LEASE_S - (time.monotonic() - self.at_s)
        wait_for(lambda: read_row(caller, self.replay_id).finished_at, seconds=seconds)
        shown = show(caller, self.replay_id)
        assert (shown["status"], (shown["error"] or {}).get("type")) == (status, error), shown
        assert len(calls_of(self.app)) == len(set(calls_of(self.app)))
        wait_until_gone(self.processes)
        assert_no_inputs(caller.service.runtime, [self.replay_id], PASSWORD)
        self._require_recording(caller, shown)

    def _require_recording(self, caller: Caller, shown: dict[str, Any]) -> None:
        """Require that the recording of the run has stopped, with the steps that were done."""
        session = caller.get(f"/v1/sessions/{shown['result_session_id']}").json()
        outcome = "success" if shown["status"] == "completed" else "abandoned"
        assert (session["status"], session["origin"], session["outcome"]) == ("stopped", "replay", outcome)
        assert session["event_count"] >= 1 and session["frame_count"] >= 1


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_browser_fails_the_replay(recorded: Recorded, kill: int) -> None:
    with run_webapp("slow") as app:
        replay_id = ask_live(recorded.caller, recorded.session_id, app)
        with work_in_thread(recorded.caller):
            loss = Loss.wait_for_step(recorded, app, replay_id, kill, os.getpid())
            for process in browser_processes(os.getpid()):
                os.kill(process, signal.SIGKILL)
        loss.require_end("failed", "sandbox")


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_lost_proxy_fails_the_replay(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    started: list[proxies.FilteringProxy] = []
    start = proxies.FilteringProxy.start

    def start_and_note(proxy: proxies.FilteringProxy) -> None:
        start(proxy)
        started.append(proxy)

    monkeypatch.setattr(proxies.FilteringProxy, "start", start_and_note)
    with run_webapp("slow") as app:
        replay_id = ask_live(recorded.caller, recorded.session_id, app)
        with work_in_thread(recorded.caller):
            loss = Loss.wait_for_step(recorded, app, replay_id, kill, os.getpid())
            started[0].stop()
        loss.require_end("failed", "sandbox")


@contextmanager
def replay_worker(recorded: Recorded) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a replay worker of the deployment, as `recorder replay-worker` starts one."""
    settings = recorded.caller.service.runtime.settings
    command = [sys.executable, "-m", "recorder.cli", "replay-worker", "--places", "1"]
    environment = {**os.environ, **settings.as_env(), "PYTHONPATH": str(ROOT)}  # noqa: TID251
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    printed = process.stderr
    assert printed is not None
    try:
        wait_for(lambda: b"Waiting for live replays" in printed.readline(), seconds=120)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            printed.close()


def test_a_worker_does_replays(recorded: Recorded) -> None:
    caller = recorded.caller
    with run_webapp("base") as app, replay_worker(recorded):
        replay_id = ask_live(caller, recorded.session_id, app)
        wait_for(lambda: read_row(caller, replay_id).finished_at, seconds=120)
        assert show(caller, replay_id)["status"] == "completed"
        assert len(calls_of(app)) == 2


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_replay_of_a_killed_worker_ends_soon_after_its_lease(recorded: Recorded, kill: int) -> None:
    with run_webapp("slow") as app:
        with replay_worker(recorded) as worker:
            replay_id = ask_live(recorded.caller, recorded.session_id, app)
            loss = Loss.wait_for_step(recorded, app, replay_id, kill, worker.pid)
            started = list_descendants(worker.pid)
            worker.kill()
            worker.wait()
        wait_until_gone(started)
        with replay_worker(recorded):
            loss.require_end("failed", "internal")


@contextmanager
def killable_api(recorded: Recorded) -> Iterator[tuple[Lives, Caller]]:
    """Yield an API of the deployment as a process of its own, and a client of it."""
    service = recorded.caller.service
    with (
        api_lives(service.runtime.settings) as lives,
        httpx.Client(base_url=f"http://{lives.host}:{lives.port}", trust_env=False, timeout=60) as client,
    ):
        caller = replace(recorded.caller, service=replace(service, client=client))  # type: ignore[arg-type]
        wait_until_it_answers(caller)
        yield lives, caller


def wait_until_it_answers(caller: Caller) -> None:
    """Wait until the API of a client has started."""

    def answers() -> bool:
        try:
            return bool(caller.get("/v1/replays?limit=1").is_success)
        except httpx.TransportError:
            return False

    wait_for(answers)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_replay_goes_on_while_the_api_is_killed(recorded: Recorded, kill: int) -> None:
    with (
        run_webapp("slow") as app,
        replay_worker(recorded) as worker,
        killable_api(recorded) as (lives, caller),
    ):
        replay_id = ask_live(caller, recorded.session_id, app)
        loss = Loss.wait_for_step(recorded, app, replay_id, kill, worker.pid)
        lives.kill()
        lives.start()
        wait_until_it_answers(caller)
        loss.require_end("completed", None, caller)
        assert len(calls_of(app)) == 2
