"""The hourly check through Dagster: real SQLite, a real instance. Spec §6.1."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from pipelines import drift
from pipelines.drift import drift_alarms, hourly_drift
from pipelines.resources import RecorderResource
from pipelines.workflow_partitions import partition_key, register_workflow_partitions
from recorder.memory.drift.monitor import DriftCheck, check_drift
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.dagster_deployment import split_by_partition
from tests.support.drift_workflow import BASELINE, NEEDED, Story
from tests.support.graph_sessions import add_workflow


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Yield a Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def story(recorder: RecorderResource) -> Story:
    """Return a workflow of the deployment."""
    return Story(recorder.runtime.database)


def run(instance: dg.DagsterInstance, recorder: RecorderResource) -> dict[str, Any]:
    """Run the asset for all graphs; return the metadata of the run as plain values."""
    done = dg.materialize([drift_alarms], instance=instance, resources={"recorder": recorder})
    whole, of_partitions = split_by_partition(done.asset_materializations_for_node("drift_alarms"))
    assert len(of_partitions) == whole.metadata["workflows"].value
    return {name: value.value for name, value in whole.metadata.items()}


def tick(instance: dg.DagsterInstance, recorder: RecorderResource) -> dg.RunRequest | dg.SkipReason:
    """Return the result of the schedule."""
    with dg.build_schedule_context(instance=instance, resources={"recorder": recorder}) as context:
        answer = hourly_drift(context)
    assert isinstance(answer, dg.RunRequest | dg.SkipReason)
    return answer


def test_a_run_looks_at_every_graph_and_shows_what_it_found(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    story.add(BASELINE + "an" * NEEDED)
    other = Story(story.database, GraphScope(Tenant(story.scope.workspace_id, "test"), "refunds"))
    other.add("ab")
    shown = run(instance, recorder)
    assert (shown["workflows"], shown["sessions"], shown["alarms"]) == (2, 100 + 2 * NEEDED + 2, 2)
    data = {record.data["workflow"]: record.data for record in shown["looked_at"].records}
    counted = ("sessions", "baseline", "watched", "fell", "grew")
    assert [data["checkout"][name] for name in counted] == [100 + 2 * NEEDED, 100, 14, 1, 1]
    assert [data["refunds"][name] for name in counted] == [2, 0, 0, 0, 0]
    assert f"`{PATH_DISAPPEARED}`: 0 of the last {NEEDED} sessions" in shown["reported"]
    assert f"`{NEW_NODE}`: 13 of the last" in shown["reported"]
    few = f"- **refunds** ({story.scope.workspace_id} test) Not judged: fewer than 100 sessions."
    assert shown["reported"].splitlines()[-1] == few
    gone, *_ = [row for row in shown["watched"].splitlines() if row.startswith("| checkout")]
    assert gone.endswith(f"| 50.0% | {2 * NEEDED} | {NEEDED} |")


def test_only_judged_graphs_are_said_to_be_unchanged(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    story.add("ab")
    name = f"**checkout** ({story.scope.workspace_id} live)"
    assert run(instance, recorder)["reported"] == f"- {name} Not judged: fewer than 100 sessions."
    story.add(BASELINE)
    assert run(instance, recorder)["reported"].strip() == "Nothing changed."


def test_what_a_run_tells_is_told_once(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    story.add(BASELINE + "a" * NEEDED)
    assert [run(instance, recorder)["alarms"] for _ in range(2)] == [1, 0]
    assert [event.type for event in story.events()] == [PATH_DISAPPEARED]


def test_a_run_of_one_partition_without_new_sessions_shows_the_last_figures(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    story.add(BASELINE + "a" * NEEDED)
    run(instance, recorder)
    done = dg.materialize(
        [drift_alarms],
        instance=instance,
        resources={"recorder": recorder},
        partition_key=partition_key(story.scope),
    )
    [event] = done.asset_materializations_for_node("drift_alarms")
    shown = {name: value.value for name, value in event.metadata.items()}
    assert shown["state"].startswith("No new sessions since 20")
    assert (shown["alarms"], shown["sessions"], len(shown["looked_at"].records)) == (0, 0, 1)
    assert (
        f"0 of the last {NEEDED} sessions" in shown["reported"] and "| checkout | path |" in shown["watched"]
    )


def test_every_alarm_stands_in_the_log_of_the_run(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    story.add(BASELINE + "a" * NEEDED)
    done = dg.materialize([drift_alarms], instance=instance, resources={"recorder": recorder})
    lines = [
        record.event_log_entry.user_message for record in instance.get_records_for_run(done.run_id).records
    ]
    assert any(PATH_DISAPPEARED in line and story.scope.workspace_id in line for line in lines)


def test_a_graph_that_fails_stops_no_other_and_the_run_names_it(
    instance: dg.DagsterInstance,
    recorder: RecorderResource,
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = GraphScope(Tenant(story.scope.workspace_id, "live"), "a broken one")
    Story(story.database, broken).add("ab")
    story.add(BASELINE + "a" * NEEDED)

    def look(database: Database, scope: GraphScope) -> DriftCheck | None:
        if scope == broken:
            raise IndexError("of a column")
        return check_drift(database, scope)

    monkeypatch.setattr(drift, "check_drift", look)
    done = dg.materialize(
        [drift_alarms], instance=instance, resources={"recorder": recorder}, raise_on_error=False
    )
    assert not done.success and len(story.events()) == 1
    [step_failure] = [event for event in done.all_events if event.event_type_value == "STEP_FAILURE"]
    name = f"{broken.workspace_id} live a broken one"
    failed = step_failure.step_failure_data
    failure = failed.user_failure_data
    assert failure is not None
    assert failure.description == f"1 of 2 graphs could not be checked: {name}"
    assert failure.metadata["alarms"].value == 1
    records = instance.get_records_for_run(done.run_id).records
    messages = [record.event_log_entry.user_message for record in records]
    assert any(name in message and "IndexError: of a column" in message for message in messages)


def test_an_hour_without_sessions_starts_no_run(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    assert isinstance(tick(instance, recorder), dg.SkipReason)
    story.add("ab")
    assert isinstance(tick(instance, recorder), dg.RunRequest)
    run(instance, recorder)
    assert isinstance(tick(instance, recorder), dg.SkipReason)


def test_partitions_are_registered_in_parts_and_once(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [GraphScope(Tenant("wsp_1", "live"), f"flow_{number}") for number in range(1_201)]
    sizes, add = [], instance.add_dynamic_partitions

    def note(name: str, keys: Any) -> None:
        sizes.append(len(keys))
        add(name, keys)

    monkeypatch.setattr(instance, "add_dynamic_partitions", note)
    for _ in range(2):
        register_workflow_partitions(instance, scopes)
    assert sizes == [500, 500, 201] * 2
    assert set(instance.get_dynamic_partitions("workflows")) == set(map(partition_key, scopes))


def test_workflows_without_sessions_have_no_partition(
    instance: dg.DagsterInstance, recorder: RecorderResource, story: Story
) -> None:
    story.add("ab")
    with story.database.transaction(write=True) as db:
        for number in range(3):
            add_workflow(db, GraphScope(story.scope.tenant, f"empty_{number}"))
    assert run(instance, recorder)["workflows"] == 1
    assert instance.get_dynamic_partitions("workflows") == [partition_key(story.scope)]
