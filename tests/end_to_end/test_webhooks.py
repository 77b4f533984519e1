"""Webhooks as people run them: `recorder up` sends, `recorder webhooks listen` receives. Contract §6, §9."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recorder.access.workspaces import create_workspace
from recorder.client import Client
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.supervisor import run_service
from recorder.supervisor.child_commands import choose_child_port
from tests.support.deployment_processes import ROOT, left_after, processes_of, start_up
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path, dict[str, str]]]:
    """Yield API and delivery loop on a folder of their own: a client, the folder, and what a shell needs."""
    data = tmp_path_factory.mktemp("deployment")
    settings = Settings.from_env({}, data_dir=data)
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "examples", region="us", secret=settings.secret, tier="unlimited")
    runtime.close()
    with run_service(settings) as service, Client(service.base_url, made.key) as client:
        variables = {"RECORDER_URL": service.base_url, "RECORDER_KEY": made.key, "PYTHONPATH": str(ROOT)}
        yield client, data, variables


@contextmanager
def listening(variables: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """Yield `recorder webhooks listen`, once it says that it listens."""
    command = [sys.executable, "-m", "recorder.cli", "webhooks", "listen", *options]
    environment = {"PATH": os.environ["PATH"], **variables}  # noqa: TID251
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith(("Webhook whk_", "Listening on ")), line + process.stderr.read()
        try:
            yield process
        finally:
            process.kill()


def test_deliveries_are_printed_verified_until_enough_came(
    deployment: tuple[Client, Path, dict[str, str]],
) -> None:
    client, _, variables = deployment
    options = ("--event", "session.created", "--event", "session.started", "--count", "2", "--json")
    with listening(variables, *options) as process:
        session = client.create_session("checkout", start=True)
        out, err = process.communicate(timeout=60)
    reports = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, "is removed" in err) == (0, True)
    assert {line["type"] for line in reports} == {"session.created", "session.started"}
    assert {line["data"]["session"]["id"] for line in reports} == {session["id"]}
    assert all(line["delivery_id"].startswith("dlv_") for line in reports)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_people_read_them_until_they_end_it_and_nothing_stays_registered(
    deployment: tuple[Client, Path, dict[str, str]], number: signal.Signals
) -> None:
    client, _, variables = deployment
    with listening(variables, "--event", "session.tagged") as process:
        session = client.create_session("checkout", start=True)
        client.tag(session["id"], "seen", data={"text": "\u001b[31mred"})
        assert process.stdout is not None
        said = ""
        while '"text"' not in said:
            said += process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert "session.tagged" in said and "signature valid" in said
    assert "\u001b" not in said and "\\u001b[31mred" in said
    assert (process.returncode, "is removed" in err) == (0, True)
    assert client._get("/v1/webhooks")["data"] == []


def test_with_a_secret_nothing_is_registered_and_what_it_does_not_sign_is_refused(
    deployment: tuple[Client, Path, dict[str, str]], unused_port: int
) -> None:
    client, _, variables = deployment
    url = f"http://127.0.0.1:{unused_port}/"
    mine, other = (client.create_webhook(url, [type]) for type in ("session.created", "session.started"))
    secret = {"RECORDER_WEBHOOK_SECRET": mine["secret"]}
    with listening({**variables, **secret}, "--port", str(unused_port), "--count", "1", "--json") as process:
        client.create_session("checkout", start=True)
        out, _ = process.communicate(timeout=60)
        assert [json.loads(line)["type"] for line in out.splitlines()] == ["session.created"]
    refused = wait_for(
        lambda: [
            delivery for delivery in client.list_deliveries(other["id"]) if delivery["status"] == "failed"
        ]
    )
    assert refused[-1]["error"] == "connection" or refused[-1]["response"]["status"] == 401
    for webhook in (mine, other):
        client.delete_webhook(webhook["id"])


@pytest.fixture
def unused_port() -> int:
    """Return a port that nothing listens on."""
    return choose_child_port("127.0.0.1", 0, option="--port")


def test_a_delivery_loop_that_crashed_comes_back(tmp_path: Path) -> None:
    data, port = tmp_path / "data", choose_child_port("127.0.0.1", 0, option="--port")
    with start_up(data, "--port", str(port), "--no-dagster", folder=tmp_path) as process:
        try:
            first = wait_for(lambda: delivery_process(data))
            os.kill(first, signal.SIGKILL)
            assert wait_for(lambda: delivery_process(data) not in (None, first))
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
            assert processes_of(data) == {}
        finally:
            process.kill()
            left_after(data, 15)


def delivery_process(data: Path) -> int | None:
    """Return the id of the delivery loop's process."""
    result = (pid for pid, command in processes_of(data).items() if "recorder.cli deliver" in command)
    return next(result, None)
