"""Daily job that removes partitions and Dagster's own records, and rewrites its databases. Contract §7."""

import logging
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from pipelines.dagster_record_removal import RecordRemovalReport, remove_records
from pipelines.dagster_table_rewrites import rewrite_dagster_databases
from pipelines.dataset_partitions import remove_ended_dataset_partitions
from pipelines.resources import RecorderResource
from recorder import clock, limits
from recorder.governance.requested_removals import read_last_removal
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseKeeper, lease_for_block

log = logging.getLogger("recorder.erasures")

LEASE = "dagster_records"
_LEASE_MS = 60_000
_BEAT_S = 15.0
#: The next day's run works on what is left.
_LONGEST_S = 1800.0
_LONGEST_FOR_PARTITIONS_S = 600.0
#: Erasures wait no longer within one run, which purges wait for.
_LONGEST_BEFORE_END_S = 300.0
#: Finished runs of the past may have times of the future, since the clock was set back.
_CLOCK_STEP = timedelta(days=366)


@dg.asset(
    group_name="retention",
    kinds={"sql"},
    description=(
        "Dagster's records that were removed, one row per run: runs past 30 days with their events and logs. "
        "The newest materialization of each asset and partition stays, with numbers alone. Datasets without "
        "a kept export lose their partition."
    ),
)
def dagster_records(
    context: dg.AssetExecutionContext, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Remove ended partitions, old records, and texts of runs from before the last erasure or hard delete."""
    # First: the records of a removed partition need not stay.
    partitions = remove_ended_dataset_partitions(
        context.instance, recorder.runtime.database, longest_s=_LONGEST_FOR_PARTITIONS_S
    )
    report = _remove_records_under_lease(recorder.runtime, context.instance, context.run.run_id)
    if report is None:
        context.log.info("Another run removes Dagster's records.")
        report = RecordRemovalReport()
    metadata: dict[str, Any] = {
        "partitions": partitions,
        "runs": report.runs,
        "stripped_runs": report.stripped_runs,
        "left_runs": report.left_runs,
        "freed_bytes": report.freed_bytes,
        "failures": len(report.failures),
        "failed": dg.MetadataValue.md("\n".join(f"- {failure}" for failure in report.failures)),
    }
    for failure in report.failures:
        context.log.error(failure)
    return dg.MaterializeResult(metadata=metadata)


def remove_dagster_texts(
    runtime: Runtime, instance: dg.DagsterInstance, owner: str, *, left: list[str] | None = None
) -> bool:
    """Remove the texts of all runs now, before erasures end.

    Runs at work lose what they have stored so far.

    Args:
        runtime: the deployment.
        instance: its Dagster instance.
        owner: name of the run.
        left: gets sentences about the texts that could not be removed.

    Returns:
        False if another run removes records, time ran out, or texts of some runs could not be removed: then
        erasures wait for the next run.
    """
    try:
        report = _remove_records_under_lease(
            runtime,
            instance,
            owner,
            strip_before=clock.now() + _CLOCK_STEP,
            longest_s=_LONGEST_BEFORE_END_S,
        )
    except Exception:  # erasures end without it, as they do where Dagster does not run
        log.exception("Dagster's texts of erased sessions are left to the daily removal")
        return True
    for failure in [] if report is None else report.failures:
        log.warning("%s", failure)
    if report is not None and report.left_texts and left is not None:
        left += report.failures
    return report is not None and not report.left_runs and not report.left_texts


def _remove_records_under_lease(
    runtime: Runtime,
    instance: dg.DagsterInstance,
    owner: str,
    *,
    strip_before: datetime | None = None,
    longest_s: float = _LONGEST_S,
) -> RecordRemovalReport | None:
    """Remove records under a lease; return None if another run is at work.

    Args:
        runtime: the deployment.
        instance: its Dagster instance.
        owner: name of the run.
        strip_before: runs that were created before lose their texts; None is the last removal's end.
        longest_s: seconds after which the rest is left to the next run.
    """
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=_LEASE_MS) as held:
        if held is None:
            return None
        with LeaseKeeper(runtime.database, lambda: [held], every_s=_BEAT_S):
            oldest = clock.now() - timedelta(days=limits.DAGSTER_DAYS)
            if strip_before is None:
                with runtime.database.transaction(write=False) as db:
                    strip_before = read_last_removal(db, since=oldest) or oldest
            report = remove_records(
                instance,
                remove_before=oldest,
                strip_before=strip_before,
                longest_s=longest_s,
                own_run=owner,
            )
            freed_bytes, failures = rewrite_dagster_databases(instance)
            report.freed_bytes += freed_bytes
            report.failures += failures
            return report


remove_dagster_records = dg.define_asset_job(
    "remove_dagster_records",
    selection=dg.AssetSelection.assets(dagster_records),
    description=(
        "Deletes partitions of datasets without a kept export, Dagster's records of old runs, and texts of "
        "runs from before the last erasure or hard delete."
    ),
    executor_def=dg.in_process_executor,
)
daily_dagster_records = dg.ScheduleDefinition(
    name="daily_dagster_records",
    job=remove_dagster_records,
    cron_schedule="20 4 * * *",
    description="Removes Dagster's own records of old runs.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
defs = dg.Definitions(
    assets=[dagster_records], jobs=[remove_dagster_records], schedules=[daily_dagster_records]
)
