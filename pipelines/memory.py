"""Memory graphs in Dagster: the rebuild of every night, and checks that recount. Spec §4.2, design §3.

Sealing adds sessions to graphs as they come (`pipelines.sealing`); a rebuild arranges what has come. One run
takes all graphs: their number is that of workflows, and a run for each would cost seconds to start.
"""

import logging
import traceback
from collections.abc import Iterator
from dataclasses import asdict

import dagster as dg
from pydantic import Field

from pipelines.dagster_runs import QUEUE_TAG
from pipelines.memory_metadata import read_graph_metadata
from pipelines.resources import RecorderResource
from pipelines.workflow_partitions import ONE_RUN, WORKFLOWS, log_workflow_partition, select_partition_scopes
from recorder.memory.graph.rebuild import RebuildKind
from recorder.memory.storage.consistency import GraphCheck, check_graph_consistency, index_missing_sessions
from recorder.memory.storage.rebuilds import RebuildReport, list_graph_scopes, rebuild_graph
from recorder.memory.storage.versions import scope_columns
from recorder.runtime import Runtime
from recorder.tenant import GraphScope

log = logging.getLogger("recorder.memory")

_GROUP = "memory"
#: Wrong sessions, traces or paths that a check names.
_NAMED = 20
#: Those of them that the description of a failed check has.
_DESCRIBED = 3
_Metadata = dict[str, dg.MetadataValue]


class RebuildConfig(dg.Config):
    """Kind of the rebuild."""

    kind: RebuildKind = Field(
        default="anchored",
        description=(
            "anchored: merge equal nodes and equal paths into the older; every id stays "
            "known. fresh: group all variants again, most frequent first; ids are taken over where a group "
            "stayed mostly the same."
        ),
    )


@dg.asset(
    group_name=_GROUP,
    kinds={"sql"},
    deps=["memory_graphs"],
    partitions_def=WORKFLOWS,
    backfill_policy=ONE_RUN,
    description=(
        "The structure of every memory graph, computed again from its sessions: equal nodes "
        "are merged, variants are grouped by their present weights. No statistics change."
    ),
)
def rebuilt_memory_graphs(
    context: dg.AssetExecutionContext, config: RebuildConfig, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Rebuild graphs, one after the other, each in its own transaction; one that fails stops no other."""
    runtime = recorder.runtime
    records: list[dg.TableRecord] = []
    pages: list[_Metadata] = []
    failed: list[str] = []
    scopes = select_partition_scopes(context, runtime)
    for scope in scopes:
        try:
            page, record = _rebuild_and_describe(context, runtime, scope, config.kind)
        except Exception:
            # The traceback is in the text: Dagster's event log keeps no other part of a message.
            name = f"{scope.workspace_id} {scope.mode} {scope.workflow}"
            context.log.error(f"{name}: the rebuild failed\n{traceback.format_exc()}")
            failed.append(name)
            continue
        pages += [] if page is None else [page]
        records += [] if record is None else [record]
    metadata: _Metadata = {
        # The run of one partition is its page: it shows the graph also where nothing changed.
        **(pages[0] if len(pages) == 1 and context.has_partition_key else {}),
        "graphs": dg.MetadataValue.int(len(records)),
        "changed": dg.MetadataValue.int(sum(bool(record.data["changed"]) for record in records)),
        "rebuilt": dg.MetadataValue.table(records, schema=_SCHEMA),
    }
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(scopes)} graphs could not be rebuilt: {', '.join(failed)}",
            metadata=metadata,
        )
    return dg.MaterializeResult(metadata=metadata)


def _rebuild_and_describe(
    context: dg.AssetExecutionContext, runtime: Runtime, scope: GraphScope, kind: RebuildKind
) -> tuple[_Metadata | None, dg.TableRecord | None]:
    """Rebuild one graph; return its metadata and its record, as far as there is something to show."""
    indexed = index_missing_sessions(runtime, scope)
    report = rebuild_graph(runtime.database, scope, kind)
    if report is None:
        context.log.warning(f"{scope.workflow} of {scope.workspace_id} is too busy; left for another night.")
        return read_graph_metadata(runtime, scope), None
    if not report.sessions:
        return None, None
    context.log.info(
        f"{scope.workflow} of {scope.workspace_id} ({scope.mode}): {_format_rebuild_report(report)}"
    )
    page = _make_rebuild_metadata(runtime, scope, report, indexed)
    log_workflow_partition(context, scope, page)
    return page, dg.TableRecord({**scope_columns(scope), **asdict(report), "found": indexed})


_TEXTS = ("workspace_id", "mode", "workflow", "kind")
_SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn(name, "string" if name in _TEXTS else "int")
        for name in (*GraphScope.__slots__, *RebuildReport.__slots__, "found")
    ]
)


def _format_rebuild_report(report: RebuildReport) -> str:
    if not report.changed:
        return f"{report.nodes} nodes and {report.paths} paths, as before."
    return (
        f"{report.nodes_before} → {report.nodes} nodes, {report.paths_before} → {report.paths} paths, "
        f"version {report.version}."
    )


def _make_rebuild_metadata(
    runtime: Runtime, scope: GraphScope, report: RebuildReport, indexed: int
) -> dict[str, dg.MetadataValue]:
    return {
        "workflow": dg.MetadataValue.text(scope.workflow),
        "workspace": dg.MetadataValue.text(f"{scope.workspace_id} {scope.mode}"),
        "rebuild": dg.MetadataValue.text(_format_rebuild_report(report)),
        "sessions found in the lake alone": dg.MetadataValue.int(indexed),
        **read_graph_metadata(runtime, scope),
    }


rebuild_memory_graphs = dg.define_asset_job(
    "rebuild_memory_graphs",
    selection=dg.AssetSelection.assets(rebuilt_memory_graphs),
    description="Computes the nodes and paths of memory graphs again; see the asset's configuration.",
    executor_def=dg.in_process_executor,
    tags={QUEUE_TAG: _GROUP},
)
nightly_rebuild = dg.ScheduleDefinition(
    name="nightly_rebuild",
    job=rebuild_memory_graphs,
    cron_schedule="10 3 * * *",
    description="Rebuilds every memory graph, anchored.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(
            "every_session_on_one_path",
            asset="memory_graphs",
            description="Each indexed session is on exactly one path, and no sealed one is missing.",
        ),
        dg.AssetCheckSpec(
            "counters_equal_sessions",
            asset="memory_graphs",
            description="Each trace counts as many sessions as the session table holds.",
        ),
        dg.AssetCheckSpec(
            "fractions_sum_to_one",
            asset="memory_graphs",
            description="Frequencies of a graph's paths sum to 1, and so do the outcomes of each path.",
        ),
    ]
)
def graph_checks(recorder: RecorderResource) -> Iterator[dg.AssetCheckResult]:
    """Recount every graph, each in one transaction; one that cannot be read fails the checks."""
    checks: list[GraphCheck] = []
    unread: list[tuple[GraphScope, str]] = []
    with recorder.runtime.database.transaction(write=False) as db:
        scopes = list_graph_scopes(db)
    for scope in scopes:
        try:
            with recorder.runtime.database.transaction(write=False) as db:
                checks.append(check_graph_consistency(db, scope))
        except Exception as error:
            log.exception("%s of %s %s cannot be checked", scope.workflow, scope.workspace_id, scope.mode)
            # Its text may have contents of recordings.
            unread.append((scope, f"cannot be checked, {type(error).__name__}, see the log"))
    off_path = [(check.scope, text) for check in checks for text in (*check.off_path, *check.missing)]
    miscounted = [
        (check.scope, f"trace {key}: {counter} counted, {sessions} there")
        for check in checks
        for key, counter, sessions in check.miscounted
    ]
    unequal = [(check.scope, path) for check in checks for path in check.unequal]
    yield _make_graph_check_result("every_session_on_one_path", checks, [*unread, *off_path])
    yield _make_graph_check_result("counters_equal_sessions", checks, [*unread, *miscounted])
    yield _make_graph_check_result("fractions_sum_to_one", checks, [*unread, *unequal])


def _make_graph_check_result(
    name: str, checks: list[GraphCheck], wrong: list[tuple[GraphScope, str]]
) -> dg.AssetCheckResult:
    named = [f"{scope.workspace_id} {scope.mode} {scope.workflow}: {what}" for scope, what in wrong[:_NAMED]]
    return dg.AssetCheckResult(
        asset_key="memory_graphs",
        check_name=name,
        passed=not wrong,
        description="; ".join(named[:_DESCRIBED]) or None,
        metadata={
            "graphs": len(checks),
            "sessions": sum(check.sessions for check in checks),
            "wrong": named,
        },
    )


check_memory_graphs = dg.define_asset_job(
    "check_memory_graphs",
    selection=dg.AssetSelection.checks(graph_checks),
    description="Recounts every memory graph against its sessions.",
)
daily_graph_check = dg.ScheduleDefinition(
    name="daily_graph_check",
    job=check_memory_graphs,
    cron_schedule="40 4 * * *",
    description="Runs the checks of the memory graphs.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)


defs = dg.Definitions(
    assets=[rebuilt_memory_graphs],
    asset_checks=[graph_checks],
    jobs=[rebuild_memory_graphs, check_memory_graphs],
    schedules=[nightly_rebuild, daily_graph_check],
)
