"""`recorder sessions list|tail` against the real service, as processes: lines, JSON, Ctrl-C. Contract §9."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recorder.client import Client
from tests.support.client_fixtures import client, service
from tests.support.http_service import RunningService

__all__ = ["client", "service"]


def start(service: RunningService, *words: str, key: str | None = None) -> subprocess.Popen[str]:
    """Start a command of `recorder sessions`."""
    command = [sys.executable, "-m", "recorder.cli", "sessions", *words]
    command += ["--url", service.url, "--key", key or service.key]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=Path(__file__).parents[2])


def run(service: RunningService, *words: str, key: str | None = None) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command that ends by itself."""
    with start(service, *words, key=key) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_sessions_are_listed_newest_first_within_eighty_columns(
    service: RunningService, client: Client
) -> None:
    made = [client.create_session("listed_work", start=True)["id"] for _ in range(3)]
    client.create_session("other_work")
    client.tag(made[0], "success")
    client.stop(made[0])
    code, out, err = run(service, "list", "--workflow", "listed_work")
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines] == made[::-1]
    assert lines[2].split()[1:3] == ["stopped", "success"] and lines[0].split()[1:3] == ["recording", "-"]
    assert max(map(len, [*lines, *err.splitlines()])) <= 80 and err.startswith("session ")
    code, out, _ = run(service, "list", "--where", "status=recording", "--limit", "1", "--json")
    assert [item["id"] for item in json.loads(out)] == [made[2]]
    code, out, err = run(service, "list", "--where", "workflow=listed_work")
    assert (code, out) == (2, "") and "give it as --workflow" in " ".join(err.split())
    code, out, err = run(service, "list", "--workflow", "unheard_of")
    assert (code, out, err) == (0, "", "No session matches.\n")


@pytest.mark.parametrize("command", ["list", "tail"])
def test_a_wrong_key_ends_with_4_and_names_what_to_do(service: RunningService, command: str) -> None:
    code, out, err = run(service, command, key="nsk_local_wrong")
    assert (code, out) == (4, "") and "invalid_api_key" in err and "Traceback" not in err


def test_a_session_is_followed_until_ctrl_c(service: RunningService, client: Client) -> None:
    session_id = client.create_session("approve_invoice", start=True)["id"]
    hostile = "Approve\x1b[31m now\nand here"
    client.add_events(session_id, [{"t_ms": 0, "type": "click", "target": {"name": hostile}}])
    with start(service, "tail", session_id, "--from-start") as process:
        assert process.stdout is not None and process.stderr is not None
        assert f"{session_id} is recording" in process.stderr.readline()
        first = [process.stdout.readline() for _ in range(3)]
        client.add_events(session_id, [{"t_ms": 1_250, "type": "navigate", "title": "Invoice 7"}])
        later = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0 and "Traceback" not in err and out == ""
    assert [line.split()[-1] for line in first[:2]] == ["created", "recording"]
    assert first[2] == "    0.000 s  click         Approve[31m now and here\n"
    assert later == "    1.250 s  navigate      Invoice 7\n"


def test_messages_as_json_are_those_of_the_stream(service: RunningService, client: Client) -> None:
    session_id = client.create_session("approve_invoice", start=True)["id"]
    with start(service, "tail", session_id, "--from-start", "--json") as process:
        assert process.stdout is not None
        messages: list[dict[str, Any]] = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert [message["data"]["status"] for message in messages] == ["created", "recording"]


def test_new_sessions_are_printed_once_each(service: RunningService, client: Client) -> None:
    before = client.create_session("approve_invoice")["id"]
    with start(service, "tail", "--workflow", "approve_invoice") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline().startswith("Waiting for new sessions")
        made: list[str] = []
        printed: list[str] = []
        for _ in range(2):
            made.append(client.create_session("approve_invoice")["id"])
            client.create_session("other_work")
            printed.append(process.stdout.readline().split()[0])
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=20)
    assert process.returncode == 0 and "Traceback" not in err
    assert before not in printed and printed == made and rest == ""


@pytest.mark.parametrize(
    "words", [["tail", "--from-start"], ["tail", "ses_x", "--workflow", "a"]], ids=" ".join
)
def test_options_that_do_not_fit_are_wrong_usage(service: RunningService, words: list[str]) -> None:
    assert run(service, *words)[0] == 2


def test_a_session_that_is_not_there_is_told(service: RunningService) -> None:
    code, _, err = run(service, "tail", "ses_01k0000000000000000000000a")
    assert code == 1 and "not_found" in err and "Traceback" not in err
