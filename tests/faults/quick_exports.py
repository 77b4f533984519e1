"""The exports' definitions with a short lease, for a daemon whose runs are killed."""

from functools import partial

import dagster as dg

from pipelines import exports, recipes
from pipelines.resources import RecorderResource

quick = partial(RecorderResource, export_lease_s=3, export_pause_s=6)
# The sensor makes its resource itself.
vars(exports)["RecorderResource"] = quick

defs = dg.Definitions(
    assets=exports.assets,
    jobs=exports.jobs,
    sensors=[*exports.sensors, *recipes.sensors],
    resources={"recorder": quick()},
    executor=dg.in_process_executor,
)
