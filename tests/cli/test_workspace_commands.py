"""`recorder workspaces`: tenants made, shown and set by the operator, each change audited. Contract §9."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select
from typer.testing import CliRunner

from recorder.access.rate_tiers import TIERS
from recorder.access.workspaces import UnknownWorkspace
from recorder.cli import app
from recorder.models.operations import AuditRow
from tests.support.sealed_sessions import make_runtime


def run(data: Path, *words: str) -> Any:
    """Return the JSON that a command printed."""
    result = CliRunner().invoke(app, ["workspaces", *words, "--data", str(data), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def _deployment(tmp_path: Path) -> None:
    """Create the deployment that the commands work on."""
    make_runtime(tmp_path).close()


def refused(data: Path, *words: str) -> str:
    """Return the text of a command that was used wrongly."""
    result = CliRunner().invoke(app, ["workspaces", *words, "--data", str(data)], terminal_width=500)
    assert result.exit_code == 2
    return " ".join(result.output.replace("│", " ").split())


def test_a_new_workspace_has_a_key_and_a_tier(tmp_path: Path) -> None:
    made = run(tmp_path, "create", "acme", "--tier", "trial")
    shown = run(tmp_path, "show", "acme")
    assert sorted(made) == ["key", "key_id", "workspace_id"]
    assert (shown["id"], shown["tier"], shown["status"]) == (made["workspace_id"], "trial", "active")
    assert shown["quota"]["captured_minutes_limit"] == TIERS["trial"].captured_minutes


def test_workspaces_are_listed_by_name(tmp_path: Path) -> None:
    assert run(tmp_path, "list") == []
    for name in ("zebra", "acme", "Ümlaut"):
        run(tmp_path, "create", name)
    assert [item["name"] for item in run(tmp_path, "list")] == ["acme", "zebra", "Ümlaut"]


@pytest.mark.parametrize("by", ["name", "id"])
def test_tier_and_status_are_set_apart_or_together(tmp_path: Path, by: str) -> None:
    made = run(tmp_path, "create", "acme")
    which = "acme" if by == "name" else made["workspace_id"]
    reports = [
        run(tmp_path, "set", which, "--tier", "team"),
        run(tmp_path, "set", which, "--status", "suspended"),
        run(tmp_path, "set", which, "--tier", "scale", "--status", "active"),
    ]
    expected = [("team", "active"), ("team", "suspended"), ("scale", "active")]
    assert [(line["tier"], line["status"]) for line in reports] == expected
    assert run(tmp_path, "list") == [reports[2]]


@pytest.mark.parametrize("command", ["create", "set"])
def test_an_unknown_tier_is_wrong_usage_and_the_tiers_are_named(tmp_path: Path, command: str) -> None:
    run(tmp_path, "create", "acme")
    said = refused(tmp_path, command, "acme", "--tier", "gold")
    assert f"takes one of {', '.join(TIERS)}" in said
    assert [item["tier"] for item in run(tmp_path, "list")] == ["default"]


@pytest.mark.parametrize(
    "words",
    [("set", "acme"), ("set", "acme", "--status", "gone"), ("create", ""), ("create", "x" * 129)],
    ids=" ".join,
)
def test_wrong_usage_changes_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    run(tmp_path, "create", "acme")
    refused(tmp_path, *words)
    assert [(item["name"], item["status"]) for item in run(tmp_path, "list")] == [("acme", "active")]


@pytest.mark.parametrize("words", [("show", "nobody"), ("set", "nobody", "--tier", "team")], ids=" ".join)
def test_a_workspace_that_is_not_there_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["workspaces", *words, "--data", str(tmp_path)])
    assert isinstance(result.exception, UnknownWorkspace)
    assert str(result.exception).startswith("No workspace has this name or id")


def test_the_operator_is_audited(tmp_path: Path) -> None:
    made = run(tmp_path, "create", "acme", "--tier", "trial")
    for _ in range(2):
        run(tmp_path, "set", "acme", "--status", "expired")
    runtime = make_runtime(tmp_path)
    with runtime.database.transaction(write=False) as db:
        statement = select(AuditRow).where(AuditRow.workspace_id == made["workspace_id"])
        rows = list(db.exec(statement.order_by(col(AuditRow.number))))
    runtime.close()
    assert [(row.action, row.actor_type) for row in rows] == [
        ("workspace.create", "operator"),
        ("workspace.update", "operator"),
    ]
    assert rows[0].details == {"name": "acme", "tier": "trial", "region": "us", "key_id": made["key_id"]}
    assert rows[1].details == {"status": {"from": "active", "to": "expired"}}
    assert made["key"] not in "".join(row.model_dump_json() for row in rows)


def test_words_go_to_stderr_and_data_to_stdout(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["workspaces", "create", "acme", "--data", str(tmp_path)])
    assert made.stdout.startswith("nsk_local_") and len(made.stdout.splitlines()) == 1
    listed = CliRunner().invoke(app, ["workspaces", "list", "--data", str(tmp_path)])
    assert listed.stdout.split()[1:] == ["active", "default", "us", "acme"]
    shown = CliRunner().invoke(app, ["workspaces", "show", "acme", "--data", str(tmp_path)])
    assert "retention.frames_days: 90" in shown.stdout.splitlines()
    assert "None" not in shown.stdout and ": unlimited" in shown.stdout
