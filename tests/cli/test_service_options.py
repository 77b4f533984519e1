"""Options `--url` and `--key` of the commands that call a service."""

import json
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recorder.cli import _print_errors, app
from recorder.errors import ValidationFailed
from recorder.settings import extend_program_environment
from tests.support.deployment_processes import ROOT


@pytest.mark.parametrize(
    ("url", "key", "sentence"),
    [
        (
            "127.0.0.1:8700",
            "nsk_local_x",
            "--url: it takes an address such as http://127.0.0.1:8700; it must begin",
        ),
        ("http://127.0.0.1:8700/v1", "nsk_local_x", "leave out /v1, which the client adds."),
        ("http://127.0.0.1:9", "", "--key: it takes an API key such as nsk_local_"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_takes(url: str, key: str, sentence: str) -> None:
    done = CliRunner().invoke(app, ["sessions", "list", "--url", url, "--key", key], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_wrong_port_is_refused_with_what_it_takes(port: str) -> None:
    done = CliRunner().invoke(app, ["up", "--port", port], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "'--port': it takes a port from 0 to 65535" in done.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sessions", "list", "--key", "k", "--limit", "0"], "it takes a number greater than or equal to 1"),
        (["drift", "list", "--mode", "all"], "Invalid value for '--mode': 'all' is not one of"),
    ],
)
def test_a_wrong_value_is_refused_without_words_of_the_parser(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_finds_no_space_is_one_sentence() -> None:
    command = [sys.executable, "-m", "recorder.cli", "--version"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == (
        "The output cannot be written: no space is left. Free some, or choose another folder.\n"
    )


def test_an_address_where_nothing_listens_is_named_with_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recorder.cli", "verify", "http://127.0.0.1:1/v1/exports/exp_1/manifest"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("http://127.0.0.1:1/: ")
    assert "recorder up" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_on_a_terminal_an_error_is_wrapped_and_its_commands_stay_whole(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = [sys.executable, "-m", "recorder.cli", "workspaces", "list", "--data", str(tmp_path / "no")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, check=False, timeout=60)
    os.close(terminal)
    lines = os.read(master, 4_096).decode().splitlines()
    os.close(master)
    assert done.returncode == 1 and len(lines) > 1
    assert [line for line in lines if len(line) > 80 and str(tmp_path) not in line] == []
    assert any("`recorder workspaces create --init`" in line for line in lines)


def test_characters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    environment = extend_program_environment({"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)})
    outputs = []
    for words in (["create", "Größe → 3", "--init"], ["list"], ["list", "--json"]):
        command = [sys.executable, "-m", "recorder.cli", "workspaces", *words, "--data", str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "Größe ? 3" in outputs[1].decode("latin-1")
    assert json.loads(outputs[2])[0]["name"] == "Größe → 3"


def test_a_field_that_is_refused_is_named_with_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValidationFailed.of("workflow", "invalid_value", message="Takes a slug.", where="query")
    with pytest.raises(SystemExit), _print_errors():
        raise error
    assert capsys.readouterr().err == "workflow: Takes a slug.\n"
