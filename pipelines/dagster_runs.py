"""Requests for Dagster runs: the pause after failed ones, queued ones, and lost ones marked as failed.

Design §3.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from recorder import clock

#: Tag whose values the run queue limits; `dagster.yaml` of running deployments has its name, which stays.
QUEUE_TAG = "recorder/lane"

_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# From launch a process needs 2 s to begin, on a busy machine 20; then a moment until it holds its lease.
_TO_START = timedelta(seconds=60)
_TO_TAKE_THE_LEASE = timedelta(seconds=20)
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0


def request_dagster_run(
    instance: dg.DagsterInstance,
    job_name: str,
    *,
    at_work: Collection[str] = (),
    longest_pause_s: float = _LONGEST_PAUSE_S,
) -> dg.RunRequest | dg.SkipReason:
    """Request a run of a job unless one is coming up, or the last ones failed a moment ago.

    Args:
        instance: Dagster instance of the deployment.
        job_name: name of the job.
        at_work: ids of the runs that hold a lease now.
        longest_pause_s: longest pause after runs that failed.
    """
    if is_dagster_run_coming_up(instance, job_name, at_work=at_work):
        return dg.SkipReason("A run is coming up.")
    pause_s = compute_pause_after_failed_runs(instance, job_name, longest_s=longest_pause_s)
    if pause_s:
        return dg.SkipReason(f"The last runs failed; the next one starts in {pause_s:.0f} s.")
    return dg.RunRequest()


def is_dagster_run_coming_up(
    instance: dg.DagsterInstance, job_name: str, *, at_work: Collection[str] = ()
) -> bool:
    """Return whether a run of this job waits in the queue or is so young that it cannot hold its lease yet.

    An older run that holds no lease and still counts as at work has lost its process
    (Dagster does not watch local ones after a restart of the code server): it is marked as failed, so that
    it does not hold its place in the queue's limits.

    Args:
        instance: Dagster instance of the deployment.
        job_name: name of the job.
        at_work: ids of the runs that hold a lease now.
    """
    waiting = dg.RunsFilter(job_name=job_name, statuses=[dg.DagsterRunStatus.QUEUED])
    unfinished = instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=_UNFINISHED))
    without_lease = [record for record in unfinished if record.dagster_run.run_id not in at_work]
    lost = [record for record in without_lease if _is_run_overdue(record)]
    fail_lost_dagster_runs(instance, lost)
    return len(lost) < len(without_lease) or instance.get_runs_count(waiting) > 0


def fail_lost_dagster_runs(instance: dg.DagsterInstance, records: Sequence[dg.RunRecord]) -> None:
    """Mark runs as failed that still count as at work although the lease of their work is free."""
    for record in records:
        if record.dagster_run.status in _UNFINISHED:
            instance.report_run_failed(record.dagster_run, "The run's process is gone; its lease ran out.")


def compute_pause_after_failed_runs(
    instance: dg.DagsterInstance,
    job_name: str,
    *,
    longest_s: float = _LONGEST_PAUSE_S,
    tags: Mapping[str, str] | None = None,
) -> float:
    """Return the seconds to wait before the next run, given the last ones that failed in a row.

    Doubles with every failure, so that an error that stays does not fill the run list.

    Args:
        instance: Dagster instance of the deployment.
        job_name: name of the job.
        longest_s: longest pause.
        tags: tags of the runs that count; by default all of the job do.
    """
    finished = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    counted = dg.RunsFilter(job_name=job_name, statuses=finished, tags=tags)
    records = instance.get_run_records(counted, limit=8)
    failures = 0
    for record in records:
        if record.dagster_run.status != dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if not failures:
        return 0.0
    ended = records[0].end_time or records[0].update_timestamp.timestamp()
    pause = min(longest_s, _FIRST_PAUSE_S * 2.0 ** (failures - 1))
    return max(0.0, ended + pause - clock.now_ms() / 1000)


def _is_run_overdue(record: dg.RunRecord) -> bool:
    is_launched = record.dagster_run.status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)
    patience = _TO_START if is_launched else _TO_TAKE_THE_LEASE
    return clock.now() - record.update_timestamp > patience


_lock = threading.Lock()
_opened: tuple[InstanceRef, dg.DagsterInstance] | None = None


def dagster_instance_of(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    """Return the instance that a tick belongs to."""
    global _opened
    ref = context.instance_ref
    if ref is None:  # in a test, which has an instance of its own
        return context.instance
    with _lock:
        if _opened is None or _opened[0] != ref:
            _opened = ref, dg.DagsterInstance.from_ref(ref)
        return _opened[1]
