"""Requests for Dagster runs: the pause after failed ones, queued ones, and lost ones marked as failed.

Design §3.
"""

import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
from cachetools import LRUCache
from dagster._core.instance.ref import InstanceRef

from recorder import clock
from recorder.process_states import is_process_running, measure_process_age
from recorder.retries import compute_doubling_pause

#: Tag whose values the run queue limits; `dagster.yaml` of running deployments has its name, which stays.
QUEUE_TAG = "recorder/lane"

_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# From launch a process needs 2 s to begin, then a moment until it holds its lease; on a very busy machine a
# minute and more each. Another run may start beside one that takes longer.
_TO_START = timedelta(seconds=60)
_TO_TAKE_THE_LEASE = timedelta(seconds=20)
# A run that has no process yet, and whose code server still runs, may have one later.
_TO_HAVE_A_PROCESS = timedelta(seconds=180)
#: A run whose process lives may end its work, or wait for a busy machine, so long.
LONGEST_WITHOUT_LEASE_S = 600.0
#: Runs without a lease are seen every few seconds; one that was not seen for so long held its lease.
_SEEN_WITHIN_S = 60.0
_MOST_SEEN = 1_000
#: Unfinished runs have begun, so there are hardly more of them than slots in the queue.
_MOST_CHECKED = 100
_CODE_SERVER_STARTED = clock.now()
_AGE_AT_LOAD_S = measure_process_age(os.getpid())
# A process that started so much later than an event that names its number has the number of another one.
_START_TOLERANCE_S = 5.0
_HUNG = "The run has held no lease of its work for ten minutes."
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
    """Return whether a run of this job waits in the queue or was launched less than a minute ago.

    A run that holds no lease, still counts as at work and has lost its process is marked as failed, so that
    it does not hold its slot in the queue's limits: Dagster does not watch local processes after a
    restart of the code server.

    Args:
        instance: Dagster instance of the deployment.
        job_name: name of the job.
        at_work: ids of the runs that hold a lease now.
    """
    waiting = dg.RunsFilter(job_name=job_name, statuses=[dg.DagsterRunStatus.QUEUED])
    unfinished = instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=_UNFINISHED))
    without_lease = [record for record in unfinished if record.dagster_run.run_id not in at_work]
    is_starting = False
    for record in without_lease:
        if not fail_lost_dagster_run(instance, record):
            is_starting |= timedelta(0) <= _measure_age(record) <= _TO_START
    return is_starting or instance.get_runs_count(waiting) > 0


def fail_lost_dagster_run(
    instance: dg.DagsterInstance, record: dg.RunRecord, *, needs_lease: bool = True
) -> bool:
    """Mark a run as failed that counts as at work although its process is gone; return whether it was.

    Args:
        instance: Dagster instance of the deployment.
        record: a run that holds no lease of its work, or has ended.
        needs_lease: whether a run is lost too without a known process, or after ten minutes without a lease;
            one that has done its work, or does that of several exports, needs none.
    """
    reason = _find_loss(instance, record, needs_lease=needs_lease)
    if reason is None:
        return False
    # It may have ended since it was listed.
    run = instance.get_run_by_id(record.dagster_run.run_id)
    if run is not None and run.status in _UNFINISHED:
        instance.report_run_failed(run, reason)
    return True


def fail_dagster_runs_without_process(instance: dg.DagsterInstance) -> int:
    """Mark the runs of all jobs as failed whose processes are gone; return how many they were.

    Dagster does not watch local processes that another code server started: each such run would hold one of
    the queue's slots.
    """
    unfinished = instance.get_run_records(dg.RunsFilter(statuses=_UNFINISHED), limit=_MOST_CHECKED)
    return sum(fail_lost_dagster_run(instance, record, needs_lease=False) for record in unfinished)


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
    pause = compute_doubling_pause(failures - 1, first=_FIRST_PAUSE_S, longest=longest_s)
    since_s = clock.now_ms() / 1000 - ended
    # After the clock was set back a run may have ended in the future; its pause counts as over.
    return max(0.0, pause - since_s) if since_s >= 0 else 0.0


def list_unfinished_dagster_runs(
    instance: dg.DagsterInstance, *, job_name: str | None = None
) -> Sequence[dg.RunRecord]:
    """Return the runs that wait in Dagster's queue or have begun, the newest first.

    Args:
        instance: Dagster instance of the deployment.
        job_name: job of the runs; None takes those of all jobs.
    """
    statuses = [dg.DagsterRunStatus.QUEUED, *_UNFINISHED]
    return instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=statuses))


def is_dagster_run_cancelled(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether a user cancelled a run that was interrupted; otherwise the service is stopping."""
    run = instance.get_run_by_id(run_id)
    return run is not None and run.status == dg.DagsterRunStatus.CANCELING


def _find_loss(instance: dg.DagsterInstance, record: dg.RunRecord, *, needs_lease: bool) -> str | None:
    """Return why a run without a lease counts as lost, as a sentence; None if it does not.

    Args:
        instance: Dagster instance of the deployment.
        record: a run; its process is of this machine, as those of Dagster's default launcher are.
        needs_lease: whether a run without a known process, or one that lives for ten minutes, counts as lost.
    """
    status, age = record.dagster_run.status, _measure_age(record)
    if status not in _UNFINISHED or timedelta(0) <= age <= _TO_TAKE_THE_LEASE:
        return None
    run_id = record.dagster_run.run_id
    process = _read_process(instance, run_id)
    if process is not None and not process.is_running():
        return "The run's process is gone."
    if not needs_lease:
        # Its time without a lease is not measured either: it may hold one.
        return None
    without_lease_s = _seen.measure_time_without_lease(run_id)
    if process is not None:
        return _HUNG if without_lease_s > LONGEST_WITHOUT_LEASE_S else None
    is_launched = status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)
    if not is_launched:
        patience = _TO_TAKE_THE_LEASE
    elif record.update_timestamp < _CODE_SERVER_STARTED:
        patience = _TO_START
    else:
        patience = _TO_HAVE_A_PROCESS
    # After a clock was set back the age is negative.
    waited = age if age >= timedelta(0) else timedelta(seconds=without_lease_s)
    return "The run has no process." if waited > patience else None


def _measure_age(record: dg.RunRecord) -> timedelta:
    """Return the time since the status of a run changed; it is negative after a clock was set back."""
    return clock.now() - record.update_timestamp


@dataclass(frozen=True)
class _RunProcess:
    """Process of a run, as an event of the run names it."""

    process_id: int
    #: Time of the event, in seconds; the process had started.
    named_at: float

    def is_running(self) -> bool:
        """Return whether the process runs, and not a later one that has its number now."""
        if not is_process_running(self.process_id):
            return False
        age_s = measure_process_age(self.process_id)
        if age_s is None:
            return True
        started = clock.now().timestamp() - age_s - _measure_clock_advance()
        return started <= self.named_at + _START_TOLERANCE_S


def _measure_clock_advance() -> float:
    """Return the seconds by which the clock was set forward since this process loaded its code."""
    age_s = measure_process_age(os.getpid())
    if age_s is None or _AGE_AT_LOAD_S is None:
        return 0.0
    by_clock = (clock.now() - _CODE_SERVER_STARTED).total_seconds()
    return max(0.0, by_clock - (age_s - _AGE_AT_LOAD_S))


def _read_process(instance: dg.DagsterInstance, run_id: str) -> _RunProcess | None:
    """Return the process that Dagster started for a run; None if no event names one yet."""
    kind = dg.DagsterEventType.ENGINE_EVENT
    for record in instance.get_records_for_run(run_id, of_type=kind, limit=20, ascending=False).records:
        event = record.event_log_entry.get_dagster_event()
        value = event.engine_event_data.metadata.get("pid")
        if value is not None:
            return _RunProcess(int(str(value.value)), record.event_log_entry.timestamp)
    return None


class _RunsWithoutLease:
    """Times at which this code server saw runs without a lease, by the monotonic clock."""

    def __init__(self) -> None:
        """Begin without runs."""
        self._lock = threading.Lock()
        #: First and last time of each run.
        self._times: LRUCache[str, tuple[float, float]] = LRUCache(maxsize=_MOST_SEEN)

    def measure_time_without_lease(self, run_id: str) -> float:
        """Return the seconds since a run was first seen without a lease, and note that it is now."""
        now = time.monotonic()
        with self._lock:
            first, last = self._times.get(run_id, (now, now))
            if now - last > _SEEN_WITHIN_S:
                first = now
            self._times[run_id] = first, now
        return now - first


_seen = _RunsWithoutLease()
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
