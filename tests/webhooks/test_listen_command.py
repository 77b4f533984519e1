"""`recorder webhooks listen` with a secret: what it prints, and how it ends. Contract §6."""

import json
import os
import socket
import subprocess
import sys
import time

import httpx
import pytest
from typer.testing import CliRunner

from recorder.cli import app
from recorder.client.webhook_receiver import DeliveryReceiver, ReceivedDelivery
from recorder.supervisor.child_commands import CannotListen, choose_child_port
from recorder.webhooks.signing import signature_headers
from tests.support.deployment_processes import ROOT

SECRET = "whsec_" + "c2VjcmV0" * 4


def send_delivery(port: int, number: int, *, host: str = "127.0.0.1", type: str = "session.created") -> int:
    """Send a signed delivery; return the status of the answer."""
    body = json.dumps(
        {"id": f"evt_{number}", "type": type, "created_at": "2026-05-01T08:00:00Z", "data": {}}
    ).encode()
    headers = signature_headers(f"evt_{number}", body, [SECRET], int(time.time()))
    headers["Service-Delivery-Id"] = f"dlv_{number}"
    return httpx.post(f"http://{host}:{port}/", content=body, headers=headers, timeout=20).status_code


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["pretty", "json"])
def test_it_ends_when_its_lines_have_no_reader(options: list[str]) -> None:
    port = choose_child_port("127.0.0.1", 0, option="--port")
    command = [sys.executable, "-m", "recorder.cli", "webhooks", "listen", "--secret", SECRET]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}  # noqa: TID251
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "--port", str(port), *options], env=environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stderr.readline().startswith("Listening on ")
            assert send_delivery(port, 1) == 204
            assert "session.created" in process.stdout.readline()
            process.stdout.close()  # as `| head -n 1` does
            assert send_delivery(port, 2) == 204
            assert process.wait(timeout=20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_with_a_secret_it_prints_the_wanted_types_alone() -> None:
    port = choose_child_port("127.0.0.1", 0, option="--port")
    command = [sys.executable, "-m", "recorder.cli", "webhooks", "listen", "--secret", SECRET, "--json"]
    wanted = ["--event", "session.sealed", "--event", "session.tagged", "--count", "2"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}  # noqa: TID251
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "--port", str(port), *wanted], env=environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stderr.readline().startswith("Listening on ")
            types = ("session.created", "session.tagged", "session.created", "session.sealed")
            # The others are received too: the service would send them again.
            assert [send_delivery(port, n, type=type) for n, type in enumerate(types)] == [204] * 4
            assert process.wait(timeout=20) == 0
            printed = [json.loads(line)["type"] for line in process.stdout]
            assert printed == ["session.tagged", "session.sealed"]
        finally:
            process.kill()


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = CliRunner().invoke(app, ["webhooks", "listen", "--secret", SECRET, "--port", str(port)])
    assert isinstance(done.exception, CannotListen)
    assert str(done.exception) == (
        f"Cannot listen on 127.0.0.1, port {port}: another program does. Choose another port with --port."
    )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_an_address_of_ipv6() -> None:
    taken: list[ReceivedDelivery] = []
    receiver = DeliveryReceiver(taken.append, host="::1", port=0)
    receiver.trust(SECRET)
    with receiver.listening():
        assert send_delivery(receiver.port, 1, host="[::1]") == 204
    assert len(taken) == 1
