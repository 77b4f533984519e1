"""Check of the deployment's secret: a lost or wrong one is refused, and legitimate changes are possible."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recorder import clock
from recorder.cli import app
from recorder.data_folder import MissingSecret, NoDeployment
from recorder.models.workspace import DeploymentRow, WorkspaceRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.deployment import OtherSecret, accept_deployment_secret
from recorder.supervisor.run_records import SERVICE, AlreadyRunning, RunRecord
from tests.support.databases import create_database
from tests.support.sealed_sessions import make_runtime


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment with one workspace."""
    chosen = {}
    if request.param == "postgresql":
        chosen["database_url"] = create_database(request.getfixturevalue("postgres"))
    opened = make_runtime(tmp_path / "data", **chosen)
    with opened.database.transaction(write=True) as db:
        db.add(WorkspaceRow(id="wsp_1", name="acme", region="us", created_at=clock.now()))
    yield opened
    opened.close()


def with_secret(runtime: Runtime, secret: bytes) -> Settings:
    """Return the settings with another secret."""
    return replace(runtime.settings, secret=secret)


def read_check(runtime: Runtime) -> str | None:
    """Return the check value that is stored."""
    with runtime.database.transaction(write=False) as db:
        return db.get_one(DeploymentRow, 1).secret_check


@pytest.mark.parametrize("create", [True, False])
def test_another_secret_does_not_open_the_deployment(runtime: Runtime, create: bool) -> None:
    stored = read_check(runtime)
    with pytest.raises(OtherSecret, match="RECORDER_SECRET"):
        Runtime.open(with_secret(runtime, b"another"), create=create)
    assert read_check(runtime) == stored
    assert runtime.settings.secret.decode() not in str(stored)
    Runtime.open(runtime.settings, create=create).close()


def test_a_deployment_of_an_earlier_release_takes_the_secret_of_its_next_start(runtime: Runtime) -> None:
    with runtime.database.transaction(write=True) as db:
        db.get_one(DeploymentRow, 1).secret_check = None
    # A command is no start: it stores nothing.
    Runtime.open(with_secret(runtime, b"another"), create=False).close()
    assert read_check(runtime) is None
    with ThreadPoolExecutor() as pool:
        for opened in pool.map(Runtime.open, [runtime.settings] * 4):
            opened.close()
    assert read_check(runtime) is not None
    with pytest.raises(OtherSecret):
        Runtime.open(with_secret(runtime, b"another"))


def test_a_deployment_without_a_workspace_takes_another_secret(runtime: Runtime) -> None:
    with runtime.database.transaction(write=True) as db:
        db.delete(db.get_one(WorkspaceRow, "wsp_1"))
    Runtime.open(with_secret(runtime, b"another")).close()
    with pytest.raises(OtherSecret):
        Runtime.open(runtime.settings, create=False)


def test_a_changed_secret_is_accepted_on_purpose(runtime: Runtime) -> None:
    changed = with_secret(runtime, b"changed")
    assert accept_deployment_secret(changed, runtime.database)
    assert not accept_deployment_secret(changed, runtime.database)
    Runtime.open(changed).close()
    with pytest.raises(OtherSecret):
        Runtime.open(runtime.settings)


def test_a_lost_secret_is_replaced_where_the_database_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECORDER_SECRET", raising=False)
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere.db"
    accept = ["db", "accept-secret", "--data", str(data), "--json"]
    assert isinstance(CliRunner().invoke(app, accept).exception, NoDeployment)
    monkeypatch.setenv("RECORDER_DATABASE_URL", f"sqlite:///{elsewhere}")
    created = CliRunner().invoke(app, ["workspaces", "create", "acme", "--init", "--data", str(data)])
    assert created.exit_code == 0, created.output
    (data / "secret").unlink()
    accepted = CliRunner().invoke(app, accept)
    assert accepted.exit_code == 0, accepted.output
    assert json.loads(accepted.stdout) == {"changed": True}
    assert CliRunner().invoke(app, ["workspaces", "list", "--data", str(data)]).exit_code == 0


@pytest.mark.parametrize("content", [None, b"", b"\n"], ids=["missing", "empty", "blank"])
def test_no_secret_is_created_beside_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.delenv("RECORDER_SECRET", raising=False)
    data = tmp_path / "data"
    created = CliRunner().invoke(app, ["workspaces", "create", "acme", "--init", "--data", str(data)])
    assert created.exit_code == 0
    path = data / "secret"
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for create in (True, False):
        with pytest.raises(MissingSecret, match="is missing"):
            Settings.from_env({}, data_dir=data, create=create)
    # The lost secret can be given by the variable, and replaced where nobody has it.
    chosen = Settings.from_env({"RECORDER_SECRET": before.decode()}, data_dir=data, create=False)
    Runtime.open(chosen).close()
    words = ["db", "accept-secret", "--data", str(data), "--json"]
    with RunRecord.hold(data, SERVICE):
        refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, AlreadyRunning)
    accepted = CliRunner().invoke(app, words)
    assert accepted.exit_code == 0, accepted.output
    assert json.loads(accepted.stdout) == {"changed": True}
    assert path.read_bytes() not in (before, content) and path.stat().st_mode & 0o777 == 0o600
    assert CliRunner().invoke(app, ["workspaces", "list", "--data", str(data)]).exit_code == 0
