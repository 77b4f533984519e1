"""A drain run through Dagster, in this process: real SQLite, real lake."""

import os
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from sqlmodel import col, select, update

from pipelines.resources import RecorderResource
from pipelines.sealing import SealingDrainConfig, arrivals, sealing
from recorder.models.operations import LeaseRow
from recorder.models.session import SessionRow
from recorder.sealing import list_sealing_runs, open_sealer
from recorder.tenant import Tenant
from tests.support.recorded_sessions import WORKSPACE, execute
from tests.support.statements import before_each_statement
from tests.support.waiting_sessions import EVENTS_PER_SESSION, stop_sessions


def drain(
    recorder: RecorderResource, *, idle_seconds: float = 0.2, picture_seconds: float = 60
) -> dg.ExecuteInProcessResult:
    """Run one drain run that ends soon."""
    chosen = SealingDrainConfig(idle_seconds=idle_seconds, max_seconds=60, picture_seconds=picture_seconds)
    config = dg.RunConfig(ops={"seal": chosen})
    return dg.materialize([sealing], resources={"recorder": recorder}, run_config=config)


def statuses(recorder: RecorderResource) -> Counter[str]:
    """Return the number of sessions by status."""
    with recorder.runtime.database.transaction(write=False) as db:
        return Counter(db.exec(select(SessionRow.status)))


def metadata_sums(result: dg.ExecuteInProcessResult, asset: str, name: str) -> float:
    """Return the sum of a number over all materializations of an asset."""
    events = result.get_asset_materialization_events()
    results = [event.materialization for event in events if event.asset_key == dg.AssetKey(asset)]
    return sum(float(item.metadata[name].value) for item in results if name in item.metadata)  # type: ignore[arg-type]


def test_a_run_seals_what_has_stopped(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 3)
    drain(recorder)
    assert statuses(recorder) == {"sealed": 3}


def test_reports_and_summary_count_every_session_once(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 3)
    result = drain(recorder)
    assert metadata_sums(result, "sealed_sessions", "sessions") == 3
    assert metadata_sums(result, "sealed_sessions", "run_sessions") == 3
    assert metadata_sums(result, "session_events", "events") == 3 * EVENTS_PER_SESSION


def test_the_materialization_of_graphs_begins_with_a_picture_and_the_figures(
    recorder: RecorderResource,
) -> None:
    stop_sessions(recorder.runtime, 3)
    events = drain(recorder).get_asset_materialization_events()
    graphs = [event.materialization for event in events if event.asset_key == dg.AssetKey("memory_graphs")]
    assert len(graphs) == 2  # the first report, and the summary of the run
    for materialization in graphs:
        assert list(materialization.metadata)[:2] == ["workflow", "graph"]
        assert "data:image/svg+xml" in str(materialization.metadata["graph"].value)
        assert materialization.metadata["nodes"].value > 0  # type: ignore[operator]


def test_a_graph_that_changed_soon_after_a_picture_is_drawn_although_no_session_follows(
    recorder: RecorderResource,
) -> None:
    stop_sessions(recorder.runtime)
    later = threading.Timer(0.5, stop_sessions, [recorder.runtime, 1], {"workflow": "onboard"})
    later.start()
    result = drain(recorder, idle_seconds=4, picture_seconds=2)
    later.join()
    events = result.get_asset_materialization_events()
    graphs = [event.materialization for event in events if event.asset_key == dg.AssetKey("memory_graphs")]
    drawn = [str(made.metadata["workflow"].value).split()[-1] for made in graphs]
    assert drawn[1:] == ["onboard", "onboard"]  # the second picture, and the summary of the run
    assert graphs[1].metadata["added_sessions"].value == 1


def test_the_sessions_of_a_picture_are_those_of_its_graph(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 3)
    drain(recorder)
    stop_sessions(recorder.runtime, 1)
    events = drain(recorder).get_asset_materialization_events()
    graphs = [event.materialization for event in events if event.asset_key == dg.AssetKey("memory_graphs")]
    assert [made.metadata["sessions"].value for made in graphs] == [4, 4]
    assert graphs[0].metadata["added_sessions"].value == 1


def test_a_run_registers_the_partitions_of_the_workflows_that_it_seals(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    with dg.DagsterInstance.ephemeral() as instance:
        config = dg.RunConfig(ops={"seal": SealingDrainConfig(idle_seconds=0.2, max_seconds=30)})
        dg.materialize([sealing], resources={"recorder": recorder}, run_config=config, instance=instance)
        (key,) = instance.get_dynamic_partitions("workflows")
    assert key.split()[0] == WORKSPACE


def test_an_asset_that_got_no_rows_is_not_materialized(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    events = drain(recorder).get_asset_materialization_events()
    assert dg.AssetKey("session_frames") not in {event.asset_key for event in events}


def test_a_run_without_work_materializes_nothing(recorder: RecorderResource) -> None:
    result = drain(recorder)
    assert result.success
    assert result.get_asset_materialization_events() == []


def test_a_run_whose_only_batch_sealed_nothing_succeeds(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    execute(recorder.runtime, "UPDATE event_batches SET payload = :junk", junk=b"no frame of zstd")
    result = drain(recorder, idle_seconds=1)
    assert result.success
    assert statuses(recorder) == {"stopped": 1}
    assert dg.AssetKey("memory_graphs") not in {
        e.asset_key for e in result.get_asset_materialization_events()
    }


def test_a_graph_that_cannot_be_drawn_does_not_fail_the_run(recorder: RecorderResource) -> None:
    def fail(statement: str) -> None:
        if "count(*)" in statement and "graph_session_paths" in statement:
            raise RuntimeError("the paths cannot be read")

    stop_sessions(recorder.runtime, 2)
    with before_each_statement(fail):
        result = drain(recorder)
    assert result.success
    assert metadata_sums(result, "sealed_sessions", "run_sessions") == 2
    events = result.get_asset_materialization_events()
    graphs = [event.materialization for event in events if event.asset_key == dg.AssetKey("memory_graphs")]
    assert [("workflow" in made.metadata, "graph" in made.metadata) for made in graphs] == [(True, False)] * 2


def test_a_session_that_stops_during_the_run_is_sealed_by_it(recorder: RecorderResource) -> None:
    later = threading.Timer(0.5, stop_sessions, [recorder.runtime])
    later.start()
    drain(recorder, idle_seconds=6)
    later.join()
    assert statuses(recorder) == {"sealed": 1}


def test_a_run_without_a_place_leaves_the_work_to_the_others(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    with ExitStack() as others:
        for number in range(recorder.runtime.settings.seal_runs):
            assert others.enter_context(open_sealer(recorder.runtime, f"run {number}")) is not None
        assert drain(recorder).success
    assert statuses(recorder) == {"stopped": 1}


def test_the_lease_is_free_after_a_run(recorder: RecorderResource) -> None:
    drain(recorder)
    with recorder.runtime.database.transaction(write=False) as db:
        assert not list_sealing_runs(db)


def test_a_run_whose_place_was_taken_ends(
    recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_SEAL_LEASE_SECONDS", "1")

    def _take_over() -> None:
        places = update(LeaseRow).where(col(LeaseRow.name).startswith("seal-run:"), col(LeaseRow.owner) != "")
        taken = 0
        while not taken:  # the run may not hold its lease yet
            time.sleep(0.1)
            with recorder.runtime.database.transaction(write=True) as db:
                taken = db.exec(places.values(owner="x", fence=LeaseRow.fence + 1)).rowcount

    later = threading.Thread(target=_take_over, daemon=True)
    later.start()
    began = time.monotonic()
    assert drain(recorder, idle_seconds=60).success
    later.join()
    assert time.monotonic() - began < 30


def test_a_stopping_service_ends_the_run_in_order(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    reports: list[float] = []

    def _tell() -> None:
        # Before its first batch the run may not listen yet.
        while statuses(recorder) != {"sealed": 1}:
            time.sleep(0.1)
        reports.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=_tell, daemon=True).start()
    result = drain(recorder, idle_seconds=25)
    assert result.success
    assert time.monotonic() - reports[0] < 20
    assert metadata_sums(result, "sealed_sessions", "run_sessions") == 1


def test_the_arrival_checks_pass_after_sealing(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 2)
    drain(recorder)
    result = dg.materialize(
        [sealing, arrivals], selection=dg.AssetSelection.checks(arrivals), resources={"recorder": recorder}
    )
    evaluations = result.get_asset_check_evaluations()
    assert [evaluation.passed for evaluation in evaluations] == [True, True]


def test_the_arrival_checks_find_rows_that_came_twice(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    drain(recorder)
    lake = recorder.runtime.lake
    again = lake.scan("events", Tenant(WORKSPACE, "live")).collect().to_arrow()
    lake.append("events", Tenant(WORKSPACE, "live"), again, lane="twice", number=1)
    result = dg.materialize(
        [sealing, arrivals], selection=dg.AssetSelection.checks(arrivals), resources={"recorder": recorder}
    )
    passed = {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}
    assert passed == {"all_events_arrived": False, "all_frames_arrived": True}


def test_the_arrival_checks_name_lost_files(recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime, 1)
    drain(recorder)
    (file,) = Path(recorder.runtime.lake.url, WORKSPACE, "live", "events").rglob("*.parquet")
    file.unlink()
    result = dg.materialize(
        [sealing, arrivals], selection=dg.AssetSelection.checks(arrivals), resources={"recorder": recorder}
    )
    checks = {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}
    assert {name: check.passed for name, check in checks.items()} == {
        "all_events_arrived": False,
        "all_frames_arrived": True,
    }
    assert file.name in str(checks["all_events_arrived"].description)
