"""Daily removal of Dagster's own records: runs past their days, and texts of erased sessions. Contract §7."""

from datetime import timedelta
from typing import Any

import dagster as dg

from pipelines.record_files import rewrite_databases
from pipelines.record_removal import RecordReport, remove_records
from pipelines.resources import RecorderResource
from recorder import clock, limits
from recorder.governance.removals import read_last_removal
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseKeeper, lease_for_block

LEASE = "dagster_records"
_LEASE_MS = 60_000
_BEAT_S = 15.0
#: The next day's run works on what is left.
_LONGEST_S = 1800.0


@dg.asset(
    group_name="retention",
    kinds={"sql"},
    description=(
        "Dagster's records that were removed, one row per run: runs past 30 days with their events and logs. "
        "The newest materialization of each asset and partition stays, with numbers alone."
    ),
)
def dagster_records(
    context: dg.AssetExecutionContext, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Remove old records, and texts of runs from before the last erasure or hard delete."""
    report = _remove_records(recorder.runtime, context.instance, context.run.run_id)
    if report is None:
        context.log.info("Another run removes Dagster's records.")
        report = RecordReport()
    metadata: dict[str, Any] = {
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


def _remove_records(runtime: Runtime, instance: dg.DagsterInstance, owner: str) -> RecordReport | None:
    """Remove records under a lease; return None if another run is at work."""
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=_LEASE_MS) as held:
        if held is None:
            return None
        with LeaseKeeper(runtime.database, lambda: [held], every_s=_BEAT_S):
            oldest = clock.now() - timedelta(days=limits.DAGSTER_DAYS)
            with runtime.database.transaction(write=False) as db:
                removed_at = read_last_removal(db, since=oldest)
            report = remove_records(
                instance,
                remove_before=oldest,
                strip_before=removed_at or oldest,
                longest_s=_LONGEST_S,
            )
            freed_bytes, failures = rewrite_databases(instance)
            report.freed_bytes += freed_bytes
            report.failures += failures
            return report


remove_dagster_records = dg.define_asset_job(
    "remove_dagster_records",
    selection=dg.AssetSelection.assets(dagster_records),
    description="Deletes Dagster's records of old runs, and texts of runs from before the last erasure.",
    executor_def=dg.in_process_executor,
)
daily_dagster_records = dg.ScheduleDefinition(
    name="daily_dagster_records",
    job=remove_dagster_records,
    cron_schedule="20 4 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
defs = dg.Definitions(
    assets=[dagster_records], jobs=[remove_dagster_records], schedules=[daily_dagster_records]
)
