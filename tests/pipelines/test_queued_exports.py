"""Exports that wait become runs of their datasets; runs that ended, were cancelled or cut off. Spec §4.3."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from sqlmodel import select

from pipelines.configured_export import DATASET_TAG
from pipelines.dataset_checks import EXPORT_TAG
from pipelines.dataset_metadata import LoggedProgress
from pipelines.dataset_partitions import PARTITIONS
from pipelines.export_queue import take_up_exports
from pipelines.exports import REQUEST_TAG
from recorder import clock
from recorder.audit.log import Origin
from recorder.exports.executor import InProcess
from recorder.exports.requests.recipes import add_recipe, read_recipe_request
from recorder.exports.runner.export_lease import claim_export
from recorder.exports.runner.finalize import fail_export_of_cancelled_run
from recorder.exports.runner.run import run_export
from recorder.models.export import ExportRow, RecipeRow
from recorder.models.operations import OutboxRow
from recorder.request_context import continue_request_context
from recorder.tenant import Tenant
from tests.support.dagster_deployment import BODY, Deployment


def test_a_queued_export_becomes_a_run_of_its_dataset(deployment: Deployment) -> None:
    row = deployment.queue(tag="v 3|ü")
    (request,) = deployment.tick()
    assert (request.run_key, request.partition_key) == (f"{row.id}:0", "v 3|ü")
    assert (request.tags[EXPORT_TAG], request.tags[DATASET_TAG]) == (row.id, "v 3|ü")
    assert deployment.instance.get_dynamic_partitions(PARTITIONS.name) == ["v 3|ü"]


def test_the_run_of_a_queued_export_completes_it(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()
    result = deployment.run(request)
    (export,) = deployment.exports()
    assert (export.id, export.status, export.rows) == (row.id, "completed", 6)
    assert result.success
    assert deployment.tick() == []


def test_a_run_carries_the_id_of_the_request_that_asked_for_it(deployment: Deployment) -> None:
    with continue_request_context("req_asked"):
        row = deployment.queue()
    (request,) = deployment.tick()
    result = deployment.run(request)
    said = [record.user_message for record in deployment.instance.all_logs(result.run_id)]
    assert result.dagster_run.tags[REQUEST_TAG] == "req_asked"
    assert f"Export {row.id}, request req_asked" in said
    with deployment.runtime.database.transaction(write=False) as db:
        output = db.exec(select(OutboxRow).where(OutboxRow.subject_id == row.id).order_by(OutboxRow.id)).all()
    assert [(event.type, event.request_id) for event in output] == [
        ("export.queued", "req_asked"),
        ("export.completed", "req_asked"),
    ]


def test_a_failed_export_fails_its_run(deployment: Deployment) -> None:
    row = deployment.queue()
    root = Path(deployment.runtime.settings.lake_url) / deployment.workspace_id / "live" / "sessions"
    for path in root.rglob("*.parquet"):
        path.unlink()
    (request,) = deployment.tick()
    with pytest.raises(Exception):  # noqa: B017
        deployment.run(request)
    assert [(export.id, export.status) for export in deployment.exports()] == [(row.id, "failed")]


def test_an_export_that_somebody_works_on_gets_no_run(deployment: Deployment) -> None:
    row = deployment.queue()
    with deployment.runtime.database.transaction(write=True) as db:
        claim_export(deployment.runtime.database, db, row.id, owner="somebody")
    assert deployment.tick() == []


def test_a_run_that_just_ended_is_not_repeated_at_once(deployment: Deployment) -> None:
    row = deployment.queue()
    deployment.add_run(row, dg.DagsterRunStatus.FAILURE)
    assert deployment.tick() == []


def test_after_the_clock_was_set_back_no_export_waits_until_it_has_caught_up(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.recorder = deployment.recorder.model_copy(update={"small_export_patience_s": 20.0})
    new, failed = deployment.queue(), deployment.queue()
    with deployment.runtime.database.transaction(write=True) as db:
        db.get_one(ExportRow, failed.id).attempt = 1
    deployment.add_run(failed, dg.DagsterRunStatus.FAILURE)
    assert deployment.tick() == []
    earlier = clock.now() - timedelta(hours=5)
    monkeypatch.setattr(clock, "now", lambda: earlier)
    assert {request.tags[EXPORT_TAG] for request in deployment.tick()} == {new.id, failed.id}


def test_the_key_of_the_next_run_is_new_after_a_run_was_deleted(deployment: Deployment) -> None:
    row = deployment.queue()
    runs = [
        deployment.add_run(row, dg.DagsterRunStatus.FAILURE, {"dagster/run_key": f"{row.id}:{number}"})
        for number in range(3)
    ]
    deployment.instance.delete_run(runs[0].run_id)
    deployment.recorder = deployment.recorder.model_copy(update={"export_pause_s": -1.0})
    (request,) = deployment.tick()
    assert request.run_key == f"{row.id}:3"


def test_a_run_that_lost_its_process_is_marked_and_followed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = deployment.queue()
    deployment.add_run(row, dg.DagsterRunStatus.STARTED)
    later = clock.now() + timedelta(seconds=30)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert len(deployment.tick()) == 1
    (record,) = deployment.instance.get_run_records(dg.RunsFilter(tags={EXPORT_TAG: row.id}))
    assert record.dagster_run.status == dg.DagsterRunStatus.FAILURE


def test_a_cancelled_run_cancels_its_export(deployment: Deployment) -> None:
    row = deployment.queue()
    deployment.add_run(row, dg.DagsterRunStatus.CANCELED)
    deployment.tick()
    (export,) = deployment.exports()
    assert (export.status, (export.error or {})["code"]) == ("failed", "cancelled")


def test_an_export_that_is_claimed_during_the_tick_holds_up_no_other(deployment: Deployment) -> None:
    claimed, other = deployment.queue(), deployment.queue()
    deployment.add_run(claimed, dg.DagsterRunStatus.CANCELED)

    def _claim_and_open() -> dg.DagsterInstance:
        database = deployment.runtime.database
        with database.transaction(write=True) as db:
            claim_export(database, db, claimed.id, owner="another run")
        return deployment.instance

    result = take_up_exports(_claim_and_open, deployment.recorder)
    assert isinstance(result, dg.SensorResult)
    assert other.id in {request.tags.get(EXPORT_TAG) for request in result.run_requests or []}
    assert {export.status for export in deployment.exports()} == {"queued"}


def test_files_of_a_cancelled_run_are_taken_away_by_a_run_and_not_in_the_tick(deployment: Deployment) -> None:
    row = deployment.queue()

    class Killed(BaseException):
        pass

    def _die(text: str) -> None:
        if text.startswith("1 of"):
            raise Killed

    with pytest.raises(Killed):
        run_export(
            deployment.runtime, row.id, owner="killed", executor=LoggedProgress(InProcess(), _die, every_s=0)
        )
    deployment.add_run(row, dg.DagsterRunStatus.CANCELED)
    deployment.recorder = deployment.recorder.model_copy(update={"export_pause_s": -1.0})
    folder = Path(deployment.runtime.settings.export_url) / deployment.workspace_id / row.id
    assert deployment.tick() == []
    assert deployment.exports()[0].status == "failed" and list(folder.rglob("*.parquet"))
    (request,) = deployment.tick()
    config = request.run_config["ops"]["datasets"]["config"]
    assert not deployment.materialize(str(request.partition_key), config, raise_on_error=False).success
    assert not list(folder.rglob("*.parquet"))
    assert deployment.tick() == []


def test_an_export_in_its_pause_takes_no_place_of_a_tick(deployment: Deployment) -> None:
    deployment.recorder = deployment.recorder.model_copy(update={"exports_per_tick": 1})
    waiting, next_one = deployment.queue(), deployment.queue()
    deployment.add_run(waiting, dg.DagsterRunStatus.FAILURE)
    assert [request.tags[EXPORT_TAG] for request in deployment.tick()] == [next_one.id]


def test_a_run_that_carries_on_says_so_and_writes_only_what_is_left(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()

    class Killed(BaseException):
        pass

    def _die(text: str) -> None:
        if text.startswith("1 of"):
            raise Killed

    output = LoggedProgress(InProcess(), _die, every_s=0)
    with pytest.raises(Killed):
        run_export(deployment.runtime, row.id, owner="killed", executor=output)
    said = [record.user_message for record in deployment.instance.all_logs(deployment.run(request).run_id)]
    assert "Carried on, attempt 2: 1 of 2 shards are there" in said
    assert "1 shards to write" in said
    assert deployment.exports()[0].status == "completed"


def test_the_run_of_a_cancelled_export_ends_and_says_so(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()
    fail_export_of_cancelled_run(deployment.runtime, row.id, owner="somebody")
    assert request.partition_key is not None
    result = deployment.materialize(
        request.partition_key, request.run_config["ops"]["datasets"]["config"], raise_on_error=False
    )
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    assert "The export was cancelled" in str(failure.event_specific_data)
    assert result.asset_materializations_for_node("datasets") == []


def test_a_recipe_is_a_partition_and_its_tick_becomes_a_run(deployment: Deployment) -> None:
    body = read_recipe_request({**BODY, "tag": "nightly", "format": "jsonl"})
    add_recipe(
        deployment.runtime,
        Tenant(deployment.workspace_id, "live"),
        body,
        cron="0 6 * * *",
        timezone="UTC",
        origin=Origin.operator(deployment.workspace_id),
    )
    assert deployment.follow_recipes() == "No recipe is due."
    assert deployment.instance.get_dynamic_partitions(PARTITIONS.name) == ["nightly"]
    assert deployment.tick() == []
    with deployment.runtime.database.transaction(write=True) as db:
        row = db.get_one(RecipeRow, (deployment.workspace_id, "live", "nightly"))
        row.next_at, row.created_at = row.next_at - timedelta(days=1), row.created_at - timedelta(days=1)
    assert deployment.follow_recipes() == "1 exports made, 0 recipes failed."
    assert deployment.follow_recipes() == "No recipe is due."
    (request,) = deployment.tick()
    assert request.partition_key == "nightly"
    deployment.run(request)
    assert [(row.status, row.format, row.dataset) for row in deployment.exports()] == [
        ("completed", "jsonl", "nightly")
    ]
