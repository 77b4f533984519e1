"""The run that writes small exports: whose turn it is, what it shows, and what it leaves to other runs."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from pipelines.dataset_metadata import LoggedProgress
from pipelines.dataset_partitions import PARTITIONS
from pipelines.export_queue import take_up_exports
from pipelines.small_export_run import (
    FinishedSmallExport,
    SmallExportLoop,
    report_small_export,
    small_exports,
    write_small_exports,
)
from recorder import clock
from recorder.exports.executor import InProcess
from recorder.exports.runner import small_exports as small_export_claims
from recorder.exports.runner.export_lease import claim_export
from recorder.exports.runner.finalize import fail_export_of_cancelled_run
from recorder.exports.runner.run import run_export
from recorder.ids import new_id
from recorder.models.export import ExportRow
from tests.support.dagster_deployment import Deployment, another_workspace
from tests.support.sealed_sessions import Recording, seal

OWNER = "run"


def claim(deployment: Deployment, at_work: list[ExportRow], served: dict[str, float]) -> str | None:
    """Claim the next export that the run takes; return its id."""
    result = small_export_claims.claim_next_small_export(deployment.runtime.database, OWNER, at_work, served)
    return result[0].id if result else None


def row_of(deployment: Deployment, export_id: str) -> ExportRow:
    """Return the row of an export as it is now."""
    with deployment.runtime.database.transaction(write=False) as db:
        return db.get_one(ExportRow, export_id)


@pytest.fixture
def writing(deployment: Deployment) -> Callable[..., dg.ExecuteInProcessResult]:
    """Run the job until its number of exports is reached; no other run follows."""

    def run(exports: int) -> dg.ExecuteInProcessResult:
        config = {"max_exports": exports, "handover_seconds": 0.2}
        return write_small_exports.execute_in_process(
            instance=deployment.instance,
            resources={"recorder": deployment.recorder},
            run_config={"ops": {"small_exports": {"config": config}}},
        )

    return run


def test_each_export_is_a_version_of_its_dataset(
    deployment: Deployment, writing: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    rows = [deployment.queue(tag=tag) for tag in ("a", "b", "a")]
    result = writing(3)
    assert result.success
    assert {row.status for row in deployment.exports()} == {"completed"}
    events = result.asset_materializations_for_node("small_exports")
    assert sorted((event.partition, event.metadata["export_id"].value) for event in events) == sorted(
        (row.dataset, row.id) for row in rows
    )
    assert all(event.metadata["dagster/row_count"].value == 6 for event in events)
    assert all("picture" in event.metadata for event in events)
    checks = result.get_asset_check_evaluations()
    assert sorted((check.check_name, check.passed) for check in checks) == [
        *[("files_match_manifest", True)] * 3,
        *[("rows_match_lake", True)] * 3,
    ]
    assert sorted(deployment.instance.get_dynamic_partitions(PARTITIONS.name)) == ["a", "b"]
    assert sorted(deployment.instance.get_materialized_partitions(dg.AssetKey("datasets"))) == ["a", "b"]


def test_an_export_that_fails_is_told_and_others_go_on(
    deployment: Deployment, writing: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    other = another_workspace(deployment, "other")
    root = Path(deployment.runtime.settings.lake_url) / deployment.workspace_id / "live" / "sessions"
    for path in root.rglob("*.parquet"):
        path.unlink()
    failed, completed = deployment.queue(), other.queue()
    result = writing(2)
    assert (row_of(deployment, failed.id).status, row_of(deployment, completed.id).status) == (
        "failed",
        "completed",
    )
    said = [record.user_message for record in deployment.instance.all_logs(result.run_id)]
    assert any(failed.id in text for text in said)


def test_a_failed_export_shows_as_an_observation() -> None:
    row = ExportRow(
        id="exp_a",
        workspace_id="w",
        mode="live",
        status="failed",
        format="jsonl",
        spec={},
        destination={},
        dataset="set",
        error={"code": "disk_full", "message": "No room."},
        created_at=clock.now(),
    )
    (event,) = report_small_export(FinishedSmallExport(row))
    assert isinstance(event, dg.AssetObservation) and event.partition == "set"
    assert event.metadata["error_code"].value == "disk_full"


def test_a_large_export_is_left_to_a_run_of_its_own(
    deployment: Deployment, writing: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    events = [(number, "click") for number in range(small_export_claims.SMALL_EVENTS + 1)]
    seal(deployment.runtime, [Recording(events=events)], workspace_id=deployment.workspace_id)
    row = deployment.queue()
    writing(1)
    stored = row_of(deployment, row.id)
    assert (stored.status, stored.has_own_run, stored.attempt) == ("queued", True, 0)
    assert claim(deployment, [], {}) is None
    with deployment.runtime.database.transaction(write=True) as db:
        small_export_claims.take_small_export_writer_lease(db, OWNER)
    (request,) = deployment.tick()
    assert deployment.run(request).success


def test_one_workspace_takes_half_of_the_slots(deployment: Deployment) -> None:
    other = another_workspace(deployment, "other")
    later_rows = [deployment.queue() for _ in range(4)]
    later = other.queue()
    at_work: list[ExportRow] = []
    taken = []
    while (export_id := claim(deployment, at_work, {deployment.workspace_id: 1.0})) is not None:
        taken.append(export_id)
        at_work.append(row_of(deployment, export_id))
    assert taken == [later.id, later_rows[0].id, later_rows[1].id]


def test_the_workspace_that_was_served_longest_ago_comes_first(deployment: Deployment) -> None:
    other = another_workspace(deployment, "other")
    deployment.queue()
    theirs = other.queue()
    assert claim(deployment, [], {deployment.workspace_id: 7.0, other.workspace_id: 3.0}) == theirs.id


def test_stores_of_others_never_take_all_slots(deployment: Deployment) -> None:
    def in_cloud(row: ExportRow) -> ExportRow:
        with deployment.runtime.database.transaction(write=True) as db:
            stored = db.get_one(ExportRow, row.id)
            stored.destination = {"kind": "s3", "bucket": "b"}
            db.add(stored)
        return stored

    rows = [in_cloud(another_workspace(deployment, f"w{number}").queue()) for number in range(3)]
    hosted = deployment.queue()
    at_work: list[ExportRow] = []
    while (export_id := claim(deployment, at_work, {})) is not None:
        at_work.append(row_of(deployment, export_id))
    assert {row.id for row in at_work} == {rows[0].id, rows[1].id, hosted.id}


@pytest.mark.parametrize("destination", ["s3", "signed_url"])
def test_many_that_may_not_be_claimed_now_hide_no_others(deployment: Deployment, destination: str) -> None:
    runtime, others = deployment.runtime, 60
    first = deployment.queue()
    with runtime.database.transaction(write=True) as db:
        values = db.get_one(ExportRow, first.id).model_dump()
        values |= {"destination": {"kind": destination}, "workspace_id": "wsp_other"}
        # With `s3` each is of a workspace of its own; else all are of one workspace.
        ids = [new_id("exp") for _ in range(others)]
        rows = [ExportRow(**values | {"id": export_id}) for export_id in ids]
        if destination == "s3":
            for number, row in enumerate(rows):
                row.workspace_id = f"wsp_{number}"
        db.add_all(rows)
        db.delete(db.get_one(ExportRow, first.id))
    at_work = [row_of(deployment, ids[0]), row_of(deployment, ids[1])]
    assert claim(deployment, at_work, {}) is None
    hosted = deployment.queue()
    assert claim(deployment, at_work, {}) == hosted.id


def test_what_another_run_works_on_or_tried_is_not_claimed(deployment: Deployment) -> None:
    held, tried = deployment.queue(), deployment.queue()
    with deployment.runtime.database.transaction(write=True) as db:
        claim_export(deployment.runtime.database, db, held.id, owner="somebody")
        stored = db.get_one(ExportRow, tried.id)
        stored.attempt, stored.status = 1, "running"
        db.add(stored)
    assert claim(deployment, [], {}) is None


def test_an_export_that_a_killed_run_left_gets_a_run_of_its_own(deployment: Deployment) -> None:
    row = deployment.queue()

    def die(text: str) -> None:
        if text.startswith("1 of"):
            raise SystemExit

    assert claim(deployment, [], {}) == row.id
    with pytest.raises(SystemExit):
        run_export(
            deployment.runtime, row.id, owner=OWNER, executor=LoggedProgress(InProcess(), die, every_s=0)
        )
    with deployment.runtime.database.transaction(write=True) as db:
        small_export_claims.take_small_export_writer_lease(db, "next run")
    assert claim(deployment, [], {}) is None
    (request,) = deployment.tick()
    deployment.run(request)
    assert row_of(deployment, row.id).status == "completed"


def test_a_cancelled_export_is_not_claimed(deployment: Deployment) -> None:
    row = deployment.queue()
    fail_export_of_cancelled_run(deployment.runtime, row.id, owner="somebody")
    assert claim(deployment, [], {}) is None


def test_only_one_run_writes_small_exports(
    deployment: Deployment, writing: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    row = deployment.queue()
    with deployment.runtime.database.transaction(write=True) as db:
        assert small_export_claims.take_small_export_writer_lease(db, "another run") is not None
    assert writing(1).success
    assert row_of(deployment, row.id).status == "queued"


def test_a_run_that_is_told_to_end_finishes_what_it_began(deployment: Deployment) -> None:
    row = deployment.queue()
    log = logging.getLogger("tests")
    loop = SmallExportLoop(deployment.runtime, owner=OWNER, run_log=log, lease_ms=60_000, handover_s=1)
    assert loop.take_lease()
    threading.Timer(0.4, loop.stop).start()
    finished = list(loop.write_exports(max_seconds=60, max_exports=9))
    assert [export.row.id for export in finished] == [row.id]
    assert loop.ending == "interrupted"
    with deployment.runtime.database.transaction(write=False) as db:
        assert small_export_claims.find_small_export_writer(db) is None


def test_a_run_that_reported_an_export_still_ends_in_order(
    deployment: Deployment, writing: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    # Dagster's handlers of signals, installed again after each report, would fail the run.
    deployment.queue(tag="a")
    datasets = dg.AssetKey("datasets")

    def stop_after_the_report() -> None:
        until = time.monotonic() + 60
        while not deployment.instance.get_materialized_partitions(datasets) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)  # the checks are reported too, and the run waits for its next export
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_after_the_report)
    stopping.start()
    result = writing(9)
    stopping.join()
    assert result.success
    with deployment.runtime.database.transaction(write=False) as db:
        assert small_export_claims.find_small_export_writer(db) is None


def jobs_of(deployment: Deployment) -> list[str | None]:
    """Return jobs of the runs that the sensor asks for now."""
    result = take_up_exports(lambda: deployment.instance, deployment.recorder)
    return [] if isinstance(result, dg.SkipReason) else [run.job_name for run in result.run_requests or []]


def test_the_sensor_keeps_one_run(deployment: Deployment) -> None:
    assert jobs_of(deployment) == ["write_small_exports"]
    with deployment.runtime.database.transaction(write=True) as db:
        small_export_claims.take_small_export_writer_lease(db, OWNER)
    assert jobs_of(deployment) == []


def test_small_exports_wait_for_the_run_and_not_for_ever(deployment: Deployment) -> None:
    deployment.recorder = deployment.recorder.model_copy(update={"small_export_patience_s": 20.0})
    row = deployment.queue()
    assert jobs_of(deployment) == ["write_small_exports"]
    with deployment.runtime.database.transaction(write=True) as db:
        stored = db.get_one(ExportRow, row.id)
        stored.created_at -= timedelta(seconds=30)
        db.add(stored)
    assert jobs_of(deployment) == ["write_small_exports", "export_datasets"]
    assert row_of(deployment, row.id).has_own_run


def test_a_failing_run_is_not_started_again_and_again(deployment: Deployment) -> None:
    deployment.instance.create_run_for_job(write_small_exports, status=dg.DagsterRunStatus.FAILURE)
    assert jobs_of(deployment) == []


def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time for a run to take its lease be over."""
    now = clock.now() + timedelta(seconds=21)
    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(now))


def test_a_run_that_hands_over_is_not_taken_for_lost(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = deployment.instance
    old = instance.create_run_for_job(write_small_exports, status=dg.DagsterRunStatus.STARTED)
    with deployment.runtime.database.transaction(write=True) as db:
        lease = small_export_claims.take_small_export_writer_lease(db, old.run_id)
        assert lease is not None
        small_export_claims.pass_on_small_export_writer_lease(db, lease)
    let_time_pass(monkeypatch)
    assert jobs_of(deployment) == ["write_small_exports"]
    result = instance.get_run_by_id(old.run_id)
    assert result is not None and result.status == dg.DagsterRunStatus.STARTED


def test_a_run_whose_process_is_gone_is_marked_and_followed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = deployment.instance.create_run_for_job(write_small_exports, status=dg.DagsterRunStatus.STARTED)
    let_time_pass(monkeypatch)
    assert jobs_of(deployment) == ["write_small_exports"]
    result = deployment.instance.get_run_by_id(lost.run_id)
    assert result is not None and result.status == dg.DagsterRunStatus.FAILURE


def test_the_op_is_the_job() -> None:
    assert [node.name for node in write_small_exports.nodes] == [small_exports.name]
