"""Starts that settings or data do not admit: one sentence on stderr, exit code 1, JSON lines in the log."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from recorder.settings import Settings
from recorder.supervisor.start_checks import FolderOfOthers, check_start
from tests.support.deployment_processes import ROOT, processes_of, start_up
from tests.support.ports import find_free_port
from tests.support.sealed_sessions import make_runtime

_REGION = "belongs to the region us, and RECORDER_REGION is eu"
_RELEASE = "another release, whose data this one cannot read"


def make_foreign(data: Path) -> Settings:
    """Return a deployment of another release."""
    runtime = make_runtime(data)
    runtime.close()
    engine = create_engine(runtime.settings.database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    engine.dispose()
    return runtime.settings


def check_log(data: Path, sentence: str) -> None:
    """Check that every line of the API's log is JSON, and that the last one says why it did not start."""
    text = (data / "logs" / "api.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sentence in lines[-1]["event"] and lines[-1]["level"] == "error"
    assert "Traceback" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("RECORDER_REGION", "eu", _REGION),
        ("RECORDER_LOG_LEVEL", "loud", "RECORDER_LOG_LEVEL takes one of"),
        ("RECORDER_WEBHOOK_ATTEMPTS", "99", "RECORDER_WEBHOOK_ATTEMPTS takes"),
        ("RECORDER_COLD_URL", "bogus://x", "The store that RECORDER_COLD_URL names cannot be opened"),
        ("RECORDER_BLOB_URL", "s3://", "its address has no bucket"),
        ("RECORDER_LIVE_OUTBOUND", "a b", "RECORDER_LIVE_OUTBOUND takes"),
        ("", "", _RELEASE),
    ],
    ids=["foreign region", "log level", "attempts", "store", "bucket", "outbound", "release"],
)
def test_up_says_in_a_sentence_why_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    data = tmp_path / "data"
    if variable:
        make_runtime(data).close()
        monkeypatch.setenv(variable, value)
    else:
        make_foreign(data)
    with start_up(data, "--port", "0", "--no-dagster", folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and sentence in said, said
    assert len(said.splitlines()) == 1, said
    assert processes_of(data) == {}
    # Settings are read before anything starts; what the stores refuse is in the log too.
    if sentence in (_REGION, _RELEASE):
        check_log(data, sentence)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RECORDER_LOG_LEVEL", "loud"), ("RECORDER_REGION", "mars"), ("RECORDER_DAGSTER_AUTH_HEADER", "?")],
)
def test_a_setting_that_cannot_be_read_leaves_no_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    data = tmp_path / "data"
    with start_up(data, "--port", "0", folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and said.startswith(f"{variable} takes "), said
    assert len(said.splitlines()) == 1 and not data.exists()


@pytest.mark.parametrize("option", ["--port", "--dagster-port"])
def test_a_taken_port_leaves_no_new_folder(tmp_path: Path, option: str) -> None:
    ports = {"--port": "0", "--dagster-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[option] = str(taken.getsockname()[1])
        options = [word for pair in ports.items() for word in pair]
        with start_up(tmp_path / "data", *options, folder=tmp_path) as process:
            _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and f"port {ports[option]}" in said and option in said
    assert len(said.splitlines()) == 1 and "Traceback" not in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://somewhere/x", "its address must begin with postgresql:// or sqlite:///"),
        ("postgresql://127.0.0.1:1/none", "it does not answer"),
    ],
)
def test_a_database_that_does_not_answer_leaves_no_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str
) -> None:
    monkeypatch.setenv("RECORDER_DATABASE_URL", url)
    data = tmp_path / "data"
    with start_up(data, "--port", "0", folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and sentence in said, said
    assert len(said.splitlines()) == 1 and not data.exists()


def test_no_deployment_is_created_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    with start_up(tmp_path, "--port", "0", "--no-dagster", folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "holds other files" in said and len(said.splitlines()) == 1, said
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_a_folder_may_hold_other_deployments_and_what_a_start_left(tmp_path: Path) -> None:
    make_runtime(tmp_path / "demo").close()
    # The last two are of a deployment whose database and stores are elsewhere.
    for name in ("logs", "lost+found", ".cache", "exports", "datasets"):
        (tmp_path / name).mkdir()
    check_start(tmp_path, "127.0.0.1", 0, None)
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(FolderOfOthers, match="holds other files"):
        check_start(tmp_path, "127.0.0.1", 0, None)
    (tmp_path / "secret").write_text("of a deployment")
    check_start(tmp_path, "127.0.0.1", 0, None)


def test_one_port_for_both_leaves_no_new_folder(tmp_path: Path) -> None:
    port = str(find_free_port())
    with start_up(tmp_path / "data", "--port", port, "--dagster-port", port, folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "--dagster-port" in said and len(said.splitlines()) == 1, said
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine_is_told_from_a_taken_port(tmp_path: Path) -> None:
    with start_up(tmp_path / "data", "--host", "192.0.2.1", "--port", "0", folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "another one with --host" in said, said


def test_the_demo_says_so_too(tmp_path: Path) -> None:
    data = tmp_path / "recorder-data" / "demo"
    make_foreign(data)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # noqa: TID251
    command = [sys.executable, "-m", "recorder.cli", "demo"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 1 and _RELEASE in done.stderr and len(done.stderr.splitlines()) == 1, done
    assert "Traceback" not in done.stdout and processes_of(data) == {}
    check_log(data, _RELEASE)
