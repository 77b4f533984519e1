"""Live replays beside a bare Playwright script that does the same actions on the same pages, in turn.

Both are timed by the clock in an open page: the replay from its first step until all of it is stored, with
the rows of its steps, its recording and the closing frame.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import orjson
from playwright.sync_api import Browser, sync_playwright
from sqlmodel import select

from benchmarks.figure_reports import Figure, Skipped, at_most
from benchmarks.seal_memory import seal_all
from benchmarks.seeds import new_key, new_settings
from examples.webapp.approval import approve_invoice
from examples.webapp.record import record_runs
from examples.webapp.server import PASSWORD, run_webapp
from recorder.access.keys import authenticate_key
from recorder.audit.log import Origin
from recorder.client import Client
from recorder.live.claimed_replay import claim_live_replay, run_claimed_replay
from recorder.live.replay_journal import LiveResult
from recorder.live.replay_plan import LiveReplayPlanner
from recorder.live.run_recording import ReplayRunRecorder
from recorder.live.step_execution import StepExecutor
from recorder.live.step_loop import LiveRun
from recorder.models.replay import ReplayCreate, ReplayRow, ReplayStepRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.recordings.recording_reads import read_recording
from recorder.replay_service.requests.replays import create_replay
from recorder.replay_service.requests.request_checks import EarlierLookup
from recorder.runtime import Runtime
from recorder.setting_parsers import BrowserSettings
from recorder.supervisor import run_service

_STEPS = 10


@dataclass
class _ReplayTimes:
    """Milliseconds of the steps of a live replay, by where they end."""

    #: The last frame is taken; it may not be stored yet.
    until_taken: float = 0.0
    #: All that the replay records is stored.
    until_stored: float = 0.0
    #: Sum of the times in the rows of the steps, each of which ends before its row is stored.
    in_rows: float = 0.0


class _NoRecording:
    """Takes the tags of the example's script, and keeps none."""

    def tag(self, *_: Any, **__: Any) -> None:
        """Take a tag."""


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure a step of a live replay, with all that is verified, stored and recorded."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        raise Skipped("there is no Chromium")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        browser = BrowserSettings(outbound=("loopback",), no_sandbox=os.geteuid() == 0)
        settings = replace(new_settings(Path(folder)), browser=browser)
        key = new_key(settings)
        with run_service(settings, dagster=False) as service, Client(service.base_url, key) as client:
            (session_id,) = record_runs(client, "base", 1, browser_path=browser_path)
        runtime = Runtime.open(settings)
        stack.callback(runtime.close)
        seal_all(runtime)
        planner = LiveReplayPlanner()
        stack.callback(planner.end)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=browser_path)
        stack.callback(browser.close)
        captured: list[_ReplayTimes] = []
        verified: list[_ReplayTimes] = []
        bare: list[float] = []
        for _ in range(3 if quick else 10):
            bare.append(_run_script(browser) / _STEPS)
            captured.append(_replay(runtime, planner, key, session_id))
            with _left_out_capture():
                verified.append(_replay(runtime, planner, key, session_id))
    return [
        Figure(
            name=f"live replay, a step with verification{what}",
            unit="ms",
            ours=[times.until_stored / _STEPS for times in ours],
            peer=bare,
            peer_name="the bare script",
            goal=at_most(goal),
            detail={
                "steps": _STEPS,
                "until the last frame is taken, ms": [times.until_taken / _STEPS for times in ours],
                "in the rows of the steps, ms": [times.in_rows / _STEPS for times in ours],
            },
        )
        for what, ours, goal in ((" and frame", captured, 3.5), (" alone", verified, 2))
    ]


@contextmanager
def _left_out_capture() -> Iterator[None]:
    """Do live replays that record neither frames nor events, to see what recording them costs."""
    with (
        patch.object(StepExecutor, "take_frame", lambda _actor, _state: None),
        patch.object(ReplayRunRecorder, "add_event", lambda _recording, _event: None),
    ):
        yield


@contextmanager
def _timed_steps() -> Iterator[_ReplayTimes]:
    """Measure the live replay of the block, from its first step."""
    times = _ReplayTimes()
    began = 0.0
    run, close = LiveRun.run, ReplayRunRecorder.close

    def run_timed(steps: LiveRun) -> LiveResult:
        nonlocal began
        began = time.perf_counter()
        result = run(steps)
        times.until_taken = 1000 * (time.perf_counter() - began)
        return result

    def close_timed(recording: ReplayRunRecorder) -> None:
        close(recording)
        times.until_stored = 1000 * (time.perf_counter() - began)

    with patch.object(LiveRun, "run", run_timed), patch.object(ReplayRunRecorder, "close", close_timed):
        yield times


def _run_script(browser: Browser) -> float:
    """Return the milliseconds of the actions by themselves, in a page that is open."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    with run_webapp("base") as app:
        began = time.perf_counter()
        approve_invoice(page, app.url, _NoRecording())
        ms = (time.perf_counter() - began) * 1000
    page.close()
    return ms


def _replay(runtime: Runtime, planner: LiveReplayPlanner, key: str, session_id: str) -> _ReplayTimes:
    """Return the times of a live replay that must be completed.

    Raises:
        RuntimeError: if it ended otherwise.
    """
    with run_webapp("base") as app:
        port = app.server_address[1]
        with runtime.database.transaction(write=True) as db:
            caller = authenticate_key(db, key, secret=runtime.settings.secret)
            workspace = db.get_one(WorkspaceRow, caller.workspace_id)
            workspace.live_hosts = [f"localhost:{port}"]
            db.add(workspace)
            db.flush()
            session = db.get_one(SessionRow, session_id)
            body = ReplayCreate.model_validate(
                {
                    "session_id": session.id,
                    "sandbox": "live",
                    "inputs": {"password": PASSWORD},
                    "policy": {
                        "repeat_consequential": True,
                        "base_url_map": {_find_base(runtime, session): f"http://localhost:{port}"},
                    },
                }
            )
            origin = Origin.operator(caller.workspace_id)
            replay_id = create_replay(
                db, runtime, caller, body, first_event=EarlierLookup(), origin=origin
            ).id
        with runtime.database.transaction(write=True) as db:
            claimed = claim_live_replay(db, "benchmark", [replay_id])
        if claimed is None:
            raise RuntimeError(f"{replay_id} cannot be claimed.")
        with _timed_steps() as times:
            run_claimed_replay(runtime, *claimed, planner)
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(ReplayRow, replay_id)
        steps = db.exec(select(ReplayStepRow).where(ReplayStepRow.replay_id == replay_id)).all()
    if row.status != "completed":
        raise RuntimeError(f"{replay_id} is {row.status}: {row.error or row.divergence}")
    times.in_rows = float(sum(step.ms or 0 for step in steps))
    return times


def _find_base(runtime: Runtime, session: SessionRow) -> str:
    """Return the address of the application that was recorded, without its path."""
    (first, *_) = read_recording(runtime, session).events
    parts = urlsplit(orjson.loads(bytes(first.payload))["url"])
    return f"{parts.scheme}://{parts.netloc}"
