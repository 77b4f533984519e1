"""Places of runs that write one export each: a workspace with many exports keeps no other one waiting."""

import os
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, DagsterEventType, EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from pipelines import export_queue
from pipelines.dagster_runs import (
    LONGEST_WITHOUT_LEASE_S,
    fail_dagster_runs_without_process,
    fail_lost_dagster_run,
    list_unfinished_dagster_runs,
)
from pipelines.dataset_checks import EXPORT_TAG
from pipelines.export_slots import (
    EXPORT_POOL,
    PRIORITY_TAG,
    SPARE_PRIORITY,
    ExportSlots,
    choose_exports_to_start,
    read_export_slots,
    store_export_pool_limit,
)
from pipelines.exports import datasets
from recorder import clock
from recorder.errors import Unavailable
from recorder.exports.runner.export_lease import claim_export
from recorder.models.export import ExportRow
from tests.support.dagster_deployment import Deployment, another_workspace

HOME = Path(__file__).parents[2] / "dagster_home"
QUEUED, STARTED = dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED
SPARE = {PRIORITY_TAG: SPARE_PRIORITY}


@pytest.fixture
def other(deployment: Deployment) -> Deployment:
    """Return a second workspace of the deployment."""
    return another_workspace(deployment, "other")


@pytest.fixture
def real_queue(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dg.DagsterInstance]:
    """Yield the instance of `dagster_home/dagster.yaml`, as the one of the deployment."""
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(tmp_path / "dagster"))
    with dg.DagsterInstance.from_config(str(HOME)) as instance:
        deployment.instance = instance
        store_export_pool_limit(instance)
        yield instance


def start(deployment: Deployment, row: ExportRow, **tags: str) -> dg.DagsterRun:
    """Start a run that works on an export."""
    run = deployment.add_run(row, STARTED, tags)
    with deployment.runtime.database.transaction(write=True) as db:
        claim_export(deployment.runtime.database, db, row.id, owner=run.run_id)
    return run


def end(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """End a run."""
    event = DagsterEvent(DagsterEventType.RUN_SUCCESS.value, run.job_name)
    instance.report_dagster_event(event, run.run_id)


def next_of_queue(instance: dg.DagsterInstance) -> list[str]:
    """Return the exports whose runs Dagster's queue starts now."""
    daemon = QueuedRunCoordinatorDaemon(interval_seconds=2)
    runs = daemon._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None)
    return [run.tags[EXPORT_TAG] for run in runs]


def read_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, str]:
    """Return the tags of a run as they are now."""
    stored = instance.get_run_by_id(run.run_id)
    assert stored is not None
    return dict(stored.tags)


def ids_and_priorities(requests: list[dg.RunRequest]) -> list[tuple[str, str | None]]:
    return [(request.tags[EXPORT_TAG], request.tags.get(PRIORITY_TAG)) for request in requests]


def test_a_workspace_without_others_has_all_slots_and_one_run_that_waits(deployment: Deployment) -> None:
    rows = [deployment.queue() for _ in range(5)]
    assert ids_and_priorities(deployment.tick()) == [
        (rows[0].id, None),
        (rows[1].id, SPARE_PRIORITY),
        (rows[2].id, SPARE_PRIORITY),
    ]


def test_many_exports_of_one_workspace_leave_half_of_the_slots_to_others(
    deployment: Deployment, other: Deployment
) -> None:
    ours, theirs = [deployment.queue() for _ in range(25)], other.queue()
    assert ids_and_priorities(deployment.tick()) == [(ours[0].id, None), (theirs.id, None)]
    start(deployment, ours[0])
    start(deployment, theirs)
    other.queue()
    assert deployment.tick() == []


def test_a_slot_that_becomes_free_goes_to_the_workspace_that_has_none(
    deployment: Deployment, real_queue: dg.DagsterInstance, other: Deployment
) -> None:
    ours = [deployment.queue() for _ in range(5)]
    first, _ = start(deployment, ours[0]), start(deployment, ours[1])
    deployment.add_run(ours[2], QUEUED, SPARE)
    theirs = other.queue()
    assert ids_and_priorities(deployment.tick()) == [(theirs.id, None)]
    deployment.add_run(theirs, QUEUED)
    assert next_of_queue(real_queue) == []
    end(real_queue, first)
    assert next_of_queue(real_queue) == [theirs.id]


def test_a_run_that_waits_beyond_the_share_is_overtaken_only_while_its_workspace_has_another(
    deployment: Deployment, real_queue: dg.DagsterInstance, other: Deployment
) -> None:
    ours, theirs = [deployment.queue() for _ in range(5)], [other.queue() for _ in range(3)]
    start(other, theirs[0])
    running = start(other, theirs[1])
    deployment.add_run(ours[0], QUEUED, SPARE)
    other.add_run(theirs[2], QUEUED)
    end(real_queue, running)
    assert next_of_queue(real_queue) == [theirs[2].id]
    # It has its workspace's share from now on: no further export of the workspace gets a run.
    assert deployment.tick() == []
    assert next_of_queue(real_queue) == [ours[0].id]


def add_page_run(deployment: Deployment, status: dg.DagsterRunStatus, **tags: str) -> dg.DagsterRun:
    """Create a run from Dagster's pages: its configuration names no export."""
    job = dg.Definitions(
        [datasets], resources={"recorder": deployment.recorder}
    ).resolve_implicit_global_asset_job_def()
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("recorder"), "__repository__")
    return deployment.instance.create_run_for_job(
        job,
        tags={EXPORT_TAG: "", **tags},
        status=status,
        run_config={"ops": {"datasets": {"config": {"workspace": "acme", "workflow": "checkout"}}}},
        remote_job_origin=repository.get_job_origin(job.name),
    )


def test_a_backfill_from_the_pages_leaves_half_of_the_slots_to_exports(
    deployment: Deployment, real_queue: dg.DagsterInstance
) -> None:
    backfill = [add_page_run(deployment, QUEUED) for _ in range(6)]
    row = deployment.queue()
    assert ids_and_priorities(deployment.tick()) == [(row.id, None)]
    deployment.add_run(row, QUEUED)
    assert next_of_queue(real_queue) == ["", row.id]
    assert PRIORITY_TAG not in read_tags(real_queue, backfill[0])
    assert {read_tags(real_queue, run)[PRIORITY_TAG] for run in backfill[1:]} == {SPARE_PRIORITY}


def test_a_backfill_from_the_pages_leaves_the_queue_to_sealing_and_other_jobs(
    deployment: Deployment, real_queue: dg.DagsterInstance
) -> None:
    for _ in range(20):
        add_page_run(deployment, QUEUED)
    assert next_of_queue(real_queue) == ["", ""]


def test_a_run_from_the_pages_at_work_has_their_share_though_it_has_an_export(
    deployment: Deployment, real_queue: dg.DagsterInstance
) -> None:
    made, row = deployment.queue(), deployment.queue()
    running = add_page_run(deployment, STARTED, **{EXPORT_TAG: made.id})
    with deployment.runtime.database.transaction(write=True) as db:
        claim_export(deployment.runtime.database, db, made.id, owner=running.run_id)
    waiting = add_page_run(deployment, QUEUED)
    assert ids_and_priorities(deployment.tick()) == [(row.id, None)]
    deployment.add_run(row, QUEUED)
    assert next_of_queue(real_queue) == [row.id]
    # It is the next of the pages once the first one has ended.
    end(real_queue, running)
    deployment.queue()
    deployment.tick()
    assert read_tags(real_queue, waiting)[PRIORITY_TAG] == "0"


def test_a_priority_that_a_user_has_set_is_kept(
    deployment: Deployment, real_queue: dg.DagsterInstance
) -> None:
    runs = [add_page_run(deployment, QUEUED, **{PRIORITY_TAG: "5"}) for _ in range(3)]
    deployment.queue()
    deployment.tick()
    assert {read_tags(real_queue, run)[PRIORITY_TAG] for run in runs} == {"5"}


def test_a_run_whose_export_is_completed_has_its_slot_until_its_checks_end(
    deployment: Deployment, other: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [deployment.queue() for _ in range(3)]
    start(other, other.queue())
    deployment.add_run(ours[0], STARTED)
    with deployment.runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, ours[0].id)
        row.status, row.completed_at = "completed", clock.now()
    # It had the time to take its export; the lease of the other run still holds.
    later = clock.now() + timedelta(seconds=25)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert deployment.tick() == []


@pytest.mark.parametrize("tags", [{}, {EXPORT_TAG: ""}], ids=["completed export", "Dagster's pages"])
def test_a_run_whose_process_is_gone_keeps_no_slot_whatever_it_did(
    deployment: Deployment, other: Deployment, monkeypatch: pytest.MonkeyPatch, tags: dict[str, str]
) -> None:
    ours, theirs = [deployment.queue() for _ in range(2)], other.queue()
    gone = subprocess.Popen(["true"])
    gone.wait()
    for row in ours:
        run = deployment.add_run(row, STARTED, tags)
        process = EngineEventData.in_process(gone.pid)
        deployment.instance.report_engine_event("Started process for run.", run, process)
        with deployment.runtime.database.transaction(write=True) as db:
            completed = db.get_one(ExportRow, row.id)
            completed.status, completed.completed_at = "completed", clock.now()
    later = clock.now() + timedelta(seconds=25)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert ids_and_priorities(deployment.tick()) == [(theirs.id, None)]
    assert {run.status for run in deployment.instance.get_runs()} == {dg.DagsterRunStatus.FAILURE}


def test_the_lost_runs_of_all_jobs_are_failed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    runs = [deployment.add_run(deployment.queue(), STARTED) for _ in range(2)]
    for run, process_id in zip(runs, (gone.pid, os.getpid()), strict=True):
        process = EngineEventData.in_process(process_id)
        deployment.instance.report_engine_event("Started process for run.", run, process)
    later = clock.now() + timedelta(minutes=20)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert fail_dagster_runs_without_process(deployment.instance) == 1
    statuses = {run.run_id: run.status for run in deployment.instance.get_runs()}
    assert [statuses[run.run_id] for run in runs] == [dg.DagsterRunStatus.FAILURE, STARTED]


def test_the_check_of_all_jobs_does_not_count_a_run_as_one_without_lease(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = deployment.add_run(deployment.queue(), STARTED)
    process = EngineEventData.in_process(os.getpid())
    deployment.instance.report_engine_event("Started process for run.", run, process)
    later, began = clock.now() + timedelta(minutes=20), time.monotonic()
    monkeypatch.setattr(clock, "now", lambda: later)
    # It works for longer than a run may be without a lease, and has just given its lease back.
    for second in range(0, int(LONGEST_WITHOUT_LEASE_S) + 60, 30):
        monkeypatch.setattr(time, "monotonic", lambda second=second: began + second)
        assert fail_dagster_runs_without_process(deployment.instance) == 0
    (record,) = list_unfinished_dagster_runs(deployment.instance)
    assert not fail_lost_dagster_run(deployment.instance, record)


def test_lost_runs_keep_no_slot_however_many_exports_wait(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [deployment.queue() for _ in range(2)]
    with deployment.runtime.database.transaction(write=True) as db:
        for row in lost:
            db.get_one(ExportRow, row.id).attempt = 1
    rows = [deployment.queue() for _ in range(21)]  # as many as a tick considers, and one more
    for row in lost:
        deployment.add_run(row, STARTED)
    now = clock.now() + timedelta(seconds=30)
    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(now))
    assert [export_id for export_id, _ in ids_and_priorities(deployment.tick())] == [
        row.id for row in rows[:3]
    ]
    runs = deployment.instance.get_runs()
    assert {run.status for run in runs} == {dg.DagsterRunStatus.FAILURE}


def test_small_exports_beyond_the_share_stay_with_the_run_for_small_ones(
    deployment: Deployment, other: Deployment
) -> None:
    rows = [deployment.queue() for _ in range(3)]
    other.queue()
    deployment.tick()
    owns = {row.id: row.has_own_run for row in deployment.exports()}
    assert [owns[row.id] for row in rows] == [True, False, False]


def test_a_recount_that_fails_holds_up_no_export(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise Unavailable("The database")

    monkeypatch.setattr(export_queue, "recount_awaited_replayability", fail)
    deployment.queue()
    assert len(deployment.tick()) == 1


def test_the_slots_are_those_of_the_queue(real_queue: dg.DagsterInstance, deployment: Deployment) -> None:
    database = deployment.runtime.database
    assert read_export_slots(real_queue, database) == ExportSlots(2)
    # As an operator sets it in Dagster's pages, under Concurrency.
    real_queue.event_log_storage.set_concurrency_slots(EXPORT_POOL, 3)
    store_export_pool_limit(real_queue)
    assert read_export_slots(real_queue, database) == ExportSlots(3)


def test_more_slots_are_divided_among_the_workspaces_that_wait() -> None:
    rows = [make_row(f"exp_{number}{workspace}", workspace) for number in range(9) for workspace in "abc"]
    chosen = choose_exports_to_start(ExportSlots(8), rows, limit=20)
    assert [(choice.row.id, choice.is_spare) for choice in chosen] == [
        (f"exp_{number}{workspace}", False) for number in range(4) for workspace in "abc"
    ]


def test_a_slot_that_no_share_takes_goes_to_the_next_in_turn() -> None:
    rows = [make_row(f"exp_{number}{workspace}", workspace) for number in range(9) for workspace in "ab"]
    chosen = choose_exports_to_start(ExportSlots(3), rows, limit=20)
    assert [(choice.row.id, choice.is_spare) for choice in chosen] == [
        ("exp_0a", False),
        ("exp_0b", False),
        ("exp_1a", True),
    ]


def make_row(export_id: str, workspace_id: str) -> ExportRow:
    """Return an export that waits."""
    return ExportRow(
        id=export_id,
        workspace_id=workspace_id,
        mode="live",
        status="queued",
        format="parquet",
        spec={},
        destination={},
        dataset="set",
        created_at=clock.now(),
    )
