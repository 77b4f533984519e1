"""Drift in Dagster: an hourly look at every memory graph that sessions came to. Spec §6.1, docs/drift.md.

Each graph is a transaction of its own: what a run has found when it is ended is told, the next one goes on
from there, and two at once tell nothing twice. A graph that fails stops no other; the run fails in the end.
An hour without sessions starts no run.
"""

import traceback

import dagster as dg

from pipelines.resources import RecorderResource
from pipelines.workflow_partitions import ONE_RUN, WORKFLOWS, partition_key, select_scopes
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
    """Look at one graph after the other."""
    database = recorder.runtime.database
    chosen = set(select_scopes(context, recorder.runtime))
    with database.transaction(write=False) as db:
        due = [scope for scope in due_graphs(db) if scope in chosen]
    found, failed = [], []
    for scope in due:
        name = f"{scope.workspace_id} {scope.mode} {scope.workflow}"
        try:
            look = check_drift(database, scope)
        except Exception:
            # One graph that cannot be looked at keeps no other from its alarms. The traceback is in the text:
            # Dagster's event log, which its pages show, keeps no other part of a message.
            context.log.error(f"{name}: the look failed\n{traceback.format_exc()}")
            failed.append(name)
            continue
        if look is not None:
            found.append(look)
            if not context.has_partition_key:
                # A run of many graphs: each graph's partition shows its own figures.
                partition = partition_key(scope)
                context.log_event(
                    dg.AssetObservation(context.asset_key, partition=partition, metadata=_metadata([look]))
                )
            for type, data in look.alarms:
                told = f"{type}: {data['window']['explanation']}"
                context.log.warning(f"{name}: {told}")
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(due)} graphs could not be looked at: {', '.join(failed)}",
            metadata=_metadata(found),
        )
    return dg.MaterializeResult(metadata=_metadata(found))


def _metadata(found: list[DriftCheck]) -> dict[str, dg.MetadataValue]:
    alarms = [(look, type, data) for look in found for type, data in look.alarms]
    return {
        "workflows": dg.MetadataValue.int(len(found)),
        "sessions": dg.MetadataValue.int(sum(look.sessions for look in found)),
        "alarms": dg.MetadataValue.int(len(alarms)),
        "looked_at": dg.MetadataValue.table([_graph(look) for look in found], schema=_GRAPHS),
        "watched_paths": dg.MetadataValue.md(_watched(found)),
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


def _graph(look: DriftCheck) -> dg.TableRecord:
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


def _watched(found: list[DriftCheck]) -> str:
    """The watched paths as a table, those that are missing for longest, by their measure, first."""
    watched = [(one.misses / one.needed, look, one) for look in found for one in look.watched]
    watched.sort(key=lambda item: (-item[0], item[1].scope.workflow, item[2].path_id))
    lines = ["| workflow | path | of the baseline | not seen for | an alarm at |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| {look.scope.workflow} | `{one.path_id}` | {one.frequency:.1%} | {one.misses} | {one.needed} |"
        for _, look, one in watched[:_PATHS_SHOWN]
    ]
    if len(watched) > _PATHS_SHOWN:
        lines.append(f"\n… and {len(watched) - _PATHS_SHOWN} more")
    return "\n".join(lines)


drift = dg.define_asset_job(
    "drift",
    selection=dg.AssetSelection.assets(drift_alarms),
    description="Looks for drift in every memory graph that sessions came to.",
    executor_def=dg.in_process_executor,
)


@dg.schedule(
    job=drift,
    cron_schedule="20 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def hourly_drift(recorder: RecorderResource) -> dg.RunRequest | dg.SkipReason:
    """Start a run where sessions came to any graph."""
    with recorder.runtime.database.transaction(write=False) as db:
        is_due = any(True for _ in due_graphs(db))
    return dg.RunRequest() if is_due else dg.SkipReason("No graph has new sessions.")


defs = dg.Definitions(assets=[drift_alarms], jobs=[drift], schedules=[hourly_drift])
