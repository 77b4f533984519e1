"""Dagster definitions of all subjects: assets, checks, jobs, sensors and schedules. Design §2."""

import dagster as dg

from recorder.garbage_collector import paused_garbage_collection

# Each Dagster run is a process that imports them again.
with paused_garbage_collection():
    from pipelines import (
        dagster_record_job,
        drift,
        export_queue,
        exports,
        lake,
        live_replays,
        memory,
        orchestration_status,
        replays,
        retention,
        sealing,
    )
    from pipelines.resources import make_recorder_resource

defs = dg.Definitions.merge(
    sealing.defs,
    memory.defs,
    drift.defs,
    exports.defs,
    export_queue.defs,
    replays.defs,
    live_replays.defs,
    retention.defs,
    lake.defs,
    dagster_record_job.defs,
    orchestration_status.defs,
    dg.Definitions(
        resources={"recorder": make_recorder_resource()},
        # Each step is one call into `recorder`; a process per step costs seconds (decision 0006).
        executor=dg.in_process_executor,
    ),
)
