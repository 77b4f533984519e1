"""Recipes in Dagster: the sensor that follows them. docs/recipes.md.

It makes exports, no runs: `queued_exports` takes those up like any other, so that a recipe needs Dagster's
clock and nothing of its queue. That one export comes of each tick is the database's business.
"""

import logging
from collections.abc import Callable, Sequence

import dagster as dg

from pipelines.exports import PARTITIONS, export_datasets
from pipelines.resources import RecorderResource
from pipelines.runs import instance_of
from recorder.exports.requests.recipe_ticks import make_due_exports
from recorder.exports.requests.recipes import list_recipes


@dg.sensor(job=export_datasets, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def scheduled_recipes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Make the exports of recipes that are due, and show each recipe's dataset among the partitions."""
    return follow_recipes(lambda: instance_of(context), RecorderResource(), context.log)


def follow_recipes(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource, log: logging.Logger
) -> dg.SensorResult:
    """Make due exports; Dagster's instance is opened only where there are recipes."""
    taken = list(make_due_exports(recorder.runtime))
    for one in taken:
        name = f"{one.recipe.name} of {one.recipe.workspace_id} {one.recipe.mode}"
        if one.recipe.last_error is not None:
            log.error(f"{name}: {one.recipe.last_error['code']}, {one.recipe.last_error['message']}")
        elif one.export is not None:
            log.info(f"{name}: {one.export.id}")
    with recorder.runtime.database.transaction(write=False) as db:
        names = {one.dataset for one in list_recipes(db)}
    new = sorted(names - set(open_instance().get_dynamic_partitions(str(PARTITIONS.name)))) if names else []
    requests: Sequence[dg.AddDynamicPartitionsRequest] = [PARTITIONS.build_add_request(new)] if new else []
    made = sum(one.recipe.last_error is None for one in taken)
    return dg.SensorResult(
        skip_reason=f"{made} exports made, {len(taken) - made} recipes failed."
        if taken
        else "No recipe is due.",
        dynamic_partitions_requests=requests,
    )


assets: list[dg.AssetsDefinition] = []
asset_checks: list[dg.AssetChecksDefinition] = []
jobs: list[dg.JobDefinition] = []
sensors = [scheduled_recipes]
schedules: list[dg.ScheduleDefinition] = []
