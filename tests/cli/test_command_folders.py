"""Commands on data folders: no command but three creates a deployment; files are private. Contract §9."""

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from sqlalchemy import create_engine, text
from typer.main import get_command
from typer.testing import CliRunner

from recorder.access.workspaces import WorkspaceExists
from recorder.cli import app as command_line
from recorder.data_folder import DataFolderUnusable, NoDeployment
from recorder.errors import RecorderError
from recorder.runtime import Runtime
from recorder.setting_parsers import UnusableFolderName
from recorder.settings import Settings
from recorder.storage.database import DatabaseUnusable
from tests.support.sealed_sessions import make_runtime

#: Commands that create a deployment, by their name; `workspaces create` does with --init alone.
CREATING = {("up",), ("demo",), ("restore",)}
#: Nothing listens there.
NOWHERE = "http://127.0.0.1:9"
_VALUES = {
    "cron": "0 6 * * *",
    "key": "nsk_local_x",
    "url": NOWHERE,
    "slots": "16",
}

#: What a command wants beside what its parameters require.
_MORE = {"set": ["--tier", "team"], "reseal": ["--all"]}


def commands(
    group: click.Command, name: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command by its whole name, hidden ones too."""
    if isinstance(group, click.Group) or hasattr(group, "commands"):
        for word, command in group.commands.items():  # type: ignore[union-attr]
            yield from commands(command, (*name, word))
    else:
        yield name, group


def words_for(command: click.Command, elsewhere: Path) -> list[str]:
    """Return values for what the command requires, and an address where nothing answers."""
    words: list[str] = []
    for parameter in command.params:
        name = parameter.name or ""
        if not parameter.required and name not in ("url", "key"):
            continue
        words += [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
        if name in ("path", "out", "manifest"):
            words.append(str(elsewhere / name))
        else:
            words.append(_VALUES.get(name, "name"))
    if {"session", "tag"} <= {parameter.name for parameter in command.params}:
        words += ["--session", "ses_x"]  # one of both is required
    return words + _MORE.get(command.name or "", [])


ALL = dict(commands(get_command(command_line)))
ON_A_FOLDER = [
    name
    for name, command in ALL.items()
    if any("--data" in parameter.opts for parameter in command.params) and name not in CREATING
]
ELSEWHERE = [name for name in ALL if name not in CREATING and name not in ON_A_FOLDER]


def run(*words: str) -> Any:
    """Run a command as the shell calls it."""
    return CliRunner().invoke(command_line, list(words))


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run without settings, and take back the logging that a command of a process's own sets up."""
    root, ours = logging.getLogger(), logging.getLogger("recorder")
    handlers, level = root.handlers[:], ours.level
    for name in [name for name in os.environ if name.startswith("RECORDER_")]:  # noqa: TID251
        monkeypatch.delenv(name)
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder with the files that some commands read."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "path").write_text("<log/>")
    (folder / "manifest").write_text("{}")
    return folder


def test_the_commands_are_found() -> None:
    assert {("keys", "create"), ("workspaces", "create"), ("workspace", "create")} <= set(ON_A_FOLDER)
    assert {("status",), ("deliver",), ("sessions", "reseal"), ("dagster-webserver",)} <= set(ON_A_FOLDER)
    assert {("sessions", "list"), ("sessions", "tail"), ("export",), ("verify",)} <= set(ELSEWHERE)


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "empty"])
@pytest.mark.parametrize("name", ON_A_FOLDER, ids=" ".join)
def test_a_command_finds_a_deployment_or_says_where_it_looked(
    name: tuple[str, ...],
    is_missing: bool,
    tmp_path: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    words = [*name, *words_for(ALL[name], elsewhere)]
    for option, looked_in in (
        (["--data", "data"], work / "data"),
        ([], work / "recorder-data"),
    ):
        if not is_missing:
            looked_in.mkdir()
        before = sorted(work.rglob("*"))
        done = run(*words, *option)
        assert isinstance(done.exception, NoDeployment), (done.exception, done.output)
        assert done.exit_code == 1 and f"no deployment in {looked_in}. " in str(done.exception)
        assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize("name", ELSEWHERE, ids=" ".join)
def test_a_command_by_address_creates_nothing(
    name: tuple[str, ...], tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    run(*name, *words_for(ALL[name], elsewhere))
    assert list(work.iterdir()) == []
    assert sorted(path.name for path in elsewhere.iterdir()) == ["manifest", "path"]


def test_a_folder_without_a_database_is_no_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Settings.from_env({}, data_dir=tmp_path / "a")  # the secret alone, as a start that failed leaves it
    monkeypatch.setenv("RECORDER_SECRET", "s" * 32)
    (tmp_path / "b").mkdir()
    for folder, there in (("a", {"secret"}), ("b", set())):
        for words in (["keys", "list", "acme"], ["status"], ["deliver"]):
            done = run(*words, "--data", str(tmp_path / folder))
            assert isinstance(done.exception, NoDeployment), done.output
        assert {path.name for path in (tmp_path / folder).iterdir()} == there


def test_a_database_elsewhere_is_found_without_a_folder_and_an_empty_one_stays_empty(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_DATABASE_URL", database_url)
    data = tmp_path / "data"
    runtime = make_runtime(tmp_path / "first", database_url=database_url)
    monkeypatch.setenv("RECORDER_SECRET", runtime.settings.secret.decode())
    runtime.close()
    assert run("workspaces", "list", "--data", str(tmp_path / "first")).exit_code == 0
    if database_url.startswith("sqlite"):
        empty = f"sqlite:///{tmp_path / 'empty.db'}"
        monkeypatch.setenv("RECORDER_DATABASE_URL", empty)
        done = run("workspaces", "list", "--data", str(data))
        assert isinstance(done.exception, NoDeployment) and not (tmp_path / "empty.db").exists()


def test_init_creates_a_deployment_that_only_its_user_reads(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        data = tmp_path / "data"
        made = run("workspaces", "create", "acme", "--init", "--data", str(data))
        assert made.exit_code == 0, made.output
        assert f"Data folder: {data}\n" in made.stderr and str(data) not in made.stdout
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}
        assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
        assert data / "recorder.db" in modes
        again = run("workspaces", "create", "acme", "--init", "--data", str(data))
        assert isinstance(again.exception, WorkspaceExists) and "recorder keys create" in str(again.exception)
    finally:
        os.umask(before)


def test_keys_say_which_folder_they_worked_on(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    run("workspaces", "create", "acme", "--init", "--data", data)
    made = run("keys", "create", "acme", "worker", "--data", data, "--json")
    key = json.loads(made.stdout)
    listed = run("keys", "list", "acme", "--data", data)
    revoked = run("keys", "revoke", key["id"], "--data", data)
    for done in (made, listed, revoked):
        assert done.exit_code == 0 and f"Data folder: {data}\n" in done.stderr
    assert revoked.stdout == "" and len(listed.stdout.splitlines()) == 2


def test_the_old_name_of_the_group_is_hidden_and_works(tmp_path: Path) -> None:
    assert "workspaces" in run("--help").stdout
    assert not [line for line in run("--help").stdout.splitlines() if " workspace " in line]
    make_runtime(tmp_path).close()
    assert run("workspace", "list", "--data", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("a file", DataFolderUnusable),
        ("no database", DatabaseUnusable),
        ("no address", DatabaseUnusable),
        ("a setting", RecorderError),
        ("a region", RecorderError),
    ],
)
def test_what_does_not_admit_a_start_is_one_sentence(
    what: str, error: type[RecorderError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    if what == "a file":
        data.write_text("")
    else:
        make_runtime(data).close()
    if what == "no database":
        for file in data.glob("recorder.db-*"):
            file.unlink()
        (data / "recorder.db").write_text("something else" * 100)
    if what == "no address":
        monkeypatch.setenv("RECORDER_DATABASE_URL", "mysql://somewhere:secret-word@db/x")
    if what == "a setting":
        monkeypatch.setenv("RECORDER_WEBHOOK_ATTEMPTS", "many")
    if what == "a region":
        monkeypatch.setenv("RECORDER_REGION", "eu")
    words = ["workspaces", "create", "acme", "--init"] if what == "a file" else ["keys", "list", "acme"]
    done = run(*words, "--data", str(data))
    assert isinstance(done.exception, error), (done.exception, done.output)
    sentence = str(done.exception)
    assert "\n" not in sentence and "secret-word" not in sentence and sentence.endswith(".")


def test_a_database_of_another_release_is_left_alone(tmp_path: Path) -> None:
    runtime: Runtime = make_runtime(tmp_path)
    url = runtime.settings.database_url
    runtime.close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    engine.dispose()
    done = run("keys", "list", "acme", "--data", str(tmp_path))
    assert done.exit_code == 1 and "another release" in str(done.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("up", "--port"),
        ("up", "--dagster-port"),
        ("doctor", "--port"),
        ("doctor", "--dagster-port"),
        ("dagster-webserver", "--port"),
        ("webhooks", "listen", "--port"),
    ],
    ids=" ".join,
)
def test_a_port_that_cannot_exist_is_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(command_line, [*words, "99999"], env={"RECORDER_DATA_DIR": str(tmp_path)})
    assert done.exit_code == 2 and words[-1] in done.output and "65535" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["100 %", "100%x", "a#b ü"])
def test_a_folder_may_have_characters_that_mean_something_in_addresses(tmp_path: Path, name: str) -> None:
    data, copy = tmp_path / name, tmp_path / f"copy {name}"
    assert run("workspaces", "create", "acme", "--init", "--data", str(data)).exit_code == 0
    assert (data / "recorder.db").exists()
    assert run("backup", str(tmp_path / "backups"), "--data", str(data)).exit_code == 0
    secret = ("--secret-file", str(data / "secret"))
    restored = run("restore", str(tmp_path / "backups"), *secret, "--data", str(copy))
    assert restored.exit_code == 0, restored.output
    for folder in (data, copy):
        listed = json.loads(run("workspaces", "list", "--data", str(folder), "--json").stdout)
        assert [workspace["name"] for workspace in listed] == ["acme"]
        findings = json.loads(run("doctor", "--data", str(folder), "--json").stdout)
        assert [finding for finding in findings if finding["state"] == "error"] == []
    assert {path.name for path in tmp_path.iterdir()} == {data.name, copy.name, "backups"}


@pytest.mark.parametrize("name", ["a::b", "a?b", "feature%2Fbranch", "q%41"])
@pytest.mark.parametrize("variable", [None, "RECORDER_LAKE_URL", "RECORDER_BLOB_URL"])
def test_a_folder_whose_path_means_something_else_in_an_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path / name))
    data = tmp_path / (name if variable is None else "data")
    done = run("workspaces", "create", "acme", "--init", "--data", str(data))
    assert isinstance(done.exception, UnusableFolderName) and str(tmp_path / name) in str(done.exception)
    assert not (tmp_path / name).exists() and not (tmp_path / "data" / "recorder.db").exists()
