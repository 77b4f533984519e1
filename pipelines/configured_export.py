"""Export that a run of the `datasets` asset writes: a queued one, that of an interrupted run, or a new one.

Spec §4.3.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from sqlmodel import Session as DbSession

from pipelines.dataset_checks import EXPORT_TAG
from pipelines.dataset_config import make_dataset_config, make_export_body
from recorder.access.workspaces import find_workspace, list_workspaces
from recorder.errors import Invalid, NotFound
from recorder.exports.runner.finalize import requeue_export
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant

DATASET_TAG = "recorder/dataset"
#: Most workspaces that a text lists.
WORKSPACES_SHOWN = 50
# Dagster sets it on a run that repeats another one.
_PARENT_RUN_TAG = "dagster/parent_run_id"


def find_or_queue_export(context: dg.AssetExecutionContext, runtime: Runtime) -> str:
    """Return the id of the export that a run writes; queue one if its configuration describes a new one.

    The run is tagged with the export, as the runs of the sensor are from the start: the export of a cancelled
    run is cancelled, and a lost run is followed by another one.

    Raises:
        dg.Failure: if a value of the configuration is wrong; the run's page shows the sentence first.
    """
    if not context.has_partition_key:
        # Dagster's form starts no such run; GraphQL and `dagster` do.
        raise dg.Failure(
            "The run names no partition. Choose one or add one: its name is the tag of the export.",
            allow_retries=False,
        )
    run, config, dataset = context.run, context.op_execution_context.op_config, context.partition_key
    export_id: str = (
        _find_named_export(runtime, _read_given_members(run), dataset)
        or _find_export_of_repeated_run(context.instance, run, runtime, dataset)
        or _queue_configured_export(runtime, config, dataset, run.run_id)
    )
    if run.tags.get(EXPORT_TAG) != export_id:
        context.instance.add_run_tags(run.run_id, {EXPORT_TAG: export_id, DATASET_TAG: dataset})
    return export_id


def _read_given_members(run: dg.DagsterRun) -> Mapping[str, Any]:
    """Return the configuration of a run as it was entered, without the schema's defaults."""
    operations: Any = run.run_config["ops"]
    members: Mapping[str, Any] = operations["datasets"]["config"]
    return members


def _find_named_export(runtime: Runtime, given: Mapping[str, Any], dataset: str) -> str | None:
    """Return `export_id` of a configuration; None if it has none.

    Raises:
        dg.Failure: if the export differs from the partition or another member: it cannot be changed.
    """
    export_id = given.get("export_id")
    if not export_id:
        return None
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, export_id)
        if row is None:
            raise dg.Failure(f"export_id: no export {export_id} exists.", allow_retries=False)
        differing = _list_differing_members(db, row, given)
    if row.dataset != dataset:
        differing.insert(0, f"the partition, which is {row.dataset!r}")
    if differing:
        raise dg.Failure(
            f"The configuration differs from the export {export_id} in {', '.join(differing)}. Leave out "
            "`export_id` to make a new export, or leave out these members to run that one.",
            metadata={"export_id": row.id},
            allow_retries=False,
        )
    return row.id


def _list_differing_members(db: DbSession, row: ExportRow, given: Mapping[str, Any]) -> list[str]:
    """Return the members of a configuration that differ from an export, by name."""
    members = _normalize_members(given)
    workspace = members.get("workspace")
    if workspace not in (None, row.workspace_id):
        try:
            members["workspace"] = find_workspace(db, workspace).id
        except NotFound as error:
            raise dg.Failure(f"workspace: {error}", allow_retries=False) from error
    actual = _normalize_members(make_dataset_config(row))
    return [f"`{name}`" for name, value in members.items() if value != actual.get(name)]


def _normalize_members(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that have a value; one workflow is a list, and its order does not matter."""
    members = {name: _drop_empty_members(value) for name, value in config.items() if value is not None}
    workflow = members["workflow"]
    return members | {"workflow": sorted([workflow] if isinstance(workflow, str) else workflow)}


def _drop_empty_members(value: Any) -> Any:
    """Return an object without the members that have no value."""
    if not isinstance(value, Mapping):
        return value
    return {name: member for name, member in value.items() if member is not None}


def _find_export_of_repeated_run(
    instance: dg.DagsterInstance, run: dg.DagsterRun, runtime: Runtime, dataset: str
) -> str | None:
    """Return the id of the unfinished export of the run that this one repeats without changes."""
    parent_id = run.tags.get(_PARENT_RUN_TAG)
    parent = instance.get_run_by_id(parent_id) if parent_id is not None else None
    if parent is None or parent.run_config != run.run_config or EXPORT_TAG not in parent.tags:
        return None
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, parent.tags[EXPORT_TAG])
    is_unfinished = row is not None and row.dataset == dataset and row.status in OPEN_STATUSES
    return row.id if row is not None and is_unfinished else None


def _queue_configured_export(runtime: Runtime, config: Mapping[str, Any], partition: str, run_id: str) -> str:
    """Create the export that a run configuration describes.

    Raises:
        dg.Failure: if a value of the configuration is wrong.
    """
    try:
        body = make_export_body(config, partition=partition)
        with runtime.database.transaction(write=False) as db:
            workspace_id = _find_workspace_of_dataset(db, config.get("workspace"))
        return requeue_export(runtime, Tenant(workspace_id, config["mode"]), body, owner=run_id)
    except (Invalid, NotFound) as error:
        problems = getattr(error, "problems", ())
        sentences = [f"{problem.pointer.strip('/')}: {problem.message}" for problem in problems] or [
            str(error)
        ]
        raise dg.Failure(
            "The configuration is wrong, and nothing was exported. " + " ".join(sentences),
            allow_retries=False,
        ) from error


def _find_workspace_of_dataset(db: DbSession, name_or_id: str | None) -> str:
    """Return the workspace of this name or id; without one, the only workspace of the deployment."""
    if name_or_id is not None:
        return find_workspace(db, name_or_id).id
    workspaces = list_workspaces(db)
    if len(workspaces) != 1:
        names = ", ".join(workspace.name for workspace in workspaces[:WORKSPACES_SHOWN]) or "none"
        raise dg.Failure(f"Set `workspace` to one of the workspaces: {names}.", allow_retries=False)
    return workspaces[0].id
