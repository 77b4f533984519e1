"""`recorder status` on a data folder: stopped, running, without a deployment. Contract §9."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recorder.access.dagster_login import LoginLinks
from recorder.cli import app as command_line
from recorder.data_folder import DataFolderUnusable, NoDeployment
from recorder.settings import Settings
from recorder.supervisor.run_records import (
    DAGSTER_WEBSERVER,
    SERVICE,
    AlreadyRunning,
    RunRecord,
    read_run_record,
)
from tests.support.http_service import running_service
from tests.support.sealed_sessions import make_runtime

MEMBERS = {"release": "2026.5.0", "since": "2026-05-01T08:00:00.000Z"}


def run(data: Path, *words: str) -> Any:
    return CliRunner().invoke(command_line, ["status", "--data", str(data), *words])


def read(data: Path) -> dict[str, Any]:
    done = run(data, "--json")
    assert done.exit_code == 0, done.output
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def test_a_folder_without_a_deployment_is_left_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for words in (["status"], ["dagster-webserver"]):
        done = CliRunner().invoke(command_line, [*words, "--data", str(data)])
        assert done.exit_code == 1 and isinstance(done.exception, NoDeployment)
        assert f"no deployment in {data}" in str(done.exception)
    assert not data.exists()


def test_a_stopped_deployment_has_no_link(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    result = read(tmp_path)
    assert result["running"] is False and result["api"] is None and result["login_url"] is None
    assert "stopped" in run(tmp_path).stdout
    assert not (tmp_path / "dagster-login").exists()


def test_a_running_one_shows_addresses_and_a_link_that_works(tmp_path: Path) -> None:
    settings = Settings.from_env({}, data_dir=tmp_path)
    with running_service(tmp_path / "other") as service:
        # Any server that answers /healthz stands for Dagster's pages here.
        record = RunRecord.hold(tmp_path, SERVICE, api=service.url, dagster=service.url, **MEMBERS)
        result, printed = read(tmp_path), run(tmp_path).stdout
        record.release()
    assert result["running"] and result["api"] == {"url": service.url, "answers": True}
    token = result["login_url"].removeprefix(f"{service.url}/login/")
    assert LoginLinks(settings).redeem(token)
    assert all(len(line) <= 80 or str(tmp_path) in line for line in printed.splitlines())
    assert f"{service.url}/login/" in printed and token not in printed


def test_a_service_that_starts_has_no_address_yet(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    with RunRecord.hold(tmp_path, SERVICE, **MEMBERS):
        result, printed = read(tmp_path), run(tmp_path).stdout
    assert result["running"] and result["api"] is None and result["dagster"] is None
    assert "API          starting\n" in printed


def test_pages_that_do_not_answer_get_no_link(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    url = "http://127.0.0.1:9"
    with RunRecord.hold(tmp_path, SERVICE, api=url, dagster=url, **MEMBERS):
        result = read(tmp_path)
        assert "does not answer" in run(tmp_path).stdout
    assert result["dagster"] == {"url": url, "answers": False} and result["login_url"] is None


def test_pages_that_run_alone_are_shown(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    with RunRecord.hold(tmp_path, DAGSTER_WEBSERVER, url="http://127.0.0.1:9"):
        result = read(tmp_path)
    assert not result["running"] and result["dagster"]["url"] == "http://127.0.0.1:9"


def test_one_process_holds_a_record(tmp_path: Path) -> None:
    with RunRecord.hold(tmp_path, SERVICE, api="a"):
        with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}, at a"):
            RunRecord.hold(tmp_path, SERVICE, api="b")
        record = read_run_record(tmp_path, SERVICE)
        assert record is not None and record["api"] == "a"
        assert stat.S_IMODE((tmp_path / "run" / "service.json").stat().st_mode) == 0o600
    assert read_run_record(tmp_path, SERVICE) is None
    RunRecord.hold(tmp_path, SERVICE, api="b").release()


def test_a_killed_process_leaves_no_record(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from recorder.supervisor.run_records import RunRecord\n"
        f"held = RunRecord.hold(Path({str(tmp_path)!r}), 'service', api='a')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert read_run_record(tmp_path, SERVICE) is not None
        process.kill()
        process.wait()
        assert read_run_record(tmp_path, SERVICE) is None


@pytest.mark.parametrize(("name", "why"), [("run", "File exists"), ("run/service.json", "No space left")])
def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/dev/full")
    with pytest.raises(DataFolderUnusable, match=f"The data folder {tmp_path} cannot be used: {why}"):
        RunRecord.hold(tmp_path, SERVICE, **MEMBERS)
