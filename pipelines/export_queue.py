"""Sensor of queued exports: it keeps the run for small exports, and starts a run for each other export.

The exports table is the queue: posting an export fills it. Workspaces take turns; pipelines/export_slots.py
has the rules.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import dagster as dg

from pipelines.configured_export import DATASET_TAG
from pipelines.dagster_runs import (
    dagster_instance_of,
    fail_lost_dagster_run,
    request_dagster_run,
)
from pipelines.dataset_checks import EXPORT_TAG
from pipelines.dataset_config import make_dataset_config
from pipelines.dataset_partitions import request_dataset_partitions
from pipelines.export_slots import (
    PRIORITY_TAG,
    SPARE_PRIORITY,
    ChosenExport,
    choose_exports_to_start,
    read_export_slots,
)
from pipelines.exports import REQUEST_TAG, export_datasets
from pipelines.resources import RecorderResource
from pipelines.small_export_run import write_small_exports
from recorder import clock
from recorder.exports.runner.export_lease import ExportBusy, list_due_exports
from recorder.exports.runner.finalize import fail_export_of_cancelled_run
from recorder.exports.runner.replayability_wait import recount_awaited_replayability
from recorder.exports.runner.small_exports import (
    awaits_small_export_writer,
    find_small_export_writer,
    give_small_export_own_run,
    list_small_export_writers,
)
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.retries import compute_doubling_pause

log = logging.getLogger("recorder.exports")

# Those in a pause are passed over: so many are read in a tick, and so many of one workspace.
_LOOKED_AT = 100
_LOOKED_AT_OF_ONE = 20
# A run that ended without finishing its export is followed after a pause that doubles: an error that stays
# must not fill the run list. The first (`export_pause_s` of the resource) also covers the seconds until a
# fresh run holds its lease.
_LONGEST_PAUSE_S = 300
_TO_START_S = 60
# Dagster starts no second run with a key.
_RUN_KEY_TAG = "dagster/run_key"


@dg.sensor(
    jobs=[export_datasets, write_small_exports],
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Keeps the run that writes small exports, and starts one for each large export. "
        "Switched off, exports stay queued."
    ),
)
def queued_exports(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Keep the run that writes small exports, and start a run for each other export."""
    return take_up_exports(lambda: dagster_instance_of(context), RecorderResource())


def take_up_exports(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.SensorResult | dg.SkipReason:
    """Return requests for the runs that exports may have now; open Dagster's instance only for those."""
    result = _request_due_export_runs(open_instance, recorder)
    # After the exports that are due: a count may take long, and its error must not hold them up.
    try:
        recount_awaited_replayability(recorder.runtime.database)
    except Exception:
        log.exception("exports that wait for replayability could not be counted again")
    return result


def _request_due_export_runs(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.SensorResult | dg.SkipReason:
    """Return requests for the run of small exports and for runs of due exports."""
    with recorder.runtime.database.transaction(write=False) as db:
        writer, writers = find_small_export_writer(db), list_small_export_writers(db)
        # Small exports that no run tried are due for a run of their own only where none writes them.
        due = list_due_exports(db, limit=_LOOKED_AT, per_workspace=_LOOKED_AT_OF_ONE, first_tries=not writers)
    if writer is not None and not due:
        return dg.SkipReason("No export waits for a run of its own.")
    instance = open_instance()
    writer_requests = [] if writer is not None else _request_export_writer_run(instance, writers)
    requests = [*writer_requests, *(_request_export_runs(instance, recorder, due) if due else [])]
    if not requests:
        return dg.SkipReason(f"{len(due)} exports wait for their next run." if due else "No export waits.")
    names = {request.partition_key for request in requests if request.partition_key}
    return dg.SensorResult(requests, dynamic_partitions_requests=request_dataset_partitions(instance, names))


def _request_export_runs(
    instance: dg.DagsterInstance, recorder: RecorderResource, due: Sequence[ExportRow]
) -> list[dg.RunRequest]:
    """Return requests for the next runs of due exports, as far as their workspaces may have more runs."""
    runs = _read_runs_of_exports(instance, due)
    ready = [row for row in due if _is_ready_for_run(recorder, row, runs[row.id])]
    slots = read_export_slots(instance, recorder.runtime.database)
    requests = []
    for chosen in choose_exports_to_start(slots, ready, limit=recorder.exports_per_tick):
        row = chosen.row
        if awaits_small_export_writer(row) and not _give_own_run(recorder, row):
            continue
        # Run monitoring does not watch local processes: a lost run would hold a slot in the queue's limits.
        for record in runs[row.id]:
            fail_lost_dagster_run(instance, record)
        requests.append(_request_export_run(chosen, number=_number_next_run(runs[row.id])))
    return requests


def _read_runs_of_exports(
    instance: dg.DagsterInstance, rows: Sequence[ExportRow]
) -> Mapping[str, list[dg.RunRecord]]:
    """Read the runs of these exports in one query, the newest of each first."""
    runs: dict[str, list[dg.RunRecord]] = defaultdict(list)
    if rows:
        for record in instance.get_run_records(dg.RunsFilter(tags={EXPORT_TAG: [row.id for row in rows]})):
            runs[record.dagster_run.tags[EXPORT_TAG]].append(record)
    return runs


def _is_ready_for_run(recorder: RecorderResource, row: ExportRow, runs: Sequence[dg.RunRecord]) -> bool:
    """Return whether an export may get its next run; cancel it if its last run was cancelled."""
    is_cancelled = bool(runs) and runs[0].dagster_run.status == dg.DagsterRunStatus.CANCELED
    if is_cancelled and row.status in OPEN_STATUSES:
        # Another run may have claimed it since it was listed; that run brings it to its end.
        with suppress(ExportBusy):
            fail_export_of_cancelled_run(recorder.runtime, row.id, owner=runs[0].dagster_run.run_id)
        return False
    patience = timedelta(seconds=recorder.small_export_patience_s)
    # A time in the future, after the clock was set back, counts as long ago, here and below.
    if awaits_small_export_writer(row) and timedelta(0) <= clock.now() - row.created_at <= patience:
        return False
    return _may_start_next_export_run(runs, first_pause_s=recorder.export_pause_s)


def _request_export_writer_run(instance: dg.DagsterInstance, at_work: list[str]) -> list[dg.RunRequest]:
    """Return the request for the run that writes small exports, unless one is coming up or runs fail."""
    job = write_small_exports.name
    request = request_dagster_run(instance, job, at_work=at_work)
    return [] if isinstance(request, dg.SkipReason) else [dg.RunRequest(job_name=job)]


def _give_own_run(recorder: RecorderResource, row: ExportRow) -> bool:
    """Mark a small export for a run of its own; return False if another process has claimed it."""
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
    pause = compute_doubling_pause(len(runs) - 1, first=first_pause_s, longest=_LONGEST_PAUSE_S)
    since = clock.now() - runs[0].update_timestamp
    return not timedelta(0) <= since <= timedelta(seconds=pause)


def _number_next_run(runs: Sequence[dg.RunRecord]) -> int:
    """Return a number that no run has in its key, also if earlier runs were deleted in Dagster's pages."""
    keys = [record.dagster_run.tags.get(_RUN_KEY_TAG, "") for record in runs]
    numbers = [int(number) for key in keys if (number := key.rpartition(":")[2]).isdecimal()]
    return max([len(runs), *(number + 1 for number in numbers)])


def _request_export_run(chosen: ChosenExport, *, number: int) -> dg.RunRequest:
    row = chosen.row
    tags = {EXPORT_TAG: row.id, DATASET_TAG: row.dataset}
    if chosen.is_spare:
        tags[PRIORITY_TAG] = SPARE_PRIORITY
    if row.request_id is not None:
        tags[REQUEST_TAG] = row.request_id
    return dg.RunRequest(
        job_name=export_datasets.name,
        run_key=f"{row.id}:{number}",
        partition_key=row.dataset,
        run_config={"ops": {"datasets": {"config": make_dataset_config(row)}}},
        tags=tags,
    )


defs = dg.Definitions(sensors=[queued_exports])
