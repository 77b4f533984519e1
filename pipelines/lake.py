"""Maintenance of the lake in Dagster: once a day, one pass over every table. Design §3."""

import dagster as dg

from pipelines.resources import RecorderResource
from pipelines.sealing_drain import defer_interrupts
from recorder.governance.maintenance_pass import MaintenanceReport, maintain_lake
from recorder.number_formats import format_count

_TEXTS = ("workspace_id", "mode", "kind", "error")
_NUMBERS = (
    "files_before",
    "files_after",
    "bytes_after",
    "deleted_files",
    "deleted_bytes",
    "joined_files",
    "deleted_log_entries",
)
_COLUMNS = dg.TableSchema(
    columns=[*(dg.TableColumn(name) for name in _TEXTS), *(dg.TableColumn(name, "int") for name in _NUMBERS)]
)


@dg.asset(
    group_name="retention",
    kinds={"deltalake"},
    description=(
        "Tables of the lake at the last maintenance, one row per workspace, mode and kind: data files before "
        "and after it, bytes that were deleted, small files of past days that were joined."
    ),
)
def lake_tables(context: dg.AssetExecutionContext, recorder: RecorderResource) -> dg.MaterializeResult[None]:
    """Maintain every table of the lake; the run names those that fail, and the next run tries them again."""
    is_interrupted = False

    def stop() -> None:
        nonlocal is_interrupted
        is_interrupted = True

    with defer_interrupts(stop):
        report = maintain_lake(recorder.runtime, context.run.run_id, is_stopping=lambda: is_interrupted)
    for (tenant, kind), error in report.failures.items():
        context.log.error("The %s of %s (%s): %s", kind, tenant.workspace_id, tenant.mode, error)
    metadata = _describe_lake_maintenance(report)
    if report.failures:
        # The figures of the other tables stay on the asset's page.
        context.log_event(dg.AssetMaterialization(context.asset_key, metadata=metadata))
        raise dg.Failure(
            f"{format_count(len(report.failures), 'table')} of the lake could not be maintained; "
            "`by_table` has the errors.",
            metadata,
            allow_retries=False,
        )
    return dg.MaterializeResult(metadata=metadata)


def _describe_lake_maintenance(report: MaintenanceReport) -> dict[str, dg.MetadataValue]:
    rows = report.list_rows()
    return {
        "tables": dg.MetadataValue.int(len(report.tables)),
        "failed_tables": dg.MetadataValue.int(len(report.failures)),
        "busy_tables": dg.MetadataValue.int(len(report.busy)),
        "deleted_bytes": dg.MetadataValue.int(report.deleted_bytes),
        "aborted_uploads": dg.MetadataValue.int(report.aborted_uploads),
        "by_table": dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=_COLUMNS),
    }


maintain_tables = dg.define_asset_job(
    "maintain_lake",
    selection=dg.AssetSelection.assets(lake_tables),
    description="Joins small files of the lake, and deletes files and log entries that are not needed.",
    executor_def=dg.in_process_executor,
)
daily_lake_maintenance = dg.ScheduleDefinition(
    name="daily_lake_maintenance",
    job=maintain_tables,
    cron_schedule="10 4 * * *",
    description="Maintains the lake's tables. Switched off, deleted rows stay in old files.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
defs = dg.Definitions(assets=[lake_tables], jobs=[maintain_tables], schedules=[daily_lake_maintenance])
