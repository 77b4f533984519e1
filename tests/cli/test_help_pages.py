"""Help of every command, and of make, at 80 columns: nothing is cut off, defaults show, no code's names."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from recorder.cli import app

#: Values and members of the interface that help pages name.
NAMES = {
    *("event_only", "every_n_ms", "keyframes_only", "signed_url", "storage_state"),
    *("key_id", "session_id", "session_ids"),
}
PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
NARROW = {"COLUMNS": "80"}


def list_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of all below it."""
    yield path
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from list_commands(inner, (*path, name))


COMMANDS = list(list_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_nothing_is_cut_off_at_80_columns(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env=NARROW).output
    assert [line for line in shown.splitlines() if len(line) > 80 or _has_cut_text(line)] == []
    # Renamed functions must not reach texts.
    assert set(re.findall("[a-z]+(?:_[a-z]+)+", shown)) <= NAMES


@pytest.mark.parametrize("path", [path for path in COMMANDS if path], ids=" ".join)
def test_values_are_named_as_on_the_page_of_the_command_line(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env=NARROW).output
    assert re.findall(r"<[a-z]|\{[a-zA-Z]+\}", shown) == []
    (usage,) = re.findall(r"Usage: root (.*?)\s*\n", shown)
    headings = re.findall("^## recorder (.*)$", PAGE.read_text(), re.MULTILINE)
    if "COMMAND" not in usage and path[0] != "workspace":
        optional = usage.replace(" [OPTIONS]", "").replace(" [ID…]", " ID…")
        assert optional in headings


def _has_cut_text(line: str) -> bool:
    """Return whether a text ends with an ellipsis; after a name in capitals it says that several may come."""
    return "… " in re.sub("[A-Z]…", "", line)


#: Commands that run until they are ended, and the demonstration.
ENDLESS = {"up", "dagster-webserver", "deliver", "replay-worker", "demo"}
#: Commands whose output has formats of its own.
OWN_FORMATS = {"graph", "audit export"}


def test_every_command_that_prints_data_prints_it_as_json() -> None:
    commands = typer.main.get_command(app)
    without = set()
    for path in COMMANDS:
        command: Any = commands
        for word in path:
            command = command.commands[word]
        if not hasattr(command, "commands") and not any("--json" in option.opts for option in command.params):
            without.add(" ".join(path))
    assert without == ENDLESS | OWN_FORMATS


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_lists_its_targets_in_80_columns_the_first_steps_first() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line.split()[0] for line in lines[:5]] == ["help", "install", "demo", "up", "test"]


def test_defaults_that_no_value_stands_for_are_shown() -> None:
    shown = CliRunner().invoke(app, ["audit", "verify", "--help"], env=NARROW).output
    assert "[default: all]" in shown
    assert "[default: RECORDER_DATA_DIR or" in shown
