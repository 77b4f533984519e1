"""Definitions of exports with a short lease, for a daemon whose runs are killed."""

from functools import partial

import dagster as dg

from pipelines import exports
from pipelines.resources import RecorderResource

quick = partial(RecorderResource, export_lease_s=3, export_pause_s=6)
# The sensor makes its resource itself.
vars(exports)["RecorderResource"] = quick

defs = dg.Definitions.merge(
    exports.defs, dg.Definitions(resources={"recorder": quick()}, executor=dg.in_process_executor)
)
