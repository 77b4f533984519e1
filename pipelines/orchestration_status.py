"""Report of Dagster's state into the service's database, where the API reads it. Contract §9.

The API does not know Dagster. A sensor writes which sensors and schedules are switched off and when each
daemon sent its last heartbeat; the age of the report says whether Dagster runs at all. The same sensor
fails the runs whose process is gone, and stores the limit of the pool of exports.
"""

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorStatus

from pipelines.dagster_runs import dagster_instance_of, fail_dagster_runs_without_process
from pipelines.export_slots import store_export_pool_limit
from pipelines.resources import RecorderResource
from recorder import clock
from recorder.service_state import DagsterStatus, store_service_statuses


def read_dagster_statuses(
    instance: dg.DagsterInstance, *, sensors: list[str], schedules: list[str]
) -> list[DagsterStatus]:
    """Return what Dagster knows of these sensors and schedules, and of its daemons.

    All of the service's own run by default, so Dagster stores a state only for those that a user switched.
    """
    off = {
        (state.instigator_type.value, state.instigator_name)
        for state in instance.all_instigator_state(instigator_statuses={InstigatorStatus.STOPPED})
    }
    now = clock.now()
    statuses = [DagsterStatus("sensor", name, ("SENSOR", name) not in off, now) for name in sensors]
    statuses += [DagsterStatus("schedule", name, ("SCHEDULE", name) not in off, now) for name in schedules]
    heartbeats = instance.get_daemon_heartbeats()
    for kind in instance.get_required_daemon_types():
        if kind in heartbeats:
            seen_at = clock.from_ms(int(heartbeats[kind].timestamp * 1000))
            statuses.append(DagsterStatus("daemon", kind, True, seen_at))
    return statuses


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports to the service what is switched off, and ends runs whose process is gone.",
)
def orchestration_status(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Store which sensors and schedules are switched off, and fail runs without a process; starts no run."""
    repository = context.repository_def
    assert repository is not None
    instance = dagster_instance_of(context)
    store_export_pool_limit(instance)
    fail_dagster_runs_without_process(instance)
    return report_orchestration_statuses(instance, RecorderResource(), repository)


def report_orchestration_statuses(
    instance: dg.DagsterInstance, recorder: RecorderResource, repository: dg.RepositoryDefinition
) -> dg.SkipReason:
    """Store the statuses of a repository's sensors and schedules where they changed."""
    statuses = read_dagster_statuses(
        instance,
        sensors=[sensor.name for sensor in repository.sensor_defs],
        schedules=[schedule.name for schedule in repository.schedule_defs],
    )
    is_stored = store_service_statuses(recorder.runtime.database, statuses)
    off = [status.name for status in statuses if not status.is_on]
    return dg.SkipReason(
        f"{'Reported' if is_stored else 'Unchanged'}; switched off: {', '.join(off) or 'none'}."
    )


defs = dg.Definitions(sensors=[orchestration_status])
