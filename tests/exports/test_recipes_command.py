"""`recorder recipes`: what is saved, listed, removed and made at once. Contract §9, docs/recipes.md."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from recorder.access.workspaces import create_workspace
from recorder.cli import app as command_line
from recorder.cli.options import make_export_members
from recorder.errors import RecorderError
from recorder.runtime import Runtime
from tests.support.sealed_sessions import Recording, make_runtime, seal

_DAILY = ("--cron", "0 6 * * *", "--timezone", "Europe/Berlin")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """Yield a deployment with one workspace."""
    opened = make_runtime(tmp_path_factory.mktemp("deployment"))
    with opened.database.transaction(write=True) as db:
        made = create_workspace(db, "acme", region="us", secret=opened.settings.secret)
    seal(opened, [Recording(), Recording(workflow="login")], workspace_id=made.workspace_id)
    yield opened
    opened.close()


def run(runtime: Runtime, *words: str) -> Any:
    """Run a command on this deployment."""
    return CliRunner().invoke(command_line, ["recipes", *words, "--data", str(runtime.settings.data_dir)])


def listed(runtime: Runtime) -> dict[str, dict[str, Any]]:
    return {load["name"]: load for load in json.loads(run(runtime, "list", "--json").stdout)}


def test_a_recipe_is_added_listed_run_and_removed(runtime: Runtime) -> None:
    words = (
        "--format",
        "jsonl",
        "--where",
        "outcome=success",
        "--where",
        "since=1d",
        "--split",
        "actor:0.2:0.1",
    )
    added = run(runtime, "add", "nightly", "checkout", "login", *_DAILY, *words)
    assert (added.exit_code, added.stdout) == (0, "")
    recipe = listed(runtime)["nightly"]
    assert [
        json.loads(run(runtime, "list", "--mode", mode, "--json").stdout) for mode in ("live", "test")
    ] == [
        [recipe],
        [],
    ]
    assert (recipe["dataset"], recipe["cron"], recipe["timezone"]) == (
        "nightly",
        "0 6 * * *",
        "Europe/Berlin",
    )
    assert added.stderr == f"nightly is due at {recipe['next_at']}.\n"
    assert recipe["request"]["filter"] == {"outcome": "success", "since": "1d"}
    assert recipe["request"]["split"] == {"by": "actor", "validation": 0.2, "test": 0.1}
    assert (recipe["last_export"], recipe["error"]) == (None, None)
    export_id = run(runtime, "run", "nightly").stdout.strip()
    assert listed(runtime)["nightly"]["last_export"] == {"id": export_id, "status": "queued", "rows": None}
    table = run(runtime, "list").stdout
    assert all(
        word in table for word in ("nightly", "checkout, login as jsonl", "since=1d", export_id, "queued")
    )
    assert "           split actor 0.2 0.1\n" in table
    done = run(runtime, "remove", "nightly", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"name": "nightly", "removed": True})
    assert listed(runtime) == {}
    assert "recorder recipes add" in run(runtime, "list").stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("checkout", "--cron", "0 6 * *"), "five fields"),
        (("checkout", *_DAILY, "--format", "csv"), "The recipe's format cannot be read"),
        (("checkout", *_DAILY, "--where", "colour=red"), "The recipe's filter/colour cannot be read"),
        (("unknown", *_DAILY), "This workspace has no such workflow"),
        (("checkout", *_DAILY, "--workspace", "nobody"), "workspaces list"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(runtime: Runtime, words: tuple[str, ...], sentence: str) -> None:
    refused = run(runtime, "add", "nightly", *words)
    assert isinstance(refused.exception, RecorderError) and sentence in str(refused.exception)
    assert listed(runtime) == {}


def test_a_recipe_that_is_not_there_is_told_of(runtime: Runtime) -> None:
    for word in ("remove", "run"):
        assert "recorder recipes list" in str(run(runtime, word, "weekly").exception)


@pytest.mark.parametrize(
    "words",
    [
        ("--where", "min_duration_ms=long"),
        ("--where", "outcome"),
        ("--split", "actor"),
        ("--sampling", "every_n_ms:soon"),
        ("--sampling", "all+frames"),
        ("--to", "ftp://host/x"),
        ("--to", "{broken"),
    ],
)
def test_an_option_of_another_form_is_wrong_usage(runtime: Runtime, words: tuple[str, ...]) -> None:
    assert run(runtime, "add", "nightly", "checkout", *_DAILY, *words).exit_code == 2


@pytest.mark.parametrize(
    ("to", "destination"),
    [
        ("signed_url", {"kind": "signed_url"}),
        ("sets/daily", {"kind": "local", "path": "sets/daily"}),
        ("s3://acme/sets/daily", {"kind": "s3", "bucket": "acme", "prefix": "sets/daily"}),
        ("s3://acme", {"kind": "s3", "bucket": "acme"}),
        ("gs://acme/sets", {"kind": "gcs", "bucket": "acme", "prefix": "sets"}),
        ("az://acme/box/a", {"kind": "azure_blob", "account": "acme", "container": "box", "prefix": "a"}),
        ('{"kind": "s3", "bucket": "b", "region": "eu"}', {"kind": "s3", "bucket": "b", "region": "eu"}),
    ],
)
def test_a_destination_is_named_by_its_address(to: str, destination: dict[str, str]) -> None:
    options: dict[str, Any] = {"format": "parquet", "where": None, "sampling": "event_only", "split": None}
    assert make_export_members(["checkout"], to=to, **options)["destination"] == destination


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        ("all", {"mode": "all", "keep_action_frames": False}),
        ("every_n_ms:500", {"mode": "every_n_ms", "interval_ms": 500, "keep_action_frames": False}),
        ("keyframes_only+actions", {"mode": "keyframes_only", "keep_action_frames": True}),
    ],
)
def test_a_sampling_is_named_by_mode_interval_and_actions(text: str, sampling: dict[str, Any]) -> None:
    options: dict[str, Any] = {"format": "parquet", "where": ["min_duration_ms=5"], "to": "signed_url"}
    members = make_export_members(["checkout"], sampling=text, split=None, **options)
    assert (members["frame_sampling"], members["filter"]) == (sampling, {"min_duration_ms": 5})
