"""Drift in Dagster: an hourly check of every memory graph with new sessions. Spec §6.1, docs/drift.md.

Each graph is checked in its own transaction: alarms raised before a run is stopped are sent, the next run
continues from there, and two runs at once send no alarm twice. A graph that fails stops no other; the run
then fails. An hour without sessions starts no run.
"""

import traceback
from collections.abc import Iterable

import dagster as dg

from pipelines.resources import RecorderResource
from pipelines.workflow_partitions import ONE_RUN, WORKFLOWS, log_workflow_partition, select_partition_scopes
from recorder import clock
from recorder.memory.drift.monitor import (
    RULES,
    DriftCheck,
    LastCheck,
    check_drift,
    list_graphs_to_check,
    read_last_drift_check,
)
from recorder.memory.drift.store import PATH_DISAPPEARED
from recorder.tenant import GraphScope

_GROUP = "memory"
_SUBJECTS_SHOWN = 100


@dg.asset(
    group_name=_GROUP,
    kinds={"sql"},
    deps=["memory_graphs"],
    partitions_def=WORKFLOWS,
    backfill_policy=ONE_RUN,
    description=(
        "Alarms about memory graphs, one row and one event each: memory.drift.path_disappeared for a path, "
        "node or edge that stopped or dropped, memory.drift.new_node for one that appeared or grew. One "
        "partition per workflow; a run checks the graphs of its partitions that have new sessions, the "
        "hourly run those of all."
    ),
)
def drift_alarms(context: dg.AssetExecutionContext, recorder: RecorderResource) -> dg.MaterializeResult[None]:
    """Check memory graphs for drift, one after the other."""
    database = recorder.runtime.database
    chosen = set(select_partition_scopes(context, recorder.runtime))
    with database.transaction(write=False) as db:
        due = [scope for scope in list_graphs_to_check(db) if scope in chosen]
    checks, failed = [], []
    for scope in due:
        name = f"{scope.workspace_id} {scope.mode} {scope.workflow}"
        try:
            drift_check = check_drift(database, scope)
        except Exception:
            # A graph that cannot be checked stops no other. The traceback is in the text:
            # Dagster's event log, which its pages show, keeps no other part of a message.
            context.log.error(f"{name}: the check failed\n{traceback.format_exc()}")
            failed.append(name)
            continue
        if drift_check is not None:
            checks.append(drift_check)
            if not context.has_partition_key:
                log_workflow_partition(context, scope, _make_drift_metadata([drift_check]))
            for type, data in drift_check.alarms:
                message = f"{type}: {data['window']['explanation']}"
                context.log.warning(f"{name}: {message}")
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(due)} graphs could not be checked: {', '.join(failed)}",
            metadata=_make_drift_metadata(checks),
        )
    if not checks and _is_drift_partition_run(context):
        return dg.MaterializeResult(metadata=_repeat_last_drift_figures(recorder, chosen))
    return dg.MaterializeResult(metadata=_make_drift_metadata(checks))


def _is_drift_partition_run(context: dg.AssetExecutionContext) -> bool:
    """Return whether the run was started for partitions; its metadata are then shown on the page of each."""
    return bool(context.has_partition_key or context.has_partition_key_range)


def _repeat_last_drift_figures(
    recorder: RecorderResource, chosen: Iterable[GraphScope]
) -> dict[str, dg.MetadataValue]:
    """Return the figures of the last checks, so that a run without new sessions does not hide them."""
    lasts = [read_last_drift_check(recorder.runtime.database, scope) for scope in chosen]
    checked = [last for last in lasts if last is not None]
    metadata = _make_drift_metadata([last.check for last in checked])
    return {
        **metadata,
        "alarms": dg.MetadataValue.int(0),
        "state": dg.MetadataValue.md(_describe_last_drift_checks(checked)),
    }


def _describe_last_drift_checks(checked: list[LastCheck]) -> str:
    if not checked:
        return "No session was checked so far."
    since = max(last.checked_at for last in checked)
    return (
        f"No new sessions since {clock.to_iso(since)}. The figures and alarms are those of the last checks."
    )


def _make_drift_metadata(checks: list[DriftCheck]) -> dict[str, dg.MetadataValue]:
    alarms = [(drift_check, type, data) for drift_check in checks for type, data in drift_check.alarms]
    return {
        "workflows": dg.MetadataValue.int(len(checks)),
        "sessions": dg.MetadataValue.int(sum(drift_check.sessions for drift_check in checks)),
        "alarms": dg.MetadataValue.int(len(alarms)),
        "looked_at": dg.MetadataValue.table(
            [_make_drift_record(drift_check) for drift_check in checks], schema=_GRAPHS
        ),
        "watched": dg.MetadataValue.md(_format_drift_watch_table(checks)),
        "reported": dg.MetadataValue.md(_describe_drift_results(checks)),
    }


def _describe_drift_results(checks: list[DriftCheck]) -> str:
    """List the alarms, then the graphs with too few sessions for a baseline, which were not judged."""
    lines = [
        f"- {_format_drift_scope(drift_check.scope)} `{type}`: {data['window']['explanation']}"
        for drift_check in checks
        for type, data in drift_check.alarms
    ]
    few = [drift_check.scope for drift_check in checks if not drift_check.baseline]
    if not lines and len(few) < max(1, len(checks)):
        lines.append("Nothing changed.\n")
    lines += [
        f"- {_format_drift_scope(scope)} Not judged: fewer than {RULES.least_baseline} sessions."
        for scope in few[:_SUBJECTS_SHOWN]
    ]
    if len(few) > _SUBJECTS_SHOWN:
        lines.append(f"- … and {len(few) - _SUBJECTS_SHOWN} more that were not judged")
    return "\n".join(lines)


def _format_drift_scope(scope: GraphScope) -> str:
    return f"**{scope.workflow}** ({scope.workspace_id} {scope.mode})"


_GRAPHS = dg.TableSchema(
    columns=[
        *(dg.TableColumn(name) for name in ("workspace_id", "mode", "workflow")),
        *(dg.TableColumn(name, "int") for name in ("sessions", "baseline", "watched", "fell", "grew")),
    ]
)


def _make_drift_record(drift_check: DriftCheck) -> dg.TableRecord:
    gone = sum(type == PATH_DISAPPEARED for type, _ in drift_check.alarms)
    return dg.TableRecord(
        {
            "workspace_id": drift_check.scope.workspace_id,
            "mode": drift_check.scope.mode,
            "workflow": drift_check.scope.workflow,
            "sessions": drift_check.sessions,
            "baseline": drift_check.baseline,
            "watched": len(drift_check.watched),
            "fell": gone,
            "grew": len(drift_check.alarms) - gone,
        }
    )


def _format_drift_watch_table(checks: list[DriftCheck]) -> str:
    """Return the watched subjects as a table, those that are missing for longest first."""
    watched = [
        (subject.misses / subject.needed, drift_check, subject)
        for drift_check in checks
        for subject in drift_check.watched
    ]
    watched.sort(key=lambda item: (-item[0], item[1].scope.workflow, item[2].subject_id))
    lines = [
        "| workflow | kind | id | of the baseline | not seen for | an alarm at |",
        "|---|---|---|--:|--:|--:|",
    ]
    lines += [
        f"| {drift_check.scope.workflow} | {subject.kind} | `{subject.subject_id}` | "
        f"{subject.frequency:.1%} | {subject.misses} | {subject.needed} |"
        for _, drift_check, subject in watched[:_SUBJECTS_SHOWN]
    ]
    if len(watched) > _SUBJECTS_SHOWN:
        lines.append(f"\n… and {len(watched) - _SUBJECTS_SHOWN} more")
    return "\n".join(lines)


drift = dg.define_asset_job(
    "drift",
    selection=dg.AssetSelection.assets(drift_alarms),
    description="Checks every memory graph with new sessions for drift.",
    executor_def=dg.in_process_executor,
)


@dg.schedule(
    job=drift,
    cron_schedule="20 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Checks the memory graphs with new sessions for drift.",
)
def hourly_drift(recorder: RecorderResource) -> dg.RunRequest | dg.SkipReason:
    """Start a run if a graph has new sessions."""
    with recorder.runtime.database.transaction(write=False) as db:
        is_due = any(True for _ in list_graphs_to_check(db))
    return dg.RunRequest() if is_due else dg.SkipReason("No graph has new sessions.")


defs = dg.Definitions(assets=[drift_alarms], jobs=[drift], schedules=[hourly_drift])
