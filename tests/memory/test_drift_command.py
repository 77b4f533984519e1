"""`recorder drift`: a history replayed, and the alarms that were given. Contract §9."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recorder.access.workspaces import create_workspace
from recorder.cli import app as command_line
from recorder.errors import NotFound
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED
from recorder.runtime import Runtime
from recorder.tenant import GraphScope, Tenant
from tests.support.drift_workflow import BASELINE, NEEDED, Story
from tests.support.recorded_sessions import execute
from tests.support.sealed_sessions import make_runtime

LETTERS = BASELINE + "an" * NEEDED


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment."""
    opened = make_runtime(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def story(runtime: Runtime) -> Story:
    """Return a workflow of its workspace acme, in which a path stops and a node appears."""
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "acme", region="us", secret=runtime.settings.secret)
    story = Story(runtime.database, GraphScope(Tenant(made.workspace_id, "live"), "checkout"))
    story.add(LETTERS)
    return story


def run(runtime: Runtime, *words: str) -> Any:
    """Run a command on this deployment."""
    return CliRunner().invoke(command_line, ["drift", *words, "--data", str(runtime.settings.data_dir)])


def test_a_back_test_prints_each_alarm_with_place_reason_and_rates(runtime: Runtime, story: Story) -> None:
    done = run(runtime, "backtest", "checkout")
    assert done.exit_code == 0, done.output
    assert f"0 of the last {NEEDED} sessions" in " ".join(done.stdout.replace("│", " ").split())
    assert PATH_DISAPPEARED in done.stdout and NEW_NODE in done.stdout and "Click n" in done.stdout
    rate = 2_000 / (2 * NEEDED)
    assert f"{2 * NEEDED} of {len(LETTERS)} sessions of checkout judged" in done.stderr
    assert f"{rate:.2f} {PATH_DISAPPEARED}, {rate:.2f} {NEW_NODE}" in done.stderr
    assert story.events() == []


def test_a_back_test_as_json_holds_what_the_events_would(runtime: Runtime, story: Story) -> None:
    replay = json.loads(run(runtime, "backtest", "checkout", "--workspace", "acme", "--json").stdout)
    story.look()
    assert [alarm["data"] for alarm in replay["alarms"]] == [event.data for event in story.events()]
    assert (replay["sessions"], replay["judged"], replay["terms"]) == (len(LETTERS), 2 * NEEDED, 1)
    gone, new = replay["alarms"]
    assert (gone["place"], gone["began_at"][:10]) == (100 + NEEDED, "2026-05-06")
    assert set(replay["alarms_per_2000"]) == {gone["type"], new["type"]}


def test_a_smaller_baseline_may_be_tried(runtime: Runtime, story: Story) -> None:
    replay = json.loads(run(runtime, "backtest", "checkout", "--baseline", "60", "--json").stdout)
    assert (replay["baseline"], replay["judged"]) == (60, len(LETTERS) - 60)
    assert run(runtime, "backtest", "checkout", "--baseline", "5").exit_code == 2


@pytest.mark.parametrize(("baseline", "is_reported"), [(20, False), (50, True), (100, True)])
def test_growth_is_compared_with_sessions_of_a_small_baseline(
    runtime: Runtime, baseline: int, is_reported: bool
) -> None:
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "acme", region="us", secret=runtime.settings.secret)
    grown = Story(runtime.database, GraphScope(Tenant(made.workspace_id, "live"), "checkout"))
    grown.add("aaaaaaaaab" * 80 + "nnnnnnnnnb" * 20)
    done = run(runtime, "backtest", "checkout", "--baseline", str(baseline), "--json")
    assert done.exit_code == 0, done.exception
    alarms = json.loads(done.stdout)["alarms"]
    # Ten sessions without a node do not show that it is new, even where nine of ten have it.
    assert [alarm["data"]["node"]["label"] for alarm in alarms] == ["Click n"] * is_reported
    assert all(alarm["data"]["baseline"]["sessions"] == baseline // 2 for alarm in alarms)


def test_too_few_sessions_are_said_to_be_too_few(runtime: Runtime, story: Story) -> None:
    Story(runtime.database, GraphScope(Tenant(story.scope.workspace_id, "test"), "refunds")).add("ab")
    done = run(runtime, "backtest", "refunds", "--mode", "test")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "2 sessions: too few for a baseline. A backtest needs at least 101." in done.stderr


def test_what_is_not_there_is_refused(runtime: Runtime, story: Story) -> None:
    refused = run(runtime, "backtest", "unknown").exception
    assert isinstance(refused, NotFound) and "key" not in str(refused)
    assert isinstance(run(runtime, "backtest", "checkout", "--workspace", "nobody").exception, NotFound)
    with runtime.database.transaction(write=True) as db:
        create_workspace(db, "other", region="us", secret=runtime.settings.secret)
    done = run(runtime, "backtest", "checkout")
    assert done.exit_code == 2 and "name one" in done.stderr


def test_alarms_that_were_given_are_listed(runtime: Runtime, story: Story) -> None:
    assert "No alarm was sent" in run(runtime, "list").stderr
    story.look()
    listed = json.loads(run(runtime, "list", "--json").stdout)
    assert [(alarm["event_id"], alarm["type"]) for alarm in listed] == [
        (event.id, event.type) for event in reversed(story.events())
    ]
    assert listed[0]["data"] == story.events()[-1].data
    shown = run(runtime, "list", "--workspace", "acme", "--workflow", "checkout", "--mode", "live")
    assert PATH_DISAPPEARED in " ".join(shown.stdout.split()) or "path_disapp" in shown.stdout
    with runtime.database.transaction(write=True) as db:
        create_workspace(db, "idle", region="us", secret=runtime.settings.secret)
    for others in (("--mode", "test"), ("--workflow", "refunds"), ("--workspace", "idle")):
        assert json.loads(run(runtime, "list", *others, "--json").stdout) == []
    assert len(json.loads(run(runtime, "list", "--limit", "1", "--json").stdout)) == 1
    statement = "UPDATE drift_alarms SET created_at = '2020-01-01' WHERE event_id = :one"
    execute(runtime, statement, one=listed[0]["event_id"])
    (newest,) = json.loads(run(runtime, "list", "--limit", "1", "--json").stdout)
    assert newest["event_id"] == listed[1]["event_id"]
