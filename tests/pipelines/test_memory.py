"""Rebuilding and checking memory graphs in Dagster, on sessions that were recorded and sealed. Spec §4.2."""

from collections.abc import Iterator

import dagster as dg
import pytest

from pipelines import memory
from pipelines.memory import graph_checks, rebuilt_memory_graphs
from pipelines.resources import RecorderResource
from recorder.errors import Unavailable
from recorder.memory.graph.rebuild import RebuildKind
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.storage.consistency import find_missing_sessions, index_missing_sessions
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.rebuilds import RebuildReport, rebuild_graph
from recorder.memory.storage.versions import set_memory_graph
from recorder.models.workflow import WorkflowRow
from recorder.sealing import Sealer
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.dagster_deployment import split_by_partition
from tests.support.query_plans import noted_statements
from tests.support.recorded_sessions import WORKSPACE, Desk, execute, open_desk, session_row
from tests.support.sealing import seal_all

SCOPE = GraphScope(Tenant(WORKSPACE, "live"), "checkout")


@pytest.fixture
def desk(recorder: RecorderResource) -> Iterator[Desk]:
    """Yield a desk that records sessions."""
    with open_desk(recorder.runtime) as desk:
        yield desk


def record(desk: Desk, *pages: str, workflow: str = "checkout", tags: tuple[str, ...] = ("success",)) -> str:
    """Record a session of clicks on these pages."""
    events = [
        {"t_ms": 100 * index, "type": "click", "url": f"https://shop.example/{page}", "title": page}
        for index, page in enumerate(pages, 1)
    ]
    return desk.record(events=events, tags=tags, workflow=workflow)


def rebuild(
    recorder: RecorderResource,
    instance: dg.DagsterInstance,
    partition_key: str | None = None,
    *,
    raise_on_error: bool = True,
    **config: object,
) -> dg.ExecuteInProcessResult:
    """Materialize the asset."""
    return dg.materialize(
        [rebuilt_memory_graphs],
        instance=instance,
        resources={"recorder": recorder},
        run_config={"ops": {"rebuilt_memory_graphs": {"config": config}}},
        selection=[rebuilt_memory_graphs],
        partition_key=partition_key,
        raise_on_error=raise_on_error,
    )


def checked(recorder: RecorderResource) -> dict[str, bool]:
    """Return whether each check passes."""
    results = graph_checks(recorder=recorder)
    return {result.check_name: result.passed for result in results}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["anchored", "fresh"])
def test_every_graph_is_rebuilt_and_shown(recorder: RecorderResource, desk: Desk, kind: str) -> None:
    for _ in range(3):
        record(desk, "cart", "pay", "done")
    record(desk, "cart", "help", tags=("error",))
    record(desk, "list", workflow="returns")
    seal_all(recorder.runtime)
    with dg.DagsterInstance.ephemeral() as instance:
        result = rebuild(recorder, instance, kind=kind)
        made, graphs = split_by_partition(result.asset_materializations_for_node("rebuilt_memory_graphs"))
        assert set(instance.get_dynamic_partitions("workflows")) == {graph.partition for graph in graphs}
    seen = [graph.metadata for graph in graphs]
    assert (made.metadata["graphs"].value, len(made.metadata["rebuilt"].records)) == (2, 2)
    assert [item["workflow"].value for item in seen] == ["checkout", "returns"]
    assert str(seen[0]["graph"].value).startswith("![") and seen[0]["sessions"].value == 4
    assert "| path |" in str(seen[0]["paths"].value)
    assert checked(recorder) == {
        "every_session_on_one_path": True,
        "counters_equal_sessions": True,
        "fractions_sum_to_one": True,
    }


def test_a_graph_that_cannot_be_read_fails_the_checks_and_others_are_counted(
    recorder: RecorderResource, desk: Desk
) -> None:
    record(desk, "cart")
    record(desk, "list", workflow="returns")
    seal_all(recorder.runtime)
    execute(recorder.runtime, "UPDATE graph_variants SET nodes = '{' WHERE workflow = 'checkout'")
    results = list(graph_checks(recorder=recorder))  # type: ignore[call-overload]
    assert [result.passed for result in results] == [False] * 3
    for result in results:
        assert (result.metadata["graphs"].value, result.metadata["sessions"].value) == (1, 1)
        (wrong,) = result.metadata["wrong"].value
        assert wrong.startswith(f"{WORKSPACE} live checkout: cannot be checked")
        assert result.description == wrong


def test_only_the_workflow_of_the_partition_is_rebuilt(recorder: RecorderResource, desk: Desk) -> None:
    record(desk, "cart")
    record(desk, "list", workflow="returns")
    seal_all(recorder.runtime)
    with dg.DagsterInstance.ephemeral() as instance:
        partition = f"{WORKSPACE} live returns"
        instance.add_dynamic_partitions("workflows", [partition])
        result = rebuild(recorder, instance, partition)
        assert instance.get_materialized_partitions(dg.AssetKey("rebuilt_memory_graphs")) == {partition}
        assert len(instance.get_dynamic_partitions("workflows")) == 2
    (made,) = result.asset_materializations_for_node("rebuilt_memory_graphs")
    assert [row.data["workflow"] for row in made.metadata["rebuilt"].records] == ["returns"]


def test_a_graph_that_fails_stops_no_other_and_the_run_names_it(
    recorder: RecorderResource, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(desk, "cart")
    record(desk, "list", workflow="returns")
    seal_all(recorder.runtime)

    def fail_one(database: Database, scope: GraphScope, kind: RebuildKind) -> RebuildReport | None:
        if scope == SCOPE:
            raise IndexError("of a column")
        return rebuild_graph(database, scope, kind)

    monkeypatch.setattr(memory, "rebuild_graph", fail_one)
    with dg.DagsterInstance.ephemeral() as instance:
        result = rebuild(recorder, instance, raise_on_error=False)
        messages = [
            record.event_log_entry.user_message
            for record in instance.get_records_for_run(result.run_id).records
        ]
    assert not result.success
    [event] = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    name = f"{WORKSPACE} live checkout"
    assert failure.description == f"1 of 2 graphs could not be rebuilt: {name}"
    rebuilt = failure.metadata["rebuilt"]
    assert isinstance(rebuilt, dg.TableMetadataValue)
    assert [row.data["workflow"] for row in rebuilt.records] == ["returns"]
    assert any(name in message and "IndexError: of a column" in message for message in messages)


def test_a_rebuild_takes_in_what_the_lake_alone_has_and_honours_pauses(
    recorder: RecorderResource, desk: Desk
) -> None:
    runtime = recorder.runtime
    kept, lost = record(desk, "cart", "pay"), record(desk, "cart", "pay", "done")
    seal_all(runtime)
    with runtime.database.transaction(write=True) as db:
        set_memory_graph(db, SCOPE, False)
    paused = record(desk, "cart", "other")
    seal_all(runtime)
    with runtime.database.transaction(write=True) as db:
        set_memory_graph(db, SCOPE, True)
        assert db.get_one(WorkflowRow, (WORKSPACE, "live", "checkout")).memory_graph
    execute(runtime, "DELETE FROM graph_session_paths WHERE session_id = :lost", lost=lost)
    execute(runtime, "UPDATE graph_traces SET n = n - 1 WHERE length(steps) = 24")
    with runtime.database.transaction(write=False) as db:
        assert find_missing_sessions(db, SCOPE) == [lost]
    assert not checked(recorder)["every_session_on_one_path"]
    with dg.DagsterInstance.ephemeral() as instance:
        result = rebuild(recorder, instance)
    made, _ = split_by_partition(result.asset_materializations_for_node("rebuilt_memory_graphs"))
    assert [row.data["found"] for row in made.metadata["rebuilt"].records] == [1]
    with runtime.database.transaction(write=False) as db:
        indexed = {session.decode() for session in read_newest_columns(db, SCOPE).session_id}
    assert indexed == {kept, lost} and paused not in indexed
    assert all(checked(recorder).values())


@pytest.mark.parametrize("limits", [{"at_once": 2}, {"events_at_once": 2}], ids=["sessions", "events"])
def test_missing_sessions_are_read_and_taken_in_by_parts_in_the_order_of_sealing(
    recorder: RecorderResource, desk: Desk, limits: dict[str, int]
) -> None:
    runtime = recorder.runtime
    lost = []
    for page in ("cart", "pay", "done"):
        lost.append(record(desk, page))
        seal_all(runtime)
    execute(runtime, "DELETE FROM graph_session_paths")
    execute(runtime, "UPDATE graph_traces SET n = 0")
    with noted_statements() as noted:
        assert index_missing_sessions(runtime, SCOPE, **limits) == len(lost)
    whole_rows = [statement for statement, _ in noted if "sessions.event_mark" in statement]
    assert whole_rows and all("sessions.id IN" in statement for statement in whole_rows)
    with runtime.database.transaction(write=False) as db:
        columns = read_newest_columns(db, SCOPE)
    by_version = sorted(zip(columns.added.tolist(), columns.session_id.tolist(), strict=True))
    assert len({version for version, _ in by_version}) == 2
    assert by_version[-1][1].decode() == lost[-1]
    assert all(checked(recorder).values())


def test_sessions_of_a_batch_that_is_being_sealed_belong_to_the_pause(
    recorder: RecorderResource, desk: Desk
) -> None:
    runtime = recorder.runtime
    record(desk, "cart")
    seal_all(runtime)
    record(desk, "cart", "pay")
    sealer = Sealer(runtime, owner="test")
    assert sealer.take()
    assert sealer._scheduler.take_lane() is not None
    with runtime.database.transaction(write=True) as db:
        set_memory_graph(db, SCOPE, False)
    assert sealer.seal_batch()
    sealer.release()
    assert all(checked(recorder).values())
    with runtime.database.transaction(write=True) as db:
        set_memory_graph(db, SCOPE, True)
    with dg.DagsterInstance.ephemeral() as instance:
        rebuild(recorder, instance)
    with runtime.database.transaction(write=False) as db:
        assert len(read_newest_columns(db, SCOPE).session_id) == 1


def test_a_rebuild_that_cannot_be_had_makes_no_sealed_batch_fail(
    recorder: RecorderResource, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("The database")

    session_id = record(desk, "cart")
    monkeypatch.setattr(GraphIndexer, "take_grown", lambda _: [SCOPE])
    monkeypatch.setattr("recorder.sealing.sealer.rebuild_graph", fail)
    seal_all(recorder.runtime)
    assert session_row(recorder.runtime, session_id).status == "sealed"


def test_a_counter_that_is_off_fails_its_check(recorder: RecorderResource, desk: Desk) -> None:
    record(desk, "cart")
    seal_all(recorder.runtime)
    execute(recorder.runtime, "UPDATE graph_traces SET n = 7")
    assert checked(recorder) == {
        "every_session_on_one_path": True,
        "counters_equal_sessions": False,
        "fractions_sum_to_one": True,
    }
