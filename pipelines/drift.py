"""Drift in Dagster: an hourly check of every memory graph with new sessions. Spec §6.1, docs/drift.md.

Each graph is checked in its own transaction: alarms raised before a run is stopped are sent, the next run
continues from there, and two runs at once send no alarm twice. A graph that fails stops no other; the run
then fails. An hour without sessions starts no run.
"""

import traceback

import dagster as dg

from pipelines.resources import RecorderResource
from pipelines.workflow_partitions import ONE_RUN, WORKFLOWS, log_partition, select_scopes
from recorder.memory.drift.monitor import DriftCheck, check_drift, due_graphs
from recorder.memory.drift.store import PATH_DISAPPEARED

_GROUP = "memory"
_PATHS_SHOWN = 100


@dg.asset(
    group_name=_GROUP,
    kinds={"sql"},
    deps=["memory_graphs"],
    partitions_def=WORKFLOWS,
    backfill_policy=ONE_RUN,
    description=(
        "Alarms about memory graphs, one row and one event each: memory.drift.path_disappeared for a common "
        "path that stopped, memory.drift.new_node for a node that appeared. One partition per workflow; a "
        "run checks the graphs of its partitions that have new sessions, the hourly run those of all."
    ),
)
def drift_alarms(context: dg.AssetExecutionContext, recorder: RecorderResource) -> dg.MaterializeResult[None]:
    """Check one graph after the other."""
    database = recorder.runtime.database
    chosen = set(select_scopes(context, recorder.runtime))
    with database.transaction(write=False) as db:
        due = [scope for scope in due_graphs(db) if scope in chosen]
    checks, failed = [], []
    for scope in due:
        name = f"{scope.workspace_id} {scope.mode} {scope.workflow}"
        try:
            look = check_drift(database, scope)
        except Exception:
            # A graph that cannot be checked stops no other. The traceback is in the text:
            # Dagster's event log, which its pages show, keeps no other part of a message.
            context.log.error(f"{name}: the check failed\n{traceback.format_exc()}")
            failed.append(name)
            continue
        if look is not None:
            checks.append(look)
            if not context.has_partition_key:
                log_partition(context, scope, _make_metadata([look]))
            for type, data in look.alarms:
                message = f"{type}: {data['window']['explanation']}"
                context.log.warning(f"{name}: {message}")
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(due)} graphs could not be checked: {', '.join(failed)}",
            metadata=_make_metadata(checks),
        )
    return dg.MaterializeResult(metadata=_make_metadata(checks))


def _make_metadata(checks: list[DriftCheck]) -> dict[str, dg.MetadataValue]:
    alarms = [(look, type, data) for look in checks for type, data in look.alarms]
    return {
        "workflows": dg.MetadataValue.int(len(checks)),
        "sessions": dg.MetadataValue.int(sum(look.sessions for look in checks)),
        "alarms": dg.MetadataValue.int(len(alarms)),
        "looked_at": dg.MetadataValue.table([_make_record(look) for look in checks], schema=_GRAPHS),
        "watched_paths": dg.MetadataValue.md(_format_watched(checks)),
        "told": dg.MetadataValue.md(
            "\n".join(
                f"- **{look.scope.workflow}** ({look.scope.workspace_id} {look.scope.mode}) `{type}`: "
                f"{data['window']['explanation']}"
                for look, type, data in alarms
            )
            or "Nothing changed."
        ),
    }


_GRAPHS = dg.TableSchema(
    columns=[
        *(dg.TableColumn(name) for name in ("workspace_id", "mode", "workflow")),
        *(
            dg.TableColumn(name, "int")
            for name in ("sessions", "baseline", "watched", "paths_gone", "nodes_new")
        ),
    ]
)


def _make_record(look: DriftCheck) -> dg.TableRecord:
    gone = sum(type == PATH_DISAPPEARED for type, _ in look.alarms)
    return dg.TableRecord(
        {
            "workspace_id": look.scope.workspace_id,
            "mode": look.scope.mode,
            "workflow": look.scope.workflow,
            "sessions": look.sessions,
            "baseline": look.baseline,
            "watched": len(look.watched),
            "paths_gone": gone,
            "nodes_new": len(look.alarms) - gone,
        }
    )


def _format_watched(checks: list[DriftCheck]) -> str:
    """Return the watched paths as a table, those that are missing for longest first."""
    watched = [(path.misses / path.needed, look, path) for look in checks for path in look.watched]
    watched.sort(key=lambda item: (-item[0], item[1].scope.workflow, item[2].path_id))
    lines = ["| workflow | path | of the baseline | not seen for | an alarm at |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| {look.scope.workflow} | `{path.path_id}` | {path.frequency:.1%} | {path.misses} | {path.needed} |"
        for _, look, path in watched[:_PATHS_SHOWN]
    ]
    if len(watched) > _PATHS_SHOWN:
        lines.append(f"\n… and {len(watched) - _PATHS_SHOWN} more")
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
)
def hourly_drift(recorder: RecorderResource) -> dg.RunRequest | dg.SkipReason:
    """Start a run if a graph has new sessions."""
    with recorder.runtime.database.transaction(write=False) as db:
        is_due = any(True for _ in due_graphs(db))
    return dg.RunRequest() if is_due else dg.SkipReason("No graph has new sessions.")


defs = dg.Definitions(assets=[drift_alarms], jobs=[drift], schedules=[hourly_drift])
