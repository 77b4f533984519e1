"""`recorder up` as people start it: it serves, revives what crashes, and leaves nothing running."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.seeds import new_key
from recorder.settings import Settings
from recorder.supervisor import run_service
from recorder.supervisor.child_commands import choose_child_port
from tests.support.deployment_processes import left_after, processes_of, start_up

ROOT = Path(__file__).parents[2]


@contextmanager
def recorder_up(data: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield `recorder up`, started as a process from another folder, with the address of its API."""
    port = choose_child_port("127.0.0.1", 0, option="--port")
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
    """Return the id of the API's process."""
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
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        # A thread may be about to print an address when the signal arrives.
        assert "Stopping the service; this takes up to ten seconds" in lines
        assert lines[-1] == "The service has stopped"


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


def test_it_serves_on_when_the_reader_of_its_lines_has_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, url):
        assert process.stderr is not None
        process.stderr.close()
        first = delivery_process(data)
        os.kill(first, signal.SIGKILL)  # the restart is printed
        until = time.monotonic() + 60
        while time.monotonic() < until and first in processes_of(data):
            time.sleep(0.1)
        while time.monotonic() < until and "recorder.cli deliver" not in str(processes_of(data)):
            time.sleep(0.1)
        assert delivery_process(data) != first
        wait_ready(url, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_a_restart_that_the_system_refuses_is_tried_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, url):
        most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        used = {int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir()}
        # Room for the log, and not for the pipes of another process.
        room = [number for number in range(max(used) + 3) if number not in used][2]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (room, most[1]))
        os.kill(delivery_process(data), signal.SIGKILL)
        wait_said("The delivery loop cannot be started (Too many open files): next try in", process)
        assert httpx.get(f"{url}/healthz").status_code == 200
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, most)
        wait_said("The delivery loop answers", process)


def test_the_library_alone_says_what_is_missing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recorder", tmp_path / "library" / "recorder")
    with start_up(tmp_path / "data", folder=tmp_path, checkout=tmp_path / "library") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "make up" in said


def test_a_block_of_code_gets_a_service_for_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with run_service(Settings.from_env(data_dir=data)) as service:
        assert httpx.get(f"{service.base_url}/healthz").status_code == 200
    assert processes_of(data) == {}


def delivery_process(data: Path) -> int:
    """Return the id of the delivery loop's process."""
    return next(pid for pid, command in processes_of(data).items() if "recorder.cli deliver" in command)


def test_a_second_service_on_a_folder_says_who_runs_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, url):
        with start_up(data, "--port", "0", "--no-dagster", folder=tmp_path) as second:
            _, said = second.communicate(timeout=60)
        assert second.returncode == 1
        # One sentence: who holds the folder, since when and at which address, and what to do.
        assert f"the data folder {data}: process {process.pid}, since 2" in said and f", at {url}." in said
        assert len(said.splitlines()) == 1 and "--data" in said
        wait_ready(url, process)


def test_it_says_what_it_does_at_eighty_columns_and_logs_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_REGON", "eu")
    with start_up(Path("data"), "--port", "0", "--no-dagster", folder=tmp_path) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(9)]
        last = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    starts = [
        "Data     ",
        "Warning  RECORDER_REGON is no setting and has no effect. Did you mean RECORDER_REGION?",
        "Starting the API",
        "Starting the delivery loop",
        "The ",
        "The ",
        "API      http://",
        "Dagster  not ",
        "Next     create a workspace",
    ]
    assert [line[: len(start)] for line, start in zip(said, starts, strict=False)] == starts
    assert {said[4], said[5]} == {"The API answers\n", "The delivery loop answers\n"}
    assert last.endswith("recorder workspaces create NAME --data data\n")
    assert max(map(len, said[:1] + said[2:])) <= 81, said  # with the end of the line
    lines = [json.loads(line) for line in (tmp_path / "data/logs/recorder-up.log").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events[0].startswith("Data") and events[-2:] == ["the service stops", "the service has stopped"]


def test_with_a_workspace_the_next_step_is_a_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    new_key(Settings.from_env({}, data_dir=data), name="acme")
    with recorder_up(data, "--no-dagster") as (process, _):
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(4)]
    assert said[0].startswith("Dagster  not ") and said[1] == "Has      workspaces: acme\n"
    assert said[2].startswith("Next     use a key of a workspace")
    assert said[3].endswith("recorder keys create acme LABEL --data data\n")


def test_a_stopped_api_and_delivery_loop_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_ANSWER_WITHIN", "10")
    data = tmp_path / "data"
    with recorder_up(data, "--no-dagster") as (process, url):
        first = {api_process(data), delivery_process(data)}
        for pid in first:
            os.kill(pid, signal.SIGSTOP)
        said = read_until_both_answer(process)
        assert "The API did not answer for 1" in said and "The delivery loop did not answer for 1" in said
        assert said.count("restarting, pause 1 s") == 2
        wait_ready(url, process)
        assert not first & {api_process(data), delivery_process(data)}


def read_until_both_answer(process: subprocess.Popen[str]) -> str:
    """Return the lines printed until API and delivery loop answer."""
    assert process.stderr is not None
    said = ""
    while not ("The API answers" in said and "The delivery loop answers" in said):
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def test_a_webhook_cannot_lead_to_the_service_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = Settings.from_env({}, data_dir=data)
    key = new_key(settings)
    with run_service(settings) as service, httpx.Client(base_url=service.base_url) as client:
        port = service.base_url.rpartition(":")[2]
        client.headers["Authorization"] = f"Bearer {key}"
        for host in ("127.0.0.1", "localhost", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1"):
            body = {"url": f"http://{host}:{port}/v1/sessions", "events": ["session.created"]}
            answer = client.post("/v1/webhooks", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "url_not_allowed"), host


@pytest.mark.parametrize("proxies", [(), ("127.0.0.0/8",)], ids=["none", "loopback"])
def test_the_address_of_a_caller_is_what_a_trusted_proxy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxies: tuple[str, ...]
) -> None:
    # A variable of the server's own must not open what the setting closes.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    data = tmp_path / "data"
    chosen = {"RECORDER_TRUSTED_PROXIES": ",".join(proxies)} if proxies else {}
    settings = Settings.from_env(chosen, data_dir=data)
    key = new_key(settings)
    with run_service(settings) as service, httpx.Client(base_url=service.base_url) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        forwarded = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
        made = client.post("/v1/keys", json={"label": "a", "scope": "read"}, headers=forwarded)
        assert made.status_code == 201
        (entry,) = client.get("/v1/audit", params={"action": "key.create"}).json()["data"]
        # The last address that is not a proxy's own; whoever called it may have written the others.
        assert entry["ip"] == ("198.51.100.7" if proxies else "127.0.0.1")
