"""The `datasets` asset: exports from the launchpad, what the UI shows, checks. Spec §4.3."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from pipelines.dataset_checks import dataset_checks
from pipelines.dataset_metadata import format_markdown_table
from pipelines.dataset_partitions import PARTITIONS
from pipelines.exports import _describe_datasets_workspaces, datasets, export_datasets
from pipelines.resources import RecorderResource
from recorder.access.workspaces import create_workspace
from tests.support.dagster_deployment import Deployment
from tests.support.statements import before_each_statement


def _metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node("datasets")
    return dict(event.metadata)


def test_the_description_names_workspaces_once_there_are_some(
    recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDER_DATA_DIR", str(recorder.data_dir))
    assert _describe_datasets_workspaces() == "`recorder workspaces list` shows the workspaces."
    with recorder.runtime.database.transaction(write=True) as db:
        create_workspace(db, "first_one", region="us", secret=recorder.runtime.settings.secret)
    assert _describe_datasets_workspaces().endswith(r": first\_one.")


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


def test_a_run_without_a_partition_says_what_to_choose(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"]}
    result = dg.materialize(
        [datasets],
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
        run_config={"ops": {"datasets": {"config": config}}},
        raise_on_error=False,
    )
    failure = result.failure_data_for_node("datasets")
    assert failure is not None and failure.user_failure_data is not None
    assert str(failure.user_failure_data.description).startswith("The run names no partition. Choose one")
    assert deployment.exports() == []


def test_the_ui_shows_figures_columns_rows_and_a_picture(deployment: Deployment) -> None:
    metadata = _metadata(deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]}))
    assert metadata["dagster/row_count"].value == 6
    assert "payload" in [column.name for column in metadata["dagster/column_schema"].value.columns]
    assert metadata["preview"].value.count("\n") == 7
    address = f"/v1/exports/{metadata['export_id'].value}/manifest"
    assert next(iter(metadata)) == "how_to_load"
    assert f'{address}", key=' in metadata["how_to_load"].value
    assert not [value for value in metadata.values() if isinstance(value, dg.UrlMetadataValue)]
    assert metadata["size"].value.endswith((" bytes", " kB"))
    assert metadata["preview"].value.startswith("| workflow | t_ms | type |")
    assert metadata["picture"].value.startswith("![what the dataset holds](data:image/png;base64,iVBOR")


@pytest.fixture
def export_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of local exports; requested before the deployment."""
    monkeypatch.setenv("RECORDER_LOCAL_EXPORT_ROOT", str(tmp_path / "local"))
    return tmp_path / "local"


def test_a_local_dataset_is_opened_by_its_folder(export_root: Path, deployment: Deployment) -> None:
    config = {
        "workspace": "acme",
        "workflow": ["checkout"],
        "destination": {"kind": "local", "path": "out"},
    }
    metadata = _metadata(deployment.materialize("checkout", config))
    code = metadata["how_to_load"].value.removeprefix("```python\n").removesuffix("```")
    assert str(export_root) in code
    opened: dict[str, Any] = {}
    exec(code, opened)
    assert opened["dataset"].rows == metadata["dagster/row_count"].value


def test_recorded_contents_stay_out_of_the_run_log(deployment: Deployment) -> None:
    result = deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]})
    events = deployment.instance.all_logs(result.run_id)
    assert "shop.example" not in json.dumps([event.to_json() for event in events])


def test_what_a_client_wrote_is_no_link_in_the_preview() -> None:
    assert format_markdown_table(pl.DataFrame({"payload": ["[a](http://b) <img>|"]})).splitlines()[2] == (
        "| \\[a\\](http\\://b) \\<img\\>\\| |"
    )


def test_a_run_for_an_unregistered_partition_registers_it(deployment: Deployment) -> None:
    instance = deployment.instance
    job = dg.Definitions(
        assets=[datasets],
        asset_checks=[dataset_checks],
        jobs=[export_datasets],
        resources={"recorder": deployment.recorder},
    ).resolve_job_def(export_datasets.name)
    config = {"workspace": "acme", "workflow": ["checkout"]}
    # As the launchpad does it: the tag alone names the partition.
    job.execute_in_process(
        instance=instance,
        run_config={"ops": {"datasets": {"config": config}}},
        tags={"dagster/partition": "unheard of"},
    )
    assert instance.get_dynamic_partitions(PARTITIONS.name) == ["unheard of"]
    assert instance.get_materialized_partitions(dg.AssetKey("datasets")) == {"unheard of"}


def test_equal_rows_have_an_equal_data_version(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"]}
    versions = set()
    for _ in range(2):
        (event,) = deployment.materialize("checkout", config).asset_materializations_for_node("datasets")
        versions.add((event.tags or {})["dagster/data_version"])
    assert len(versions) == 1


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


def test_the_workspace_may_be_left_out_where_there_is_one(deployment: Deployment) -> None:
    assert deployment.materialize("checkout", {"workflow": "checkout"}).success
    with deployment.runtime.database.transaction(write=True) as db:
        secret = deployment.runtime.settings.secret
        create_workspace(db, "second", region="us", secret=secret, tier="unlimited")
    result = deployment.materialize("checkout", {"workflow": "checkout"}, raise_on_error=False)
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    assert "acme, second" in str(failure.event_specific_data)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"workflow": ["chekout"]}, "no such workflow"),
        ({"workflow": "checkout", "filter": {"since": "lastweek"}}, "filter/since"),
        ({"workflow": "checkout", "workspace": "acmee"}, "No workspace has this name or id"),
    ],
    ids=["workflow", "time", "workspace"],
)
def test_a_wrong_value_of_the_form_is_said_in_a_sentence(
    deployment: Deployment, config: dict[str, Any], sentence: str
) -> None:
    result = deployment.materialize("checkout", config, raise_on_error=False)
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    shown = failure.step_failure_data.user_failure_data
    assert shown is not None and shown.description is not None
    assert "nothing was exported" in shown.description and sentence in shown.description


@pytest.mark.parametrize(
    ("partition", "changes", "named"),
    [
        ("checkout", {"workflow": ["checkout"]}, "the partition, which is 'login', `workflow`"),
        ("login", {"format": "jsonl"}, "`format`"),
        ("login", {"filter": {"outcome": "success"}}, "`filter`"),
        ("login", {"workspace": "other"}, "`workspace`"),
        ("login", {"mode": "test"}, "`mode`"),
        ("login", {"export_id": "exp_unknown"}, "no export exp_unknown exists"),
        ("login", {"workspace": "nowhere"}, "No workspace has this name or id"),
    ],
    ids=["dataset", "format", "filter", "workspace", "mode", "export", "unknown workspace"],
)
def test_the_id_of_an_export_that_is_configured_otherwise_is_refused(
    deployment: Deployment, partition: str, changes: dict[str, Any], named: str
) -> None:
    with deployment.runtime.database.transaction(write=True) as db:
        create_workspace(db, "other", region="us", secret=deployment.runtime.settings.secret)
    row = deployment.queue(workflow="login")
    (request,) = deployment.tick()
    config = request.run_config["ops"]["datasets"]["config"] | changes
    result = deployment.materialize(partition, config, raise_on_error=False)
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    shown = failure.step_failure_data.user_failure_data
    assert shown is not None and named in str(shown.description)
    assert [(export.id, export.status) for export in deployment.exports()] == [(row.id, "queued")]


def test_the_id_of_an_export_needs_no_member_but_the_workflow(deployment: Deployment) -> None:
    row = deployment.queue(format="jsonl", workflow=["login", "checkout"])
    config = {"workspace": "acme", "workflow": ["login", "checkout"], "export_id": row.id}
    deployment.materialize("checkout+login", config)
    assert [(export.id, export.status) for export in deployment.exports()] == [(row.id, "completed")]


def test_a_completed_export_is_a_version_although_its_store_fails_then(deployment: Deployment) -> None:
    def lose_files(statement: str) -> None:
        # The event of a completed export is stored after its last file is written.
        if "outbox" in statement and folder.joinpath("manifest.json").exists():
            shutil.rmtree(folder)

    row = deployment.queue()
    folder = Path(deployment.runtime.settings.export_url) / deployment.workspace_id / row.id
    (request,) = deployment.tick()
    with before_each_statement(lose_files):
        result = deployment.run(request)
    assert result.success and not folder.exists()
    assert deployment.exports()[0].status == "completed"
    metadata = _metadata(result)
    assert (metadata["export_id"].value, metadata["dagster/row_count"].value) == (row.id, 6)
    assert [check.passed for check in result.get_asset_check_evaluations()] == [False, False]
