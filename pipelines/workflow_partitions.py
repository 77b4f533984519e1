"""Partitions by workflow: one memory graph per partition, any number of them in one run. Design §3."""

import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import dagster as dg

from recorder.memory.storage.rebuilds import list_graph_scopes
from recorder.runtime import Runtime
from recorder.tenant import GraphScope

WORKFLOWS = dg.DynamicPartitionsDefinition(name="workflows")
# Dagster calls this parameter of assets beta; its warning would be logged at each start.
warnings.filterwarnings("ignore", "Parameter `backfill_policy`", category=dg.BetaWarning)

#: Dagster names all keys of a call in one statement, which takes 32,766 or 250,000 values.
_REGISTERED_AT_ONCE = 500
#: Starting a run takes seconds, checking a graph milliseconds.
ONE_RUN = dg.BackfillPolicy.single_run()


def partition_key(scope: GraphScope) -> str:
    """Return the partition of a graph; Dagster takes no `...` in a key."""
    return f"{scope.workspace_id} {scope.mode} {scope.workflow}".replace("...", "…")


def register_workflow_partitions(instance: dg.DagsterInstance, scopes: Iterable[GraphScope]) -> None:
    """Register the partitions of these graphs, a part at a time; known ones stay as they are."""
    keys = iter([partition_key(scope) for scope in scopes])
    while part := list(islice(keys, _REGISTERED_AT_ONCE)):
        instance.add_dynamic_partitions(str(WORKFLOWS.name), part)


def log_workflow_partition(
    context: dg.AssetExecutionContext, scope: GraphScope, metadata: Mapping[str, Any]
) -> None:
    """Log the metadata of one graph's partition.

    A run that was started for partitions materializes them when it ends; of a run of all graphs, as schedules
    start it, this event materializes the partition.
    """
    is_named = context.has_partition_key or context.has_partition_key_range
    event = dg.AssetObservation if is_named else dg.AssetMaterialization
    context.log_event(event(context.asset_key, partition=partition_key(scope), metadata=metadata))


def select_partition_scopes(context: dg.AssetExecutionContext, runtime: Runtime) -> list[GraphScope]:
    """Return the graphs of a run's partitions; of a run without partitions, as schedules start it, all."""
    with runtime.database.transaction(write=False) as db:
        scopes = list_graph_scopes(db)
    register_workflow_partitions(context.instance, scopes)
    if not context.has_partition_key and not context.has_partition_key_range:
        return scopes
    chosen = set(context.partition_keys)
    return [scope for scope in scopes if partition_key(scope) in chosen]
