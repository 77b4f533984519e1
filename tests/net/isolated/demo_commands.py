"""Last lines of `recorder demo`, followed as printed; run by tests/end_to_end/test_demo_commands.py.

Its addresses have the default ports, which are free in a network that has only loopback.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from recorder.supervisor.run_records import SERVICE, read_run_record
from tests.support.deployment_processes import ROOT, left_after
from tests.support.waiting import wait_for

_PATIENCE_S = 300


@dataclass(frozen=True)
class Demonstration:
    """A demonstration that has ended: its folder, the variables of its shell, and what it printed."""

    folder: Path
    variables: dict[str, str]
    lines: list[str]

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "recorder-data" / "demo"

    def line_after(self, words: str) -> str:
        """Return the line after the one that holds these words."""
        (number,) = [number for number, line in enumerate(self.lines) if words in line]
        return self.lines[number + 1].strip()

    @property
    def key(self) -> str:
        """The key that is printed."""
        return self.line_after("API key, also in")

    @property
    def up_command(self) -> str:
        """The command that serves the data again, in two lines."""
        (number,) = [
            number for number, line in enumerate(self.lines) if "RECORDER_LOCAL_EXPORT_ROOT=" in line
        ]
        return "\n".join(self.lines[number : number + 2])

    def run(self, command: str) -> str:
        """Run a command in a shell that knows nothing of the environment; return what it prints."""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def serving(self, options: str = "") -> Iterator[list[str]]:
        """Run the printed command with these options; yield what it prints once all its processes answer."""
        log = self.folder / "printed"
        with (
            log.open("w") as file,
            subprocess.Popen(
                ["/bin/sh", "-c", f"{self.up_command} {options}"],
                cwd=self.folder,
                env=self.variables,
                stdout=file,
                stderr=file,
            ) as shell,
        ):
            try:
                # The last line is the command for a new key.
                wait_for(
                    lambda: "keys create" in log.read_text() or shell.poll() is not None, seconds=_PATIENCE_S
                )
                assert shell.poll() is None, log.read_text()
                yield log.read_text().splitlines()
            finally:
                record = read_run_record(self.data, SERVICE)
                if record is not None:
                    os.kill(record["process"], signal.SIGTERM)
                shell.wait(20)
                assert left_after(self.data, 15) == {}


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Demonstration:
    """Run a demonstration in a fresh folder, by a shell without an activated environment."""
    folder = tmp_path_factory.mktemp("demonstration")
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "recorder.cli", "demo"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Demonstration(folder, variables, done.stdout.splitlines())


def find_address(printed: list[str], label: str) -> str:
    """Return the first address of the line that begins with a label."""
    (line,) = [line for line in printed if line.startswith(label)]
    return line.removeprefix(label).split()[0]


def test_the_demonstration_leaves_nothing_running(demonstration: Demonstration) -> None:
    assert left_after(demonstration.data, 0) == {}


def test_the_key_the_commands_and_the_addresses_work(demonstration: Demonstration) -> None:
    key_file = demonstration.data / "key"
    assert demonstration.key == key_file.read_text().strip() and key_file.stat().st_mode & 0o077 == 0
    pages = demonstration.line_after("Then open:").split()[0]
    with demonstration.serving() as printed:
        assert httpx.get(pages).status_code == 200
        dagster = find_address(printed, "Dagster ")
        with httpx.Client(timeout=60) as browser:
            assert browser.get(dagster).status_code != 200
            assert browser.get(find_address(printed, "Log in ")).status_code == 200
            opened = browser.get(dagster)
            assert opened.status_code == 200 and "Dagster" in opened.text
        api = find_address(printed, "API ")
        assert pages == f"{api}/docs"
        with httpx.Client(
            base_url=api, headers={"Authorization": f"Bearer {demonstration.key}"}, timeout=60
        ) as client:
            (export,) = client.get("/v1/exports").raise_for_status().json()["data"]
            assert export["status"] == "completed" and export["rows"] > 0
            manifest = client.get(export["manifest_url"]).raise_for_status().json()
            assert manifest["totals"]["rows"] == export["rows"]
        listed = demonstration.run(demonstration.line_after("In another terminal, for example:"))
        assert listed.count("ses_") == 20  # the newest ones
        (command,) = [line.strip() for line in printed if "keys create" in line]
        assert "nsk_" in demonstration.run(command.replace("LABEL", "mine"))


def test_beside_another_service_it_serves_on_the_ports_that_it_prints(demonstration: Demonstration) -> None:
    (line,) = [line for line in demonstration.lines if "--port 0" in line]
    options = line.partition("  and ")[0].strip()
    with (
        socket.create_server(("127.0.0.1", 8700)),
        socket.create_server(("127.0.0.1", 3000)),
        demonstration.serving(options) as printed,
    ):
        for label, path in (("API ", "/docs"), ("Dagster ", "/healthz")):
            address = find_address(printed, label)
            assert not address.endswith((":8700", ":3000"))
            assert httpx.get(f"{address}{path}", timeout=60).status_code == 200
