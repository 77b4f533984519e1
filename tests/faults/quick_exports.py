"""The exports' definitions with a short lease, for a daemon whose runs are killed."""

import dagster as dg

from pipelines import exports, recipes
from pipelines.resources import RecorderResource

defs = dg.Definitions(
    assets=exports.assets,
    jobs=exports.jobs,
    sensors=[*exports.sensors, *recipes.sensors],
    resources={"recorder": RecorderResource(export_lease_s=3, export_pause_s=6)},
    executor=dg.in_process_executor,
)
