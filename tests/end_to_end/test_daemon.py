"""The whole service with the real Dagster daemon: sealing, exports and checks, launched in its pages too."""

import json
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorStatus

from recorder.access.dagster_login import log_in_to_dagster
from recorder.access.workspaces import create_workspace
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.supervisor.child_commands import choose_child_port
from tests.support.deployment_processes import ROOT, left_after, processes_of, start_up
from tests.support.factories import frame
from tests.support.waiting import wait_for

RUNS = "{ runsOrError { ... on Runs { results { jobName status } } } }"
MATERIALIZED = (
    '{ assetOrError(assetKey: {path: ["sealed_sessions"]}) { ... on Asset { assetMaterializations(limit: 1) '
    "{ metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"
)


def make_key(settings: Settings) -> str:
    """Return the key of a fresh workspace."""
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "daemon", region="us", secret=settings.secret, tier="unlimited")
    runtime.close()
    return made.key


def make_client(url: str, key: str) -> httpx.Client:
    """Return a client of the API that sends this key."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"})


#: Variables with which programs colour what they print, also to a file.
COLOURING = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "PY_COLORS": "1", "TTY_COMPATIBLE": "1"}
LAUNCH = """
mutation LaunchPipelineExecution($executionParams: ExecutionParams!) {
  launchPipelineExecution(executionParams: $executionParams) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
RUN = """
query Run($id: ID!) {
  runOrError(runId: $id) { ... on Run { status } }
}
"""
#: Names of the checks of a dataset, and the jobs that can run them alone.
CHECKS = """{
  assetNodeOrError(assetKey: {path: ["datasets"]}) { ... on AssetNode {
    assetChecksOrError { ... on AssetChecks { checks { name jobNames canExecuteIndividually } } }
  } }
}"""
EXECUTIONS = """
query Executions($check: String!) {
  assetCheckExecutions(assetKey: {path: ["datasets"]}, checkName: $check, limit: 20) {
    runId status evaluation { success metadataEntries { label ... on TextMetadataEntry { text } } }
  }
}
"""
PARTITIONS = '{ assetNodeOrError(assetKey: {path: ["datasets"]}) { ... on AssetNode { partitionKeys } } }'


@dataclass(frozen=True)
class Deployment:
    """`recorder up` with Dagster as a process: its data folder, its pages, and a client of its API."""

    process: subprocess.Popen[str]
    data: Path
    dagster_url: str
    client: httpx.Client


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield API and Dagster on a folder of their own."""
    folder = tmp_path_factory.mktemp("deployment")
    settings = Settings.from_env(data_dir=folder / "data")
    key = make_key(settings)
    port = choose_child_port("127.0.0.1", 0, option="--port")
    pages = choose_child_port("127.0.0.1", 0, option="--dagster-port")
    ports = ["--port", str(port), "--dagster-port", str(pages)]
    with pytest.MonkeyPatch.context() as variables:
        for name, value in COLOURING.items():
            variables.setenv(name, value)
        started = start_up(settings.data_dir, *ports, folder=folder)
    with started as process:
        try:
            assert process.stderr is not None
            said = ""
            while not (line := process.stderr.readline()).startswith("Dagster  "):
                said += line
                assert process.poll() is None, said
            with make_client(f"http://127.0.0.1:{port}", key) as client:
                yield Deployment(process, settings.data_dir, f"http://127.0.0.1:{pages}", client)
        finally:
            process.kill()
            left_after(settings.data_dir, 15)


def record(client: httpx.Client, *frames: dict[str, Any]) -> str:
    """Record and stop a session of three events and these frames; returns its id."""
    session_id: str = client.post("/v1/sessions", json={"workflow": "checkout", "start": True}).json()["id"]
    events = [{"t_ms": t_ms, "type": "click"} for t_ms in (0, 400, 900)]
    assert client.post(f"/v1/sessions/{session_id}/events", json={"events": events}).status_code == 202
    if frames:
        sent = client.post(f"/v1/sessions/{session_id}/frames", json={"frames": [*frames]})
        assert sent.status_code == 202
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


def ask_dagster(deployment: Deployment, query: str, **values: Any) -> dict[str, Any]:
    """Return the answer of Dagster's own interface."""
    body = {"query": query, "variables": values}
    with log_in_to_dagster(Settings.from_env(data_dir=deployment.data), deployment.dagster_url) as dagster:
        # The pages read the code location at their first query, which takes its time beside other tests.
        answer: dict[str, Any] = dagster.post("/graphql", json=body, timeout=120).json()
    assert "errors" not in answer, answer
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


def launch(deployment: Deployment, job: str, config: dict[str, Any], **members: Any) -> str:
    """Start a run as Dagster's pages do; return its id.

    Args:
        members: of the selector, beside the job; `tags` are those of the run.
    """
    tags = [{"key": key, "value": value} for key, value in members.pop("tags", {}).items()]
    selector = {"pipelineName": job, "repositoryName": "__repository__", "repositoryLocationName": "recorder"}
    sent = {
        "selector": selector | members,
        "mode": "default",
        "runConfigData": json.dumps(config),
        "executionMetadata": {"tags": tags},
    }
    answer = ask_dagster(deployment, LAUNCH, executionParams=sent)["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run_id: str = answer["run"]["runId"]
    return run_id


def wait_until_ended(deployment: Deployment, run_id: str) -> str:
    """Return the status of a run once it has ended."""

    def read_end() -> str | None:
        status: str = ask_dagster(deployment, RUN, id=run_id)["runOrError"]["status"]
        return status if status in ("SUCCESS", "FAILURE", "CANCELED") else None

    ended: str = wait_for(read_end, seconds=120)
    return ended


def export(deployment: Deployment) -> str:
    """Export a session with a frame, hosted by the service; returns the export's id once it is completed."""
    client = deployment.client
    seconds_until_sealed(client, record(client, frame(200)))
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    made = client.post("/v1/exports", json=body).raise_for_status().json()
    address = f"/v1/exports/{made['id']}"
    done = wait_for(lambda: client.get(address).json()["status"] in ("completed", "failed"), seconds=120)
    assert done and client.get(address).json()["status"] == "completed"
    return str(made["id"])


def test_the_checks_of_a_dataset_can_be_run_again_alone(deployment: Deployment) -> None:
    export_id = export(deployment)
    node = ask_dagster(deployment, CHECKS)["assetNodeOrError"]
    checks = node["assetChecksOrError"]["checks"]
    assert {check["name"] for check in checks} == {"files_match_manifest", "rows_match_lake"}
    # The button takes the job of all assets, and sends no configuration.
    (job,) = {name for check in checks for name in check["jobNames"] if name.startswith("__ASSET_JOB")}
    handles = [{"assetKey": {"path": ["datasets"]}, "name": check["name"]} for check in checks]
    run_id = launch(deployment, job, {}, assetSelection=[], assetCheckSelection=handles)
    assert wait_until_ended(deployment, run_id) == "SUCCESS"
    for check in checks:
        executions = ask_dagster(deployment, EXECUTIONS, check=check["name"])["assetCheckExecutions"]
        (ours,) = [execution for execution in executions if execution["runId"] == run_id]
        assert ours["evaluation"]["success"], ours
        entries = {entry["label"]: entry.get("text") for entry in ours["evaluation"]["metadataEntries"]}
        assert entries["export_id"] == export_id


def test_an_export_launched_for_an_unregistered_partition_registers_it(deployment: Deployment) -> None:
    seconds_until_sealed(deployment.client, record(deployment.client))
    before = ask_dagster(deployment, PARTITIONS)["assetNodeOrError"]["partitionKeys"]
    assert "unheard of" not in before
    config = {"ops": {"datasets": {"config": {"workspace": "daemon", "workflow": ["checkout"]}}}}
    tags = {"dagster/partition": "unheard of"}
    run_id = launch(deployment, "export_datasets", config, tags=tags)
    assert wait_until_ended(deployment, run_id) == "SUCCESS"
    after = ask_dagster(deployment, PARTITIONS)["assetNodeOrError"]["partitionKeys"]
    assert {*after} == {*before, "unheard of"}
    (shown,) = deployment.client.get("/v1/exports", params={"tag": "unheard of"}).json()["data"]
    assert shown["status"] == "completed"


def test_a_run_that_raises_leaves_no_colours_in_the_logs(deployment: Deployment) -> None:
    config = {"ops": {"datasets": {"config": {"workspace": "nowhere", "workflow": ["checkout"]}}}}
    run_id = launch(deployment, "export_datasets", config, tags={"dagster/partition": "none"})
    assert wait_until_ended(deployment, run_id) == "FAILURE"
    logs = {path.name: path.read_text() for path in (deployment.data / "logs").iterdir()}
    assert run_id in logs["dagster-code.log"] and "raise UnknownWorkspace" in logs["dagster-code.log"]
    assert [name for name, text in logs.items() if "\x1b" in text] == []


def test_only_the_user_can_read_what_a_deployment_writes(deployment: Deployment) -> None:
    export_id = export(deployment)
    modes = dict(read_modes(deployment.data))
    parts = {path.relative_to(deployment.data).parts[:1] for path in modes}
    assert {("blobs",), ("lake",), ("exports",), ("logs",), ("dagster",), ("secret",)} <= parts
    assert any(export_id in path.parts for path in modes)
    # A socket has 700 too.
    wrong = {
        path: oct(mode) for path, (is_file, mode) in modes.items() if mode != (0o600 if is_file else 0o700)
    }
    assert wrong == {}


def read_modes(data: Path) -> Iterator[tuple[Path, tuple[bool, int]]]:
    """Yield a folder and all that is below it; of each whether it is a file, and its permissions."""
    for path in (data, *data.rglob("*")):
        with suppress(FileNotFoundError):  # some files are there for a moment
            mode = path.lstat().st_mode
            yield path, (stat.S_ISREG(mode), stat.S_IMODE(mode))


def test_a_stop_ends_the_run_at_work_and_leaves_nothing(deployment: Deployment) -> None:
    seconds_until_sealed(deployment.client, record(deployment.client))
    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(timeout=10) == 0
    assert processes_of(deployment.data) == {}
