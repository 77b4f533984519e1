"""Live replays of recordings of the example web application, for tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from api.app import create_app
from examples.webapp.record import record_runs
from examples.webapp.server import PASSWORD, WebApp
from recorder import Client
from recorder.live.claimed_replay import claim_live_replay, list_next_live_replays, run_claimed_replay
from recorder.live.replay_plan import LiveReplayPlanner
from recorder.models.replay import ReplayRow
from recorder.setting_parsers import BrowserSettings
from tests.support.browser import find_chromium, find_readable_chromium
from tests.support.factories import Caller, Service
from tests.support.http_service import serving
from tests.support.replay_requests import allow_hosts, get_replay
from tests.support.sealed_sessions import accept_stores, make_settings
from tests.support.sealing import seal_all


@contextmanager
def running_live_app(folder: Path, database_url: str) -> Iterator[tuple[Service, int]]:
    """Yield the application with a live sandbox that may reach loopback, and the port on which it answers."""
    # Chromium's own sandbox needs rights that many machines of tests withhold.
    browser = BrowserSettings(outbound=("loopback",), no_sandbox=True, chromium=find_readable_chromium())
    settings = accept_stores(make_settings(folder, database_url=database_url))
    app = create_app(replace(settings, browser=browser))
    with (
        TestClient(app, raise_server_exceptions=False) as client,
        serving(app, lifespan="off") as port,
    ):
        yield Service(app, client, app.state.runtime), port


def record_approval(caller: Caller, port: int) -> str:
    """Record the approval of an invoice with the browser; return the sealed session."""
    with Client(f"http://127.0.0.1:{port}", caller.key.key) as client:
        (session_id,) = record_runs(client, "base", 1, browser_path=find_chromium())
    seal_all(caller.service.runtime)
    return session_id


def ask_live(caller: Caller, session_id: str, app: WebApp, **members: Any) -> str:
    """Ask for a live replay on an application; return its id."""
    port = app.server_address[1]
    allow_hosts(caller, f"localhost:{port}")
    first = caller.get(f"/v1/sessions/{session_id}/events?limit=1").json()["data"][0]
    recorded = first["url"].rsplit("/", 1)[0]
    policy = {
        "base_url_map": {recorded: f"http://localhost:{port}"},
        "repeat_consequential": True,
        "step_timeout_ms": 4_000,
        **members.pop("policy", {}),
    }
    body = {"session_id": session_id, "sandbox": "live", "policy": policy, **members}
    body.setdefault("inputs", {"password": PASSWORD})
    answer = caller.post("/v1/replays", body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def work_live(caller: Caller) -> ReplayRow | None:
    """Do the live replay that waits longest, as a worker does; return its row as it was claimed."""
    runtime = caller.service.runtime
    with runtime.database.transaction(write=True) as db:
        claimed = claim_live_replay(db, "tests", list_next_live_replays(db))
    if claimed is None:
        return None
    with LiveReplayPlanner() as planner:
        run_claimed_replay(runtime, *claimed, planner)
    return claimed[0]


def show(caller: Caller, replay_id: str) -> dict[str, Any]:
    """Return the replay now, with its steps."""
    shown = get_replay(caller, replay_id)
    shown["rows"] = caller.get(f"/v1/replays/{replay_id}/steps").json()["data"]
    return shown


@contextmanager
def work_in_thread(caller: Caller) -> Iterator[threading.Thread]:
    """Do the live replay that waits longest while the block goes on, and wait for its end."""
    thread = threading.Thread(target=work_live, args=(caller,), name="live-worker")
    thread.start()
    try:
        yield thread
    except BaseException:
        for shown in caller.get("/v1/replays?status=running").json()["data"]:
            caller.post(f"/v1/replays/{shown['id']}/cancel")
        raise
    finally:
        thread.join(60)
        assert not thread.is_alive()


def step_of(caller: Caller, replay_id: str) -> dict[str, Any]:
    """Wait until a replay awaits a decision; return the step, with the name of its target."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        shown = caller.get(f"/v1/replays/{replay_id}").json()
        assert shown["finished_at"] is None, shown
        if shown["awaiting"] is not None:
            row = read_row(caller, replay_id)
            assert row.awaiting_step == shown["awaiting"]["step"]
            return {**shown["awaiting"], "event_name": _name_step(caller, shown)}
        time.sleep(0.1)
    raise TimeoutError("the replay awaits no decision")


def _name_step(caller: Caller, shown: dict[str, Any]) -> str:
    events = caller.get(f"/v1/sessions/{shown['session_id']}/events").json()["data"]
    actions = [event for index, event in enumerate(events) if event["type"] != "navigate" or index == 0]
    return str(actions[shown["awaiting"]["step"] - 1]["target"]["name"])


def decide(caller: Caller, replay_id: str, action: str, **members: Any) -> None:
    """Decide on the step that is awaited."""
    step = caller.get(f"/v1/replays/{replay_id}").json()["awaiting"]["step"]
    answer = caller.post(f"/v1/replays/{replay_id}/decision", {"step": step, "action": action, **members})
    assert answer.status_code == 200, answer.text


def read_row(caller: Caller, replay_id: str) -> ReplayRow:
    """Return the row of a replay."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return db.get_one(ReplayRow, replay_id)
