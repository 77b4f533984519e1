"""The whole service with the real Dagster daemon: what stops gets sealed, and is seen in Dagster's pages."""

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorStatus

from recorder.access.dagster_login import log_in_to_dagster
from recorder.access.keys import create_workspace
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.supervisor.child_commands import choose_child_port
from tests.support.deployment_processes import ROOT, left_after, processes_of, start_up

RUNS = "{ runsOrError { ... on Runs { results { jobName status } } } }"
MATERIALIZED = (
    '{ assetOrError(assetKey: {path: ["sealed_sessions"]}) { ... on Asset { assetMaterializations(limit: 1) '
    "{ metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"
)


def make_key(settings: Settings) -> str:
    """The key of a fresh workspace."""
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "daemon", region="us", secret=settings.secret, tier="unlimited")
    runtime.close()
    return made.key


def make_client(url: str, key: str) -> httpx.Client:
    """A client of the API that sends this key."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"})


@dataclass(frozen=True)
class Deployment:
    """`recorder up` with Dagster as a process: its data folder, its pages, and a client of its API."""

    process: subprocess.Popen[str]
    data: Path
    dagster_url: str
    client: httpx.Client


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """API and Dagster on a folder of their own."""
    folder = tmp_path_factory.mktemp("deployment")
    settings = Settings.from_env(data_dir=folder / "data")
    key = make_key(settings)
    port = choose_child_port("127.0.0.1", 0, option="--port")
    pages = choose_child_port("127.0.0.1", 0, option="--dagster-port")
    ports = ["--port", str(port), "--dagster-port", str(pages)]
    with start_up(settings.data_dir, *ports, folder=folder) as process:
        try:
            assert process.stderr is not None
            while not process.stderr.readline().startswith("Dagster  "):
                assert process.poll() is None
            with make_client(f"http://127.0.0.1:{port}", key) as client:
                yield Deployment(process, settings.data_dir, f"http://127.0.0.1:{pages}", client)
        finally:
            process.kill()
            left_after(settings.data_dir, 15)


def record(client: httpx.Client) -> str:
    """Record and stop a session of three events; returns its id."""
    session_id: str = client.post("/v1/sessions", json={"workflow": "checkout", "start": True}).json()["id"]
    events = [{"t_ms": t_ms, "type": "click"} for t_ms in (0, 400, 900)]
    assert client.post(f"/v1/sessions/{session_id}/events", json={"events": events}).status_code == 202
    assert client.post(f"/v1/sessions/{session_id}/stop").json()["status"] == "stopped"
    return session_id


def seconds_until_sealed(client: httpx.Client, session_id: str, *, patience_s: float = 60) -> float:
    """Return the duration of a session, as its client sees it."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        if client.get(f"/v1/sessions/{session_id}").json()["status"] == "sealed":
            return time.monotonic() - began
        time.sleep(0.02)
    raise TimeoutError(session_id)


def ask_dagster(deployment: Deployment, query: str) -> dict[str, Any]:
    """The answer of Dagster's own interface."""
    with log_in_to_dagster(Settings.from_env(data_dir=deployment.data), deployment.dagster_url) as dagster:
        # The pages read the code location at their first query, which takes its time beside other tests.
        answer: dict[str, Any] = dagster.post("/graphql", json={"query": query}, timeout=120).json()
    return answer["data"]  # type: ignore[no-any-return]


def test_the_first_stopped_session_wakes_dagster(deployment: Deployment) -> None:
    # The goal is ten seconds; a machine that runs other tests beside gets more.
    assert seconds_until_sealed(deployment.client, record(deployment.client)) < 30


def test_sessions_that_follow_are_sealed_at_once(deployment: Deployment) -> None:
    client = deployment.client
    lags = sorted(seconds_until_sealed(client, record(client)) for _ in range(9))
    assert lags[4] < 2


def test_one_run_sealed_them_all_and_says_so(deployment: Deployment) -> None:
    for _ in range(2):
        seconds_until_sealed(deployment.client, record(deployment.client))
    runs = ask_dagster(deployment, RUNS)["runsOrError"]["results"]
    # One more stays at work for small exports.
    sealing = [run for run in runs if run["jobName"] != "write_small_exports"]
    assert sealing == [{"jobName": "seal_stopped_sessions", "status": "STARTED"}]
    (report,) = ask_dagster(deployment, MATERIALIZED)["assetOrError"]["assetMaterializations"]
    assert {entry["label"]: entry.get("intValue") for entry in report["metadataEntries"]}["sessions"] >= 1


def test_a_webhook_cannot_lead_to_dagster(deployment: Deployment) -> None:
    port = deployment.dagster_url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "[::1]"):
        body = {"url": f"http://{host}:{port}/graphql", "events": ["session.created"]}
        answer = deployment.client.post("/v1/webhooks", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "url_not_allowed")


def test_a_sensor_that_is_switched_off_is_a_warning(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(deployment.data / "dagster"))
    with dg.DagsterInstance.from_config(str(ROOT / "dagster_home")) as instance:
        states = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        (state,) = [state for state in states if state.instigator_name == "queued_exports"]
        instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
        wait_for_warnings(deployment, {"sensor_off"})
        instance.update_instigator_state(state)
        wait_for_warnings(deployment, set())


def wait_for_warnings(deployment: Deployment, codes: set[str]) -> None:
    """Return once `/readyz` warns of this alone."""
    until = time.monotonic() + 60
    results: list[dict[str, str]] = [{}]
    while {item.get("code") for item in results} != codes:
        assert time.monotonic() < until, results
        time.sleep(0.5)
        results = deployment.client.get("/readyz").json()["warnings"]


def test_a_stop_ends_the_run_at_work_and_leaves_nothing(deployment: Deployment) -> None:
    seconds_until_sealed(deployment.client, record(deployment.client))
    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(timeout=10) == 0
    assert processes_of(deployment.data) == {}
