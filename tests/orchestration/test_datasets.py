"""The `datasets` asset: queued exports, exports from the launchpad, what the UI shows. Spec §4.3."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from sqlmodel import select

from pipelines.dataset_config import from_row
from pipelines.dataset_report import _markdown, check_files, check_lake
from pipelines.export_progress import ToldProgress
from pipelines.exports import DATASET_TAG, EXPORT_TAG, PARTITIONS, REQUEST_TAG, datasets, queued_exports
from pipelines.recipes import scheduled_recipes
from pipelines.resources import RecorderResource, close_runtimes
from recorder.access.keys import create_workspace
from recorder.audit.log import Origin
from recorder.exports.asking.recipes import add_recipe, read_request
from recorder.exports.asking.requests import create_export, list_exports
from recorder.exports.executor import InProcess
from recorder.exports.running.claims import claim_export
from recorder.exports.running.operator import cancel_export
from recorder.exports.running.run import run_export
from recorder.exports.verify.checking import ANOTHER_MANIFEST
from recorder.models.export_request import ExportCreate
from recorder.models.export_rows import ExportRow
from recorder.models.outbox import OutboxRow
from recorder.models.recipe import RecipeRow
from recorder.runtime import Runtime
from recorder.tracing import following
from tests.databases import create_file
from tests.sealed import Recording, seal

_BODY = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}


@dataclass
class Deployment:
    """A data folder with one workspace, and a Dagster instance of its own."""

    recorder: RecorderResource
    runtime: Runtime
    workspace_id: str
    instance: dg.DagsterInstance

    def queue(self, **body: Any) -> ExportRow:
        asked, origin = ExportCreate.model_validate(_BODY | body), Origin.operator(self.workspace_id)
        return create_export(self.runtime, self.workspace_id, "live", asked, origin=origin)

    def tick(self) -> list[dg.RunRequest]:
        """What the sensor asks for now."""
        context = dg.build_sensor_context(instance=self.instance, resources={"recorder": self.recorder})
        result = queued_exports(context)
        if isinstance(result, dg.SkipReason):
            return []
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(PARTITIONS.name, request.partition_keys)
        return list(result.run_requests or [])

    def follow_recipes(self) -> str:
        """What the sensor of recipes says now."""
        context = dg.build_sensor_context(instance=self.instance, resources={"recorder": self.recorder})
        result = scheduled_recipes(context)
        assert isinstance(result, dg.SensorResult) and not result.run_requests
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(PARTITIONS.name, request.partition_keys)
        return str(getattr(result.skip_reason, "skip_message", result.skip_reason))

    def materialize(self, partition: str, config: dict[str, Any], **more: Any) -> dg.ExecuteInProcessResult:
        self.instance.add_dynamic_partitions(PARTITIONS.name, [partition])
        return dg.materialize(
            [datasets],
            partition_key=partition,
            instance=self.instance,
            resources={"recorder": self.recorder},
            run_config={"ops": {"datasets": {"config": config}}},
            **more,
        )

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        assert request.partition_key is not None
        config = request.run_config["ops"]["datasets"]["config"]
        return self.materialize(request.partition_key, config, tags=dict(request.tags))

    def add_run(self, row: ExportRow, status: dg.DagsterRunStatus) -> None:
        """A record of a run of this export that ended so."""
        job = dg.Definitions(
            [datasets], resources={"recorder": self.recorder}
        ).resolve_implicit_global_asset_job_def()
        config = dg.RunConfig(ops={"datasets": from_row(row)}).to_config_dict()
        self.instance.create_run_for_job(job, tags={EXPORT_TAG: row.id}, status=status, run_config=config)

    def exports(self) -> list[ExportRow]:
        with self.runtime.database.transaction(write=False) as db:
            rows, _ = list_exports(
                db, self.workspace_id, "live", workflows=(), status=None, before_id=None, limit=9
            )
        return rows


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    create_file(tmp_path)
    recorder = RecorderResource(data_dir=str(tmp_path))
    runtime = recorder.runtime
    with runtime.database.transaction(write=True) as db:
        key = create_workspace(db, "acme", region="us", secret=runtime.settings.secret, tier="unlimited")
    recordings = [Recording(frames=[0, 600]), Recording(outcome=None), Recording(workflow="login")]
    seal(runtime, recordings, workspace_id=key.workspace_id)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(recorder, runtime, key.workspace_id, instance)
    close_runtimes()


def _metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node("datasets")
    return dict(event.metadata)


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
    with following("req_asked"):
        row = deployment.queue()
    (request,) = deployment.tick()
    result = deployment.run(request)
    said = [record.user_message for record in deployment.instance.all_logs(result.run_id)]
    assert result.dagster_run.tags[REQUEST_TAG] == "req_asked"
    assert f"Export {row.id}, request req_asked" in said
    with deployment.runtime.database.transaction(write=False) as db:
        told = db.exec(select(OutboxRow).where(OutboxRow.subject_id == row.id).order_by(OutboxRow.id)).all()
    assert [(event.type, event.request_id) for event in told] == [
        ("export.queued", "req_asked"),
        ("export.completed", "req_asked"),
    ]


def test_a_launchpad_run_makes_its_export_and_runs_it(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["login", "checkout"], "frame_sampling": {"mode": "all"}}
    deployment.materialize("checkout+login", config)
    (export,) = deployment.exports()
    assert (export.status, export.tag, export.dataset) == ("completed", None, "checkout+login")
    assert (export.rows, export.frames) == (9, 2)


def test_a_partition_of_another_name_is_the_tag(deployment: Deployment) -> None:
    deployment.materialize("v7", {"workspace": deployment.workspace_id, "workflow": ["checkout"]})
    assert deployment.exports()[0].tag == "v7"


def test_a_tag_that_names_another_dataset_is_refused(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"], "tag": "v8"}
    result = deployment.materialize("v7", config, raise_on_error=False)
    assert not result.success
    assert deployment.exports() == []


def test_a_failed_export_fails_its_run(deployment: Deployment) -> None:
    row = deployment.queue()
    root = Path(deployment.runtime.settings.lake_url) / deployment.workspace_id / "live" / "sessions"
    for path in root.rglob("*.parquet"):
        path.unlink()
    (request,) = deployment.tick()
    with pytest.raises(Exception):  # noqa: B017
        deployment.run(request)
    assert [(export.id, export.status) for export in deployment.exports()] == [(row.id, "failed")]


def test_the_ui_shows_figures_columns_rows_and_a_picture(deployment: Deployment) -> None:
    metadata = _metadata(deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]}))
    assert metadata["dagster/row_count"].value == 6
    assert "payload" in [column.name for column in metadata["dagster/column_schema"].value.columns]
    assert metadata["preview"].value.count("\n") == 7
    assert metadata["manifest"].value.endswith(f"/v1/exports/{metadata['export_id'].value}/manifest")
    assert metadata["picture"].value.startswith("![what the dataset holds](data:image/png;base64,iVBOR")


def test_recorded_contents_stay_out_of_the_run_log(deployment: Deployment) -> None:
    result = deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]})
    events = deployment.instance.all_logs(result.run_id)
    assert "shop.example" not in json.dumps([event.to_json() for event in events])


def test_the_files_are_checked_against_their_manifest(deployment: Deployment) -> None:
    result = deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]})
    files, lake = result.get_asset_check_evaluations()
    assert (files.check_name, files.passed, files.metadata["rows"].value) == ("files_match_manifest", True, 6)
    assert (lake.check_name, lake.passed, lake.metadata["rows"].value) == (
        "rows_match_lake",
        True,
        {"checkout": 6},
    )
    assert str(lake.metadata["hashed"].value).startswith(
        "8 rows of 2 sessions, in 2 of 2 files, drawn with the seed"
    )


def test_a_spoiled_file_fails_the_check(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()
    deployment.run(request)
    folder = Path(deployment.runtime.settings.export_url) / deployment.workspace_id / row.id
    next(folder.rglob("*.parquet")).write_bytes(b"spoiled")
    files, lake = deployment.run(request).get_asset_check_evaluations()
    assert (files.passed, lake.passed) == (False, False)
    assert "another SHA-256" in str(files.metadata["problems"].value)
    assert "cannot be read" in str(lake.metadata["problems"].value)
    (folder / "manifest.json").write_bytes(b"{}")
    with deployment.runtime.database.transaction(write=False) as db:
        again = db.get_one(ExportRow, row.id)
    for check in (check_files(again, deployment.runtime.settings), check_lake(deployment.runtime, again)):
        assert (check.passed, ANOTHER_MANIFEST in str(check.metadata["problems"].value)) == (False, True)


def test_what_a_client_wrote_is_no_link_in_the_preview() -> None:
    assert _markdown(pl.DataFrame({"payload": ["[a](http://b) <img>|"]})).splitlines()[2] == (
        "| \\[a\\](http\\://b) \\<img\\>\\| |"
    )


def test_equal_rows_have_an_equal_data_version(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"]}
    versions = set()
    for _ in range(2):
        (event,) = deployment.materialize("checkout", config).asset_materializations_for_node("datasets")
        versions.add((event.tags or {})["dagster/data_version"])
    assert len(versions) == 1


def test_an_export_that_somebody_works_on_gets_no_run(deployment: Deployment) -> None:
    row = deployment.queue()
    with deployment.runtime.database.transaction(write=True) as db:
        claim_export(deployment.runtime.database, db, row.id, owner="somebody")
    assert deployment.tick() == []


def test_a_run_that_just_ended_is_not_repeated_at_once(deployment: Deployment) -> None:
    row = deployment.queue()
    deployment.add_run(row, dg.DagsterRunStatus.FAILURE)
    assert deployment.tick() == []


def test_a_run_that_lost_its_process_is_marked_and_followed(
    deployment: Deployment,
) -> None:
    row = deployment.queue()
    deployment.add_run(row, dg.DagsterRunStatus.STARTED)
    deployment.recorder = RecorderResource(data_dir=deployment.recorder.data_dir, export_pause_s=-1)
    assert len(deployment.tick()) == 1
    (record,) = deployment.instance.get_run_records(dg.RunsFilter(tags={EXPORT_TAG: row.id}))
    assert record.dagster_run.status == dg.DagsterRunStatus.FAILURE


def test_a_cancelled_run_cancels_its_export(deployment: Deployment) -> None:
    row = deployment.queue()
    deployment.add_run(row, dg.DagsterRunStatus.CANCELED)
    deployment.tick()
    (export,) = deployment.exports()
    assert (export.status, (export.error or {})["code"]) == ("failed", "cancelled")


def test_files_of_a_cancelled_run_are_taken_away_by_a_run_and_not_in_the_tick(deployment: Deployment) -> None:
    row = deployment.queue()

    class Killed(BaseException):
        pass

    def _die(text: str) -> None:
        if text.startswith("1 of"):
            raise Killed

    with pytest.raises(Killed):
        run_export(
            deployment.runtime, row.id, owner="killed", executor=ToldProgress(InProcess(), _die, every_s=0)
        )
    deployment.add_run(row, dg.DagsterRunStatus.CANCELED)
    deployment.recorder = RecorderResource(data_dir=deployment.recorder.data_dir, export_pause_s=-1)
    folder = Path(deployment.runtime.settings.export_url) / deployment.workspace_id / row.id
    assert deployment.tick() == []
    assert deployment.exports()[0].status == "failed" and list(folder.rglob("*.parquet"))
    (request,) = deployment.tick()
    config = request.run_config["ops"]["datasets"]["config"]
    assert not deployment.materialize(str(request.partition_key), config, raise_on_error=False).success
    assert not list(folder.rglob("*.parquet"))
    assert deployment.tick() == []


def test_an_export_in_its_pause_takes_no_place_of_a_tick(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.exports._EXPORTS_PER_TICK", 1)
    waiting, next_one = deployment.queue(), deployment.queue()
    deployment.add_run(waiting, dg.DagsterRunStatus.FAILURE)
    assert [request.tags[EXPORT_TAG] for request in deployment.tick()] == [next_one.id]


@pytest.mark.parametrize("format", ["parquet", "webdataset", "jsonl", "arrow"])
def test_a_dataset_of_each_format_shows_its_columns_and_files(deployment: Deployment, format: str) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"], "format": format}
    result = deployment.materialize("checkout", config)
    metadata, kinds = _metadata(result), {"samples"} if format == "webdataset" else {"events", "frames"}
    assert [check.passed for check in result.get_asset_check_evaluations()] == [True, True]
    assert {record.data["kind"] for record in metadata["files"].value.records} == kinds
    assert ("columns_of_frames" in metadata) == (format != "webdataset")
    assert metadata["format"].value == format
    assert metadata["preview"].value.count("\n") >= 2


def test_files_that_were_taken_over_are_shown(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"]}
    before = _metadata(deployment.materialize("checkout", config))
    metadata = _metadata(deployment.materialize("checkout", config))
    assert (metadata["shards"].value, metadata["shards_reused"].value) == (2, 2)
    assert metadata["parent"].value["export_id"] == before["export_id"].value
    assert {record.data["reused_from"] for record in metadata["files"].value.records} == {
        before["export_id"].value
    }


def test_the_run_log_says_how_far_it_is(deployment: Deployment) -> None:
    result = deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]})
    said = [record.user_message for record in deployment.instance.all_logs(result.run_id)]
    assert "2 shards to write" in said
    assert any(text.startswith("2 of 2 shards written: 8 rows, ") for text in said)


def test_a_run_that_carries_on_says_so_and_writes_only_what_is_left(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()

    class Killed(BaseException):
        pass

    def _die(text: str) -> None:
        if text.startswith("1 of"):
            raise Killed

    told = ToldProgress(InProcess(), _die, every_s=0)
    with pytest.raises(Killed):
        run_export(deployment.runtime, row.id, owner="killed", executor=told)
    said = [record.user_message for record in deployment.instance.all_logs(deployment.run(request).run_id)]
    assert "Carried on, attempt 2: 1 of 2 shards are there" in said
    assert "1 shards to write" in said
    assert deployment.exports()[0].status == "completed"


def test_the_run_of_a_cancelled_export_ends_and_says_so(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()
    cancel_export(deployment.runtime, row.id, owner="somebody")
    assert request.partition_key is not None
    result = deployment.materialize(
        request.partition_key, request.run_config["ops"]["datasets"]["config"], raise_on_error=False
    )
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    assert "The export was cancelled" in str(failure.event_specific_data)
    assert result.asset_materializations_for_node("datasets") == []


def test_a_recipe_is_a_partition_and_its_tick_becomes_a_run(deployment: Deployment) -> None:
    body = read_request({**_BODY, "tag": "nightly", "format": "jsonl"})
    add_recipe(
        deployment.runtime,
        deployment.workspace_id,
        "live",
        body,
        cron="0 6 * * *",
        timezone="UTC",
        origin=Origin.operator(deployment.workspace_id),
    )
    assert deployment.follow_recipes() == "No recipe is due."
    assert deployment.instance.get_dynamic_partitions(PARTITIONS.name) == ["nightly"]
    assert deployment.tick() == []
    with deployment.runtime.database.transaction(write=True) as db:
        db.get_one(RecipeRow, (deployment.workspace_id, "live", "nightly")).next_at -= timedelta(days=1)
    assert deployment.follow_recipes() == "1 exports made, 0 recipes failed."
    assert deployment.follow_recipes() == "No recipe is due."
    (request,) = deployment.tick()
    assert request.partition_key == "nightly"
    deployment.run(request)
    assert [(row.status, row.format, row.dataset) for row in deployment.exports()] == [
        ("completed", "jsonl", "nightly")
    ]
