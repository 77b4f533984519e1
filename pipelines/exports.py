"""Exports in Dagster: the `datasets` asset, its job, and due exports of recipes.

Spec §4.3.

A partition is a dataset, named by the export's tag or its workflows (`make_dataset_name` in
recorder/exports/requests/validation.py); an export is a version of it. The exports table is the queue:
posting an export fills it. The sensor of pipelines/export_queue.py starts the runs; one of them stays and
writes small exports (pipelines/small_export_run.py). A run writes the row's status under a lease.
"""

import hashlib
import logging
import os
import textwrap
from collections.abc import Callable
from contextlib import closing

import dagster as dg

from pipelines.configured_export import WORKSPACES_SHOWN, find_or_queue_export
from pipelines.dagster_runs import dagster_instance_of
from pipelines.dataset_checks import dataset_checks
from pipelines.dataset_config import CONFIG_SCHEMA, EXAMPLE
from pipelines.dataset_metadata import LoggedProgress, describe_completed_export
from pipelines.dataset_partitions import (
    PARTITIONS,
    register_dataset_partition,
    request_dataset_partitions,
)
from pipelines.export_slots import EXPORT_POOL
from pipelines.resources import RecorderResource
from pipelines.small_export_run import write_small_exports
from recorder.access.workspaces import list_workspaces
from recorder.errors import RecorderError
from recorder.exports.card import escape_markdown_text
from recorder.exports.executor import open_executor
from recorder.exports.requests.recipe_ticks import queue_due_recipe_ticks
from recorder.exports.requests.recipes import list_recipe_datasets
from recorder.exports.runner.run import run_export
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.settings import Settings

log = logging.getLogger("recorder.exports")

#: Id of the request that asked for the export: finds its run, and the request's line in the API's log.
REQUEST_TAG = "recorder/request_id"

_GROUP = "datasets"


def _describe_datasets_asset() -> str:
    """Describe the asset: its rows, a filled example of the configuration, and the workspaces."""
    return (
        "One dataset per partition, and in it one version per export: a row per event and per sampled frame "
        "of sealed sessions (WebDataset: per frame with its events), as files with a manifest. Materialize "
        "it here with the members of `POST /v1/exports`, post there, or use a recipe.\n\n"
        "Example of the configuration, in which only `workflow` is required, and `workspace` where there "
        "are several:\n\n"
        f"```yaml\nops:\n  datasets:\n    config:\n{textwrap.indent(EXAMPLE, ' ' * 6)}```\n\n"
        f"{_describe_datasets_workspaces()}"
    )


def _describe_datasets_workspaces() -> str:
    """List the workspaces of the deployment that the environment names; read when the code is loaded."""
    # Without these, settings would create a data folder where the code is loaded.
    if not os.environ.keys() & {"RECORDER_DATA_DIR", "RECORDER_DATABASE_URL"}:  # noqa: TID251
        return "No workspace could be read when the code was loaded."
    try:
        with (
            closing(Runtime.open(Settings.from_env(), create=False)) as runtime,
            runtime.database.transaction(write=False) as db,
        ):
            names = [escape_markdown_text(workspace.name) for workspace in list_workspaces(db)]
    except RecorderError:  # the asset must load without its database
        return "No workspace could be read when the code was loaded."
    if not names:
        return "`recorder workspaces list` shows the workspaces."
    shown = ", ".join(names[:WORKSPACES_SHOWN])
    more = f" and {len(names) - WORKSPACES_SHOWN} more" if len(names) > WORKSPACES_SHOWN else ""
    return f"Workspaces when the code was loaded (reload it to read them again): {shown}{more}."


@dg.asset(
    partitions_def=PARTITIONS,
    group_name=_GROUP,
    # Three are the most that Dagster takes; JSONL is the fourth.
    kinds={"parquet", "arrow", "webdataset"},
    deps=["sealed_sessions", "session_events", "session_frames"],
    config_schema=CONFIG_SCHEMA,
    pool=EXPORT_POOL,
    description=_describe_datasets_asset(),
)
def datasets(context: dg.AssetExecutionContext, recorder: RecorderResource) -> dg.MaterializeResult[None]:
    """Run a queued export, or create one from the run configuration and run it."""
    runtime = recorder.runtime
    export_id = find_or_queue_export(context, runtime)
    # A run that was not started from the list of partitions may name a new one; its open export keeps it.
    register_dataset_partition(context.instance, context.partition_key)
    context.log.info(f"Export {export_id}, request {context.run.tags.get(REQUEST_TAG, 'none')}")
    _log_completed_shards(context, runtime, export_id)
    row = run_export(
        runtime,
        export_id,
        owner=context.run.run_id,
        executor=LoggedProgress(open_executor(runtime.settings.export_executor), context.log.info),
        lease_ms=round(recorder.export_lease_s * 1000),
    )
    if row.status == "failed":
        raise _build_export_failure(row)
    if row.expired_at is not None:
        raise dg.Failure(
            f"The files of the export {row.id} were deleted after their 30 days. Materialize the dataset "
            "without `export_id` to make a new version.",
            metadata={"export_id": row.id},
            allow_retries=False,
        )
    return dg.MaterializeResult(
        metadata=describe_completed_export(row, runtime.settings),
        data_version=dg.DataVersion(row.row_set_sha256 or ""),
    )


def _log_completed_shards(context: dg.AssetExecutionContext, runtime: Runtime, export_id: str) -> None:
    """Log the shards that earlier runs completed: they are not written again."""
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, export_id)
    if row is not None and row.attempt and row.status == "running":
        context.log.info(
            f"Carried on, attempt {row.attempt + 1}: {row.shards_done} of {row.shards_total} shards are there"
        )


def _build_export_failure(row: ExportRow) -> dg.Failure:
    """Build the failure of a run whose export was cancelled or failed."""
    error = row.error or {"code": "internal_error", "message": "See the run's log for the cause."}
    words = "was cancelled" if error["code"] == "cancelled" else f"failed ({error['code']})"
    return dg.Failure(
        f"The export {words}: {error['message']}",
        metadata={"export_id": row.id, "error_code": error["code"]},
        allow_retries=False,
    )


export_datasets = dg.define_asset_job(
    "export_datasets",
    selection=dg.AssetSelection.assets(datasets),
    description="Writes the dataset of one export.",
    executor_def=dg.in_process_executor,
)


@dg.sensor(
    job=export_datasets,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Creates the exports of recipes that are due; starts no run.",
)
def scheduled_recipes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Make the exports of recipes that are due, and show each recipe's dataset among the partitions."""
    return make_due_recipe_exports(
        lambda: dagster_instance_of(context), RecorderResource(), context.log, context.cursor
    )


def make_due_recipe_exports(
    open_instance: Callable[[], dg.DagsterInstance],
    recorder: RecorderResource,
    log: logging.Logger,
    cursor: str | None = None,
) -> dg.SensorResult:
    """Make due exports; open Dagster's instance only for a dataset name that is not in the cursor yet."""
    ticks = list(queue_due_recipe_ticks(recorder.runtime))
    for tick in ticks:
        name = f"{tick.recipe.name} of {tick.recipe.workspace_id} {tick.recipe.mode}"
        if tick.recipe.last_error is not None:
            log.error(f"{name}: {tick.recipe.last_error['code']}, {tick.recipe.last_error['message']}")
        elif tick.export is not None:
            log.info(f"{name}: {tick.export.id}")
    with recorder.runtime.database.transaction(write=False) as db:
        names = list_recipe_datasets(db)
    # The cursor is a digest of the registered names: without a new name, no query to the instance.
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
    is_known = not names or digest == cursor
    made = sum(tick.recipe.last_error is None for tick in ticks)
    return dg.SensorResult(
        skip_reason=f"{made} exports made, {len(ticks) - made} recipes failed."
        if ticks
        else "No recipe is due.",
        dynamic_partitions_requests=[] if is_known else request_dataset_partitions(open_instance(), names),
        cursor=digest,
    )


defs = dg.Definitions(
    assets=[datasets],
    asset_checks=[dataset_checks],
    jobs=[export_datasets, write_small_exports],
    sensors=[scheduled_recipes],
)
