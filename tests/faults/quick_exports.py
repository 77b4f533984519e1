"""Definitions of exports with a short lease, for a daemon whose runs are killed."""

from functools import partial

import dagster as dg

from pipelines import export_queue, exports
from pipelines.resources import RecorderResource

quick = partial(RecorderResource, export_lease_s=3, export_pause_s=6)
# The sensors make their resource themselves.
for module in (exports, export_queue):
    assert vars(module)["RecorderResource"] is RecorderResource
    vars(module)["RecorderResource"] = quick

defs = dg.Definitions.merge(
    exports.defs,
    export_queue.defs,
    dg.Definitions(resources={"recorder": quick()}, executor=dg.in_process_executor),
)
