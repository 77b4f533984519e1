"""`recorder keys`: made, listed and revoked on the data folder, beside a running service. Contract §9."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select
from typer.testing import CliRunner

from recorder.access.keys import authenticate_key
from recorder.access.workspaces import create_workspace
from recorder.cli import app as command_line
from recorder.errors import InvalidApiKey, InvalidTime, NotFound
from recorder.models.operations import AuditRow
from recorder.runtime import Runtime
from tests.support.sealed_sessions import make_runtime


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment with a workspace named acme."""
    opened = make_runtime(tmp_path)
    with opened.database.transaction(write=True) as db:
        create_workspace(db, "acme", region="us", secret=opened.settings.secret)
    yield opened
    opened.close()


def run(runtime: Runtime, *words: str) -> Any:
    """Run a command on this deployment."""
    return CliRunner().invoke(command_line, ["keys", *words, "--data", str(runtime.settings.data_dir)])


def make(runtime: Runtime, *words: str) -> dict[str, Any]:
    """Return a key that the command created."""
    done = run(runtime, "create", "acme", "worker", "--json", *words)
    assert done.exit_code == 0, done.output
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def open_with(runtime: Runtime, key: str) -> Any:
    """Return the caller of a key."""
    with runtime.database.transaction(write=False) as db:
        return authenticate_key(db, key, secret=runtime.settings.secret)


def test_a_made_key_opens_and_does_what_was_asked_for(runtime: Runtime) -> None:
    made = make(
        runtime, "--scope", "admin replay:live", "--mode", "test", "--expires-at", "2999-01-01T00:00:00Z"
    )
    caller = open_with(runtime, made["key"])
    assert (str(caller.scope), caller.mode, caller.key_id) == ("admin replay:live", "test", made["id"])
    assert made["expires_at"] == "2999-01-01T00:00:00.000Z"


def test_stdout_is_the_key_and_nothing_else(runtime: Runtime) -> None:
    done = run(runtime, "create", "acme", "worker")
    assert open_with(runtime, done.stdout.strip()).mode == "live"
    assert "not shown again" in done.stderr


def test_keys_are_listed_newest_first_without_their_value(runtime: Runtime) -> None:
    made = [make(runtime, "--mode", mode) for mode in ("live", "test")]
    listed = json.loads(run(runtime, "list", "acme", "--json").stdout)
    assert [key["id"] for key in listed][:2] == [made[1]["id"], made[0]["id"]]
    assert "key" not in listed[0] and made[0]["key"] not in run(runtime, "list", "acme").stdout
    shown = run(runtime, "list", "acme")
    heads = next(line for line in shown.stderr.splitlines() if line.startswith("key "))
    column = heads.index("last4") + 1
    assert made[0]["key"][-4:] in [line[column : column + 4] for line in shown.stdout.splitlines()]


def test_a_revoked_key_opens_nothing(runtime: Runtime) -> None:
    made = make(runtime)
    done = run(runtime, "revoke", made["id"], "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"id": made["id"], "revoked": True})
    with pytest.raises(InvalidApiKey):
        open_with(runtime, made["key"])
    assert made["id"] not in run(runtime, "list", "acme").stdout
    again = run(runtime, "revoke", made["id"]).exception
    assert isinstance(again, NotFound) and "`recorder keys list WORKSPACE`" in str(again)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("create", "nobody", "worker"), NotFound),
        (("create", "acme", "a\nb"), SystemExit),
        (("create", "acme", "worker", "--scope", "owner"), SystemExit),
        (("create", "acme", "worker", "--expires-at", "2020-01-01T00:00:00Z"), InvalidTime),
        (("create", "acme", ""), SystemExit),
        (("create", "acme", "worker", "--expires-at", "tomorrow"), SystemExit),
        (("create", "acme", "worker", "--mode", "local"), SystemExit),
        (("list", "nobody"), NotFound),
        (("revoke", "key_nobody"), NotFound),
    ],
)
def test_what_cannot_be_done_is_told(
    runtime: Runtime, words: tuple[str, ...], refusal: type[BaseException]
) -> None:
    before = run(runtime, "list", "acme", "--json").stdout
    done = run(runtime, *words)
    assert isinstance(done.exception, refusal), done.output
    assert done.exit_code in (1, 2)
    assert run(runtime, "list", "acme", "--json").stdout == before


def test_a_refused_scope_names_the_option_and_what_is_allowed(runtime: Runtime) -> None:
    words = ["keys", "create", "acme", "x", "--scope", "wirte", "--data", str(runtime.settings.data_dir)]
    done = CliRunner().invoke(command_line, words, terminal_width=500)
    assert done.exit_code == 2 and "--scope" in done.output
    assert "takes read, write or admin" in done.output


def test_a_refused_end_of_validity_names_the_option_and_an_example(runtime: Runtime) -> None:
    words = ["keys", "create", "acme", "x", "--expires-at", "tomorrow"]
    data = str(runtime.settings.data_dir)
    done = CliRunner().invoke(command_line, [*words, "--data", data], terminal_width=500)
    assert done.exit_code == 2 and "--expires-at" in done.output
    assert "2030-01-31T00:00:00Z" in done.output


def test_what_the_operator_does_is_audited(runtime: Runtime) -> None:
    made = make(runtime)
    run(runtime, "revoke", made["id"])
    with runtime.database.transaction(write=False) as db:
        rows = list(db.exec(select(AuditRow).where(AuditRow.resource_id == made["id"])))
    assert {(row.action, row.actor_type) for row in rows} == {
        ("key.create", "operator"),
        ("key.revoke", "operator"),
    }
