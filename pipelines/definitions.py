"""Everything Dagster loads: the subjects' assets, checks, jobs, sensors and schedules. Design §2."""

import dagster as dg

from pipelines import drift, exports, memory, orchestration_status, recipes, sealing
from pipelines.resources import RecorderResource

_SUBJECTS = (sealing, memory, drift, exports, recipes, orchestration_status)

defs = dg.Definitions(
    assets=[asset for subject in _SUBJECTS for asset in subject.assets],
    asset_checks=[check for subject in _SUBJECTS for check in subject.asset_checks],
    jobs=[job for subject in _SUBJECTS for job in subject.jobs],
    sensors=[sensor for subject in _SUBJECTS for sensor in subject.sensors],
    schedules=[schedule for subject in _SUBJECTS for schedule in subject.schedules],
    resources={"recorder": RecorderResource()},
    # A step of ours is one call into the recorder; a process per step would cost seconds and buy nothing.
    executor=dg.in_process_executor,
)
