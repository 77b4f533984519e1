"""Exports in Dagster: the `datasets` asset, its job, and the sensor that takes up queued ones. Spec §4.3.

A partition is a dataset, named by the export's tag or its workflows (`dataset_name` in
recorder/exports/requests/validation.py); an export is a version of it. The exports table is the queue:
posting an export fills it. One run stays and writes small exports (pipelines/small_export_run.py); the sensor
keeps that run, and starts a run for each other export. A run writes the row's status under a lease.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

import dagster as dg

from pipelines.dataset_checks import EXPORT_TAG, dataset_checks
from pipelines.dataset_config import DatasetConfig, from_row, to_body
from pipelines.dataset_report import ToldProgress, describe
from pipelines.resources import RecorderResource
from pipelines.runs import LANE_TAG, fail_lost, instance_of, is_coming_up, pause_after_failures
from pipelines.small_export_run import write_small_exports
from recorder import clock
from recorder.access.workspaces import find_workspace
from recorder.exports.executor import open_executor
from recorder.exports.runner.finalize import cancel_export, queue_export
from recorder.exports.runner.lease import due_exports
from recorder.exports.runner.run import run_export
from recorder.exports.runner.small_exports import give_own_run, is_first_try, list_writers, place_owner
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant

DATASET_TAG = "recorder/dataset"
#: Id of the request that asked for the export: finds its run, and the request's line in the API's log.
REQUEST_TAG = "recorder/request_id"
PARTITIONS = dg.DynamicPartitionsDefinition(name="datasets")

_GROUP = "datasets"
_EXPORTS_PER_TICK = 20
# Those in a pause take no place of a tick: so many are looked at, and so many of one workspace.
_LOOKED_AT = 100
_LOOKED_AT_OF_ONE = 20
# A run that ended without finishing its export is followed after a pause that doubles: an error that stays
# must not fill the run list. The first (`export_pause_s` of the resource) also covers the seconds until a
# fresh run holds its lease.
_LONGEST_PAUSE_S = 300
_TO_START_S = 60


@dg.asset(
    partitions_def=PARTITIONS,
    group_name=_GROUP,
    # Three are the most that Dagster takes; JSONL is the fourth.
    kinds={"parquet", "arrow", "webdataset"},
    deps=["sealed_sessions", "session_events", "session_frames"],
    description=(
        "One dataset per partition, and in it one version per export: a row per event and per sampled frame "
        "of sealed sessions (WebDataset: per frame with its events), as files with a manifest. Materialize "
        "it here with the fields of `POST /v1/exports`, post there, or let a recipe do it."
    ),
)
def datasets(
    context: dg.AssetExecutionContext, config: DatasetConfig, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Run a queued export, or make one from the launchpad's fields and run it."""
    runtime = recorder.runtime
    # A run that was not started from the list of partitions may name a new one.
    context.instance.add_dynamic_partitions(str(PARTITIONS.name), [context.partition_key])
    export_id = config.export_id or _queue(runtime, config, context.partition_key, context.run.run_id)
    context.log.info(f"Export {export_id}, request {context.run.tags.get(REQUEST_TAG, 'none')}")
    _say_where_it_stands(context, runtime, export_id)
    row = run_export(
        runtime,
        export_id,
        owner=context.run.run_id,
        executor=ToldProgress(open_executor(runtime.settings.export_executor), context.log.info),
        lease_ms=round(recorder.export_lease_s * 1000),
    )
    if row.status == "failed":
        raise _ended_badly(row)
    return dg.MaterializeResult(
        metadata=describe(row, runtime.settings),
        data_version=dg.DataVersion(row.row_set_sha256 or ""),
    )


def _say_where_it_stands(context: dg.AssetExecutionContext, runtime: Runtime, export_id: str) -> None:
    """Say what runs before have done: those shards are not written again."""
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, export_id)
    if row is not None and row.attempt and row.status == "running":
        context.log.info(
            f"Carried on, attempt {row.attempt + 1}: {row.shards_done} of {row.shards_total} shards are there"
        )


def _ended_badly(row: ExportRow) -> dg.Failure:
    """What the run says of an export that was called off, or that failed."""
    error = row.error or {"code": "internal_error", "message": "The run's log tells more."}
    words = "was cancelled" if error["code"] == "cancelled" else f"failed ({error['code']})"
    return dg.Failure(
        f"The export {words}: {error['message']}",
        metadata={"export_id": row.id, "error_code": error["code"]},
        allow_retries=False,
    )


def _queue(runtime: Runtime, config: DatasetConfig, partition: str, run_id: str) -> str:
    body = to_body(config, partition=partition)
    with runtime.database.transaction(write=False) as db:
        workspace_id = find_workspace(db, config.workspace).id
    return queue_export(runtime, Tenant(workspace_id, config.mode.value), body, owner=run_id)


export_datasets = dg.define_asset_job(
    "export_datasets",
    selection=dg.AssetSelection.assets(datasets),
    description="Writes the dataset of one export.",
    executor_def=dg.in_process_executor,
    tags={LANE_TAG: _GROUP},
)


@dg.sensor(
    jobs=[export_datasets, write_small_exports],
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def queued_exports(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Keep the run that writes small exports, and start a run for each other export."""
    return take_up_exports(lambda: instance_of(context), RecorderResource())


def take_up_exports(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.SensorResult | dg.SkipReason:
    """Return a request for each run that exports need now; Dagster's instance is opened only for those."""
    with recorder.runtime.database.transaction(write=False) as db:
        writer, writers = place_owner(db), list_writers(db)
        # Small exports that nobody tried are due for a run of their own only where none writes them.
        due = due_exports(db, limit=_LOOKED_AT, per_workspace=_LOOKED_AT_OF_ONE, first_tries=not writers)
    if writer is not None and not due:
        return dg.SkipReason("No export waits for a run of its own.")
    instance = open_instance()
    requests = [] if writer is not None else _requests_of_writer(instance, writers)
    for row in due:
        if is_first_try(row) and not _is_left_alone(recorder, row):
            continue
        runs = instance.get_run_records(dg.RunsFilter(tags={EXPORT_TAG: row.id}))
        is_cancelled = bool(runs) and runs[0].dagster_run.status == dg.DagsterRunStatus.CANCELED
        if is_cancelled and row.status in ("queued", "running"):
            cancel_export(recorder.runtime, row.id, owner=runs[0].dagster_run.run_id)
        elif _is_time(runs, first_pause_s=recorder.export_pause_s):
            # Else a run lost with its machine would hold a place in the queue's limits for good.
            fail_lost(instance, runs)
            requests.append(_request(row, attempt=len(runs)))
            if len(requests) == _EXPORTS_PER_TICK:
                break
    if not requests:
        return dg.SkipReason(f"{len(due)} exports wait for their next run." if due else "No export waits.")
    names = {request.partition_key for request in requests if request.partition_key}
    new = sorted(names - set(instance.get_dynamic_partitions(str(PARTITIONS.name)))) if names else []
    return dg.SensorResult(
        requests, dynamic_partitions_requests=[PARTITIONS.build_add_request(new)] if new else []
    )


def _requests_of_writer(instance: dg.DagsterInstance, at_work: list[str]) -> list[dg.RunRequest]:
    """Return the request for the run that writes small exports, unless one is coming up or runs fail."""
    job = write_small_exports.name
    if is_coming_up(instance, job, at_work=at_work) or pause_after_failures(instance, job):
        return []
    return [dg.RunRequest(job_name=job)]


def _is_left_alone(recorder: RecorderResource, row: ExportRow) -> bool:
    """Mark an export for a run of its own if no process came to write small ones in time."""
    if clock.now() - row.created_at <= timedelta(seconds=recorder.small_export_patience_s):
        return False
    with recorder.runtime.database.transaction(write=True) as db:
        return give_own_run(db, row.id)


def _is_time(runs: Sequence[dg.RunRecord], *, first_pause_s: float) -> bool:
    """Whether an export may get another run: none waits, and the last one's pause is over."""
    if not runs:
        return True
    if runs[0].dagster_run.status in (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED):
        return False
    if runs[0].dagster_run.status == dg.DagsterRunStatus.STARTING:
        # Its process is coming up; on a busy machine that takes longer than a pause.
        first_pause_s = max(first_pause_s, _TO_START_S)
    pause = min(_LONGEST_PAUSE_S, first_pause_s * 2.0 ** min(len(runs) - 1, 10))
    return clock.now() - runs[0].update_timestamp > timedelta(seconds=pause)


def _request(row: ExportRow, *, attempt: int) -> dg.RunRequest:
    tags = {EXPORT_TAG: row.id, DATASET_TAG: row.dataset}
    if row.request_id is not None:
        tags[REQUEST_TAG] = row.request_id
    return dg.RunRequest(
        job_name=export_datasets.name,
        run_key=f"{row.id}:{attempt}",
        partition_key=row.dataset,
        run_config=dg.RunConfig(ops={"datasets": from_row(row)}),
        tags=tags,
    )


assets = [datasets]
asset_checks = [dataset_checks]
jobs = [export_datasets, write_small_exports]
sensors = [queued_exports]
schedules: list[dg.ScheduleDefinition] = []
