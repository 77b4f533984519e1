"""Exports in Dagster: the `datasets` asset, its job, the runs of queued exports, and due exports of recipes.

Spec §4.3.

A partition is a dataset, named by the export's tag or its workflows (`make_dataset_name` in
recorder/exports/requests/validation.py); an export is a version of it. The exports table is the queue:
posting an export fills it. One run stays and writes small exports (pipelines/small_export_run.py); the sensor
keeps that run, and starts a run for each other export. A run writes the row's status under a lease.
"""

import hashlib
import logging
import os
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from sqlmodel import Session as DbSession

from pipelines.dagster_runs import (
    QUEUE_TAG,
    compute_pause_after_failed_runs,
    dagster_instance_of,
    fail_lost_dagster_runs,
    is_dagster_run_coming_up,
)
from pipelines.dataset_checks import EXPORT_TAG, dataset_checks
from pipelines.dataset_config import CONFIG_SCHEMA, EXAMPLE, make_dataset_config, make_export_body
from pipelines.dataset_metadata import LoggedProgress, make_dataset_metadata
from pipelines.resources import RecorderResource
from pipelines.small_export_run import write_small_exports
from recorder import clock
from recorder.access.workspaces import find_workspace, list_workspaces
from recorder.errors import RecorderError
from recorder.exports.card import escape_markdown_text
from recorder.exports.executor import open_executor
from recorder.exports.requests.recipe_ticks import queue_due_recipe_ticks
from recorder.exports.requests.recipes import list_recipes
from recorder.exports.runner.export_lease import list_due_exports
from recorder.exports.runner.finalize import fail_export_of_cancelled_run, requeue_export
from recorder.exports.runner.replayability_wait import recount_awaited_replayability
from recorder.exports.runner.run import run_export
from recorder.exports.runner.small_exports import (
    awaits_small_export_writer,
    find_small_export_writer,
    give_small_export_own_run,
    list_small_export_writers,
)
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant

DATASET_TAG = "recorder/dataset"
#: Id of the request that asked for the export: finds its run, and the request's line in the API's log.
REQUEST_TAG = "recorder/request_id"
PARTITIONS = dg.DynamicPartitionsDefinition(name="datasets")

_GROUP = "datasets"
_WORKSPACES_SHOWN = 50
# Those in a pause take no place of a tick: so many are looked at, and so many of one workspace.
_LOOKED_AT = 100
_LOOKED_AT_OF_ONE = 20
# A run that ended without finishing its export is followed after a pause that doubles: an error that stays
# must not fill the run list. The first (`export_pause_s` of the resource) also covers the seconds until a
# fresh run holds its lease.
_LONGEST_PAUSE_S = 300
_TO_START_S = 60


def _describe_datasets_asset() -> str:
    """Describe the asset: its rows, a filled example of the configuration, and the workspaces."""
    return (
        "One dataset per partition, and in it one version per export: a row per event and per sampled frame "
        "of sealed sessions (WebDataset: per frame with its events), as files with a manifest. Materialize "
        "it here with the members of `POST /v1/exports`, post there, or use a recipe.\n\n"
        f"Example of the configuration, in which only `workflow` is required:\n\n"
        f"```yaml\nops:\n  datasets:\n    config:\n{textwrap.indent(EXAMPLE, ' ' * 6)}```\n\n"
        f"{_describe_datasets_workspaces()}"
    )


def _describe_datasets_workspaces() -> str:
    """List the workspaces of the deployment that the environment names; read when the code is loaded."""
    # Without these, settings would create a data folder where the code is loaded.
    if not os.environ.keys() & {"RECORDER_DATA_DIR", "RECORDER_DATABASE_URL"}:  # noqa: TID251
        return "No workspace could be read when the code was loaded."
    try:
        runtime = Runtime.open(Settings.from_env(), create=False)
    except RecorderError:  # the asset must load without its database
        return "No workspace could be read when the code was loaded."
    try:
        with runtime.database.transaction(write=False) as db:
            names = [escape_markdown_text(workspace.name) for workspace in list_workspaces(db)]
    finally:
        runtime.close()
    shown = ", ".join(names[:_WORKSPACES_SHOWN]) or "none yet"
    more = f" and {len(names) - _WORKSPACES_SHOWN} more" if len(names) > _WORKSPACES_SHOWN else ""
    return f"Workspaces when the code was loaded (reload it to read them again): {shown}{more}."


@dg.asset(
    partitions_def=PARTITIONS,
    group_name=_GROUP,
    # Three are the most that Dagster takes; JSONL is the fourth.
    kinds={"parquet", "arrow", "webdataset"},
    deps=["sealed_sessions", "session_events", "session_frames"],
    config_schema=CONFIG_SCHEMA,
    description=_describe_datasets_asset(),
)
def datasets(context: dg.AssetExecutionContext, recorder: RecorderResource) -> dg.MaterializeResult[None]:
    """Run a queued export, or create one from the run configuration and run it."""
    runtime, config = recorder.runtime, context.op_execution_context.op_config
    # A run that was not started from the list of partitions may name a new one.
    context.instance.add_dynamic_partitions(str(PARTITIONS.name), [context.partition_key])
    export_id = config.get("export_id") or _queue_configured_export(
        runtime, config, context.partition_key, context.run.run_id
    )
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
    return dg.MaterializeResult(
        metadata=make_dataset_metadata(row, runtime.settings),
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


def _queue_configured_export(runtime: Runtime, config: Mapping[str, Any], partition: str, run_id: str) -> str:
    """Create the export that a run configuration describes."""
    body = make_export_body(config, partition=partition)
    with runtime.database.transaction(write=False) as db:
        workspace_id = _find_workspace_of_dataset(db, config.get("workspace"))
    return requeue_export(runtime, Tenant(workspace_id, config["mode"]), body, owner=run_id)


def _find_workspace_of_dataset(db: DbSession, name_or_id: str | None) -> str:
    """Return the workspace of this name or id; without one, the only workspace of the deployment."""
    if name_or_id is not None:
        return find_workspace(db, name_or_id).id
    workspaces = list_workspaces(db)
    if len(workspaces) != 1:
        names = ", ".join(workspace.name for workspace in workspaces[:_WORKSPACES_SHOWN]) or "none"
        raise dg.Failure(f"Set `workspace` to one of the workspaces: {names}.", allow_retries=False)
    return workspaces[0].id


export_datasets = dg.define_asset_job(
    "export_datasets",
    selection=dg.AssetSelection.assets(datasets),
    description="Writes the dataset of one export.",
    executor_def=dg.in_process_executor,
    tags={QUEUE_TAG: _GROUP},
)


@dg.sensor(
    jobs=[export_datasets, write_small_exports],
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def queued_exports(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Keep the run that writes small exports, and start a run for each other export."""
    return take_up_exports(lambda: dagster_instance_of(context), RecorderResource())


def take_up_exports(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.SensorResult | dg.SkipReason:
    """Return a request for each run that exports need now; Dagster's instance is opened only for those."""
    recount_awaited_replayability(recorder.runtime.database)
    with recorder.runtime.database.transaction(write=False) as db:
        writer, writers = find_small_export_writer(db), list_small_export_writers(db)
        # Small exports that nobody tried are due for a run of their own only where none writes them.
        due = list_due_exports(db, limit=_LOOKED_AT, per_workspace=_LOOKED_AT_OF_ONE, first_tries=not writers)
    if writer is not None and not due:
        return dg.SkipReason("No export waits for a run of its own.")
    instance = open_instance()
    writer_requests = [] if writer is not None else _request_export_writer_run(instance, writers)
    requests: list[dg.RunRequest] = []
    runs_by_export = _read_runs_of_exports(instance, due)
    for row in due:
        if len(requests) == recorder.exports_per_tick:
            break
        if awaits_small_export_writer(row) and not _give_own_run_if_unclaimed(recorder, row):
            continue
        request = _request_next_export_run(instance, recorder, row, runs_by_export[row.id])
        requests += [] if request is None else [request]
    requests = [*writer_requests, *requests]
    if not requests:
        return dg.SkipReason(f"{len(due)} exports wait for their next run." if due else "No export waits.")
    names = {request.partition_key for request in requests if request.partition_key}
    return dg.SensorResult(requests, dynamic_partitions_requests=_request_dataset_partitions(instance, names))


def _read_runs_of_exports(
    instance: dg.DagsterInstance, rows: Sequence[ExportRow]
) -> Mapping[str, list[dg.RunRecord]]:
    """Read the runs of these exports in one query, the newest of each first."""
    runs: dict[str, list[dg.RunRecord]] = defaultdict(list)
    if rows:
        for record in instance.get_run_records(dg.RunsFilter(tags={EXPORT_TAG: [row.id for row in rows]})):
            runs[record.dagster_run.tags[EXPORT_TAG]].append(record)
    return runs


def _request_next_export_run(
    instance: dg.DagsterInstance, recorder: RecorderResource, row: ExportRow, runs: list[dg.RunRecord]
) -> dg.RunRequest | None:
    """Cancel an export whose run was cancelled; return a request for its next run if it may have one."""
    is_cancelled = bool(runs) and runs[0].dagster_run.status == dg.DagsterRunStatus.CANCELED
    if is_cancelled and row.status in ("queued", "running"):
        fail_export_of_cancelled_run(recorder.runtime, row.id, owner=runs[0].dagster_run.run_id)
        return None
    if not _may_start_next_export_run(runs, first_pause_s=recorder.export_pause_s):
        return None
    # Run monitoring does not watch local processes: a lost run would hold a place in the queue's limits.
    fail_lost_dagster_runs(instance, runs)
    return _request_export_run(row, attempt=len(runs))


def _request_dataset_partitions(
    instance: dg.DagsterInstance, names: Collection[str]
) -> list[dg.AddDynamicPartitionsRequest]:
    """Return the request that registers those of these datasets that are no partition yet."""
    new = sorted(set(names) - set(instance.get_dynamic_partitions(str(PARTITIONS.name)))) if names else []
    return [PARTITIONS.build_add_request(new)] if new else []


def _request_export_writer_run(instance: dg.DagsterInstance, at_work: list[str]) -> list[dg.RunRequest]:
    """Return the request for the run that writes small exports, unless one is coming up or runs fail."""
    job = write_small_exports.name
    if is_dagster_run_coming_up(instance, job, at_work=at_work) or compute_pause_after_failed_runs(
        instance, job
    ):
        return []
    return [dg.RunRequest(job_name=job)]


def _give_own_run_if_unclaimed(recorder: RecorderResource, row: ExportRow) -> bool:
    """Mark an export for a run of its own if no process claimed it in time."""
    if clock.now() - row.created_at <= timedelta(seconds=recorder.small_export_patience_s):
        return False
    with recorder.runtime.database.transaction(write=True) as db:
        return give_small_export_own_run(db, row.id)


def _may_start_next_export_run(runs: Sequence[dg.RunRecord], *, first_pause_s: float) -> bool:
    """Return whether an export may get another run: none waits, and the pause after the last one is over."""
    if not runs:
        return True
    if runs[0].dagster_run.status in (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED):
        return False
    if runs[0].dagster_run.status == dg.DagsterRunStatus.STARTING:
        # Its process is coming up; on a busy machine that takes longer than a pause.
        first_pause_s = max(first_pause_s, _TO_START_S)
    pause = min(_LONGEST_PAUSE_S, first_pause_s * 2.0 ** min(len(runs) - 1, 10))
    return clock.now() - runs[0].update_timestamp > timedelta(seconds=pause)


def _request_export_run(row: ExportRow, *, attempt: int) -> dg.RunRequest:
    tags = {EXPORT_TAG: row.id, DATASET_TAG: row.dataset}
    if row.request_id is not None:
        tags[REQUEST_TAG] = row.request_id
    return dg.RunRequest(
        job_name=export_datasets.name,
        run_key=f"{row.id}:{attempt}",
        partition_key=row.dataset,
        run_config={"ops": {"datasets": {"config": make_dataset_config(row)}}},
        tags=tags,
    )


@dg.sensor(job=export_datasets, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
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
        names = {recipe.dataset for recipe in list_recipes(db)}
    # The cursor is a digest of the registered names: without a new name, no query to the instance.
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
    is_known = not names or digest == cursor
    made = sum(tick.recipe.last_error is None for tick in ticks)
    return dg.SensorResult(
        skip_reason=f"{made} exports made, {len(ticks) - made} recipes failed."
        if ticks
        else "No recipe is due.",
        dynamic_partitions_requests=[] if is_known else _request_dataset_partitions(open_instance(), names),
        cursor=digest,
    )


defs = dg.Definitions(
    assets=[datasets],
    asset_checks=[dataset_checks],
    jobs=[export_datasets, write_small_exports],
    sensors=[queued_exports, scheduled_recipes],
)
