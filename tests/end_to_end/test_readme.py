"""The examples of README.md and docs/ run unchanged, against the service with Dagster."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recorder.access.workspaces import create_workspace
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.supervisor import run_service
from tests.support.captured_pages import find_browser
from tests.support.data_folders import group_files_by_holding
from tests.support.databases import part_is_missing

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A refused request must fail the script, which curl alone does not see to.
_PRELUDE = 'set -euo pipefail\ncurl() { command curl --fail-with-body "$@"; }\n'
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "bash": lambda text: ["bash", "-c", _PRELUDE + text],
    "python": lambda text: [sys.executable, "-c", text],
}
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.stem not in ("README", "spec-choices"))
_PATIENCE_S = 120


def examples(page: Path, language: str) -> str:
    """Return all blocks of a page in one language, in order."""
    return "\n".join(text for name, text in _BLOCK.findall(page.read_text()) if name == language)


def languages(page: Path) -> list[str]:
    """Return the languages of a page's examples, in the order in which they first appear."""
    result = dict.fromkeys(name for name, _ in _BLOCK.findall(page.read_text()))
    return [name for name in result if name in COMMANDS]


@dataclass(frozen=True)
class Deployment:
    """A running service, with the variables that a shell needs."""

    variables: dict[str, str]
    #: As `recorder workspaces create` makes it, with the limits of the specification.
    readme_key: str


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield API and Dagster on a folder of their own; `python` and `recorder` are those of this checkout."""
    data = tmp_path_factory.mktemp("deployment")
    commands = tmp_path_factory.mktemp("commands")
    make_command(commands / "python", f'"{sys.executable}" "$@"')
    make_command(commands / "recorder", f'"{sys.executable}" -m recorder.cli "$@"')
    settings = Settings.from_env({}, data_dir=data)
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "examples", region="us", secret=settings.secret, tier="unlimited")
        readme_key = create_workspace(db, "readme", region="us", secret=settings.secret).key
    runtime.close()
    with run_service(settings, dagster=True) as service:
        variables = {
            "PATH": f"{commands}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(commands),
            "PYTHONPATH": str(ROOT),
            "RECORDER_URL": service.base_url,
            "RECORDER_KEY": made.key,
            "RECORDER_DATA_DIR": str(data),
        }
        yield Deployment(variables, readme_key)


def make_command(path: Path, line: str) -> None:
    """Return a command of one line."""
    path.write_text(f"#!/bin/sh\nexec {line}\n")
    path.chmod(0o755)


def test_the_readme_leads_from_a_recording_to_a_data_frame(
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where fetched files are kept
    monkeypatch.setenv("RECORDER_URL", deployment.variables["RECORDER_URL"])
    monkeypatch.setenv("RECORDER_KEY", deployment.readme_key)
    values: dict[str, Any] = {}
    exec(compile(examples(ROOT / "README.md", "python"), "README.md", "exec"), values)
    values["client"].close()
    rows = values["events"].select("session_id", "type", "outcome", "actor_kind").unique()
    expected = [
        (session_id, type, "success", "human")
        for session_id in sorted(values["sessions"])
        for type in ("click", "navigate")
    ]
    assert isinstance(values["events"], pl.DataFrame)
    assert (values["events"].height, rows.sort("session_id", "type").rows()) == (6, expected)
    assert "100% of the runs, 100% of them successful" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, deployment: Deployment, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        part_is_missing("curl is not installed (apt-get install curl).")
    if page.stem == "capture":
        find_browser()
    for language in languages(page):
        done = subprocess.run(
            COMMANDS[language](examples(page, language)),
            cwd=tmp_path,
            env=deployment.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout


def test_the_data_folder_of_the_deployment_has_only_files_at_listed_places(deployment: Deployment) -> None:
    places = group_files_by_holding(Path(deployment.variables["RECORDER_DATA_DIR"]))
    assert {"lake events", "lake sessions", "service logs", "Dagster's records"} <= places.keys()


def test_every_page_has_examples_in_shell_and_in_python() -> None:
    assert len(PAGES) >= 11
    assert [page.stem for page in PAGES if set(languages(page)) != set(COMMANDS)] == [
        "client",
        "destinations",
        "recipes",
    ]
