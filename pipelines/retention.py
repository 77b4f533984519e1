"""Retention, purges and table rewrites in Dagster: daily removal, and sensors that start runs on request.

Spec §8.3.

Hard deletes and erasures start a run within seconds, by a sensor. A run that was killed is followed by
another one once its lease is over.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import dagster as dg

from pipelines.dagster_record_job import remove_dagster_texts
from pipelines.dagster_runs import QUEUE_TAG, dagster_instance_of, request_dagster_run
from pipelines.resources import RecorderResource
from pipelines.sealing_drain import defer_interrupts
from recorder import clock
from recorder.audit.verify import ChainHead
from recorder.governance import erasure_runs, retention, table_rewrites
from recorder.governance.clock_corrections import has_times_to_correct
from recorder.governance.purging.purge_runs import PURGE_LEASE, find_next_due_time
from recorder.governance.purging.step_report import DueStepReport
from recorder.governance.requested_removals import run_removals
from recorder.runtime import Runtime
from recorder.storage.leases import is_lease_held

_GROUP = "retention"
_LONGEST_PAUSE_S = 60.0
#: A run of purges ends after this, also where some are due without end: erasures end with the run.
_LONGEST_RUN_S = 300.0
_SHOWN_FAILURES = 10


@dg.asset(
    group_name=_GROUP,
    kinds={"sql"},
    description=(
        "What was due at the last run of retention, one row per workspace and kind: sessions past their "
        "days, which are hidden here and purged after; sessions whose frames were archived; audit entries, "
        "stored answers, deliveries, exports."
    ),
)
def expired_records(
    context: dg.AssetExecutionContext, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Remove the sessions, audit entries and other records whose time of retention is over."""
    report = retention.run_retention(recorder.runtime, context.run.run_id)
    if report is None:
        context.log.info("Another run is at work; nothing to do.")
        return dg.MaterializeResult(metadata={"rows": 0})
    for failure in report.failures:
        context.log.error(str(failure))
    for head in report.heads:
        context.log.info(f"audit head {head.workspace_id} {head.number} {head.hash}")
    metadata = _describe_retention(report)
    if report.failures:
        # A run that kept data too long must not look like one that removed them.
        context.log_event(dg.AssetMaterialization(context.asset_key, metadata=metadata))
        some = " ".join(str(failure) for failure in report.failures[:_SHOWN_FAILURES])
        raise dg.Failure(f"Not everything that is due was removed. {some}", metadata, allow_retries=False)
    return dg.MaterializeResult(metadata=metadata)


def _describe_retention(report: retention.RetentionReport) -> dict[str, Any]:
    """Return what the UI shows of a run of retention."""
    rows = report.list_rows()
    return {
        "rows": len(rows),
        "bytes": sum(report.sizes.values()),
        "failures": len(report.failures),
        **{kind: _sum_retention_counts_of_kind(report, kind) for kind in retention.KINDS},
        "by_workspace": _make_retention_counts_table(rows),
        "audit_heads": _make_audit_heads_table(report.heads),
        "failed": dg.MetadataValue.md("\n".join(f"- {failure}" for failure in report.failures)),
    }


def _make_retention_counts_table(rows: Sequence[Mapping[str, str | int]]) -> dg.TableMetadataValue:
    """Return counts and bytes by workspace and kind as a table of the UI."""
    columns = [dg.TableColumn(name) for name in ("workspace_id", "kind")]
    columns += [dg.TableColumn(name, "int") for name in ("count", "bytes")]
    records = [dg.TableRecord(dict(row)) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def _make_audit_heads_table(heads: Sequence[ChainHead]) -> dg.TableMetadataValue:
    """Return the heads of audit chains as a table of the UI."""
    columns = [dg.TableColumn("workspace_id"), dg.TableColumn("number", "int"), dg.TableColumn("hash")]
    records = [dg.TableRecord(asdict(head)) for head in heads]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def _sum_retention_counts_of_kind(report: retention.RetentionReport, kind: str) -> int:
    return sum(count for (_, counted), count in report.counts.items() if counted == kind)


@dg.asset(
    group_name=_GROUP,
    kinds={"sql", "deltalake"},
    deps=[expired_records],
    description=(
        "Sessions that were removed from every store, one row per session: id, cause and time, kept as long "
        "as the audit log. Those of erasures leave no row. A run that ended no purge and no erasure is an "
        "observation."
    ),
    output_required=False,
)
def purged_sessions(
    context: dg.AssetExecutionContext, recorder: RecorderResource
) -> Iterator[dg.MaterializeResult[None]]:
    """Work on open purges for some minutes, or until the next step is minutes away."""
    is_interrupted = threading.Event()
    left_texts: list[str] = []
    with defer_interrupts(is_interrupted.set):
        removals = run_removals(
            recorder.runtime,
            context.run.run_id,
            patience_s=recorder.purge_patience_s,
            longest_s=_LONGEST_RUN_S,
            is_stopping=is_interrupted.is_set,
            remove_texts=partial(
                remove_dagster_texts,
                recorder.runtime,
                context.instance,
                context.run.run_id,
                left=left_texts,
            ),
        )
    if removals.purges is None and removals.away is None:
        context.log.info("Another run works on the purges.")
    metadata = {"erasures": removals.erasures, **_describe_purges(removals.purges or DueStepReport())}
    if removals.away is not None:
        raise dg.Failure(f"The purges wait. {removals.away}", metadata) from removals.away
    if removals.error is not None:
        # A failed run is followed by longer and longer pauses.
        raise dg.Failure("An erasure failed and is tried again; see the log.", metadata) from removals.error
    if left_texts:
        # As above: the erasures that wait would else start a run every ten seconds.
        some = " ".join(left_texts[:_SHOWN_FAILURES])
        raise dg.Failure(f"Erasures wait for texts of Dagster's runs. {some}", metadata)
    if metadata["sessions"] or metadata["erasures"] or metadata["failed_steps"]:
        yield dg.MaterializeResult(metadata=metadata)
    else:
        # The figures of the last run that ended a purge stay on the asset's page.
        context.log_event(dg.AssetObservation(context.asset_key, metadata=metadata))


def _describe_purges(report: DueStepReport) -> dict[str, Any]:
    """Return what the UI shows of finished purges."""
    return {
        "sessions": report.sessions,
        "events": report.events,
        "frames": report.frames,
        "bytes": report.event_bytes + report.frame_bytes,
        "failed_steps": report.failed_steps,
        "by_workspace": _make_retention_counts_table(report.list_rows()),
    }


@dg.asset(
    group_name=_GROUP,
    kinds={"sql"},
    deps=[purged_sessions],
    description=(
        "Tables of PostgreSQL, or a large file of SQLite, that were rewritten, so that no copy of an erased "
        "row is left in their pages; erasures end after it."
    ),
)
def rewritten_tables(
    context: dg.AssetExecutionContext, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Rewrite the tables that erasures wait for."""
    report = table_rewrites.rewrite_tables(recorder.runtime, context.run.run_id)
    if report is None:
        context.log.info("Another run rewrites the tables.")
        report = table_rewrites.RewriteReport()
    metadata = {"tables": report.tables, "erasures": report.erasures}
    if report.failures:
        # A failed run is followed by another one in the same hour.
        raise dg.Failure(" ".join(report.list_failures()), metadata)
    return dg.MaterializeResult(metadata=metadata)


remove_expired = dg.define_asset_job(
    "remove_expired",
    selection=dg.AssetSelection.assets(expired_records),
    description="Removes data whose retention period has ended; its sessions are purged by purge_sessions.",
    executor_def=dg.in_process_executor,
)
purge_sessions = dg.define_asset_job(
    "purge_sessions",
    selection=dg.AssetSelection.assets(purged_sessions),
    description="Removes hidden sessions from every store, step by step.",
    executor_def=dg.in_process_executor,
    tags={QUEUE_TAG: "purges"},
)
rewrite_tables = dg.define_asset_job(
    "rewrite_tables",
    selection=dg.AssetSelection.assets(rewritten_tables),
    description="Rewrites the tables of PostgreSQL, or the large file of SQLite, that erasures wait for.",
    executor_def=dg.in_process_executor,
)
daily_retention = dg.ScheduleDefinition(
    name="daily_retention",
    job=remove_expired,
    cron_schedule="40 3 * * *",
    description="Removes data whose retention period has ended. Switched off, data are kept too long.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)


@dg.sensor(
    job=purge_sessions,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Starts a run when a purge or an erasure has work to do. "
        "Switched off, deleted data stay in the stores."
    ),
)
def open_purges(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Start a run when a step of a purge is due, or an erasure has work to do, and no run works on them."""
    state = read_purge_sensor_state(RecorderResource().runtime)
    if state != "a step is due":
        return dg.SkipReason(f"Nothing to start: {state}.")
    return request_dagster_run(
        dagster_instance_of(context), purge_sessions.name, longest_pause_s=_LONGEST_PAUSE_S
    )


@dg.sensor(
    job=rewrite_tables,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Starts a run while erasures wait for the rewrite of tables: "
        "in the quiet hour, or if one is due soon."
    ),
)
def waiting_erasures(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Start a run while erasures wait for the rewrite of tables: in the quiet hour, or if one is due soon."""
    state = read_rewrite_sensor_state(RecorderResource().runtime)
    if state != "erasures wait":
        return dg.SkipReason(f"Nothing to start: {state}.")
    return request_dagster_run(
        dagster_instance_of(context), rewrite_tables.name, longest_pause_s=_LONGEST_PAUSE_S
    )


def read_rewrite_sensor_state(runtime: Runtime) -> str:
    """Return whether tables are to be rewritten now, as text."""
    with runtime.database.transaction(write=False) as db:
        is_quiet = clock.now().hour == runtime.settings.quiet_hour
        if not is_quiet and not table_rewrites.has_erasures_due_soon(db):
            return f"the quiet hour is {runtime.settings.quiet_hour:02} UTC"
        if not table_rewrites.has_erasures_awaiting_rewrite(db):
            return "no erasure waits"
        if is_lease_held(db, table_rewrites.LEASE, now_ms=clock.now_ms()):
            return "a run is at work"
    return "erasures wait"


def read_purge_sensor_state(runtime: Runtime) -> str:
    """Return whether a purge or an erasure needs a run, as text."""
    with runtime.database.transaction(write=False) as db:
        due_at = find_next_due_time(db)
        is_due = due_at is not None and due_at <= clock.now()
        if not (is_due or has_times_to_correct(db) or erasure_runs.has_unfinished_erasures(db)):
            return "no step is due"
        if is_lease_held(db, PURGE_LEASE, now_ms=clock.now_ms()):
            return "a run is at work"
    return "a step is due"


defs = dg.Definitions(
    assets=[expired_records, purged_sessions, rewritten_tables],
    jobs=[remove_expired, purge_sessions, rewrite_tables],
    schedules=[daily_retention],
    sensors=[open_purges, waiting_erasures],
)
