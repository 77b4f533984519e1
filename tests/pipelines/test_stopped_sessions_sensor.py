"""Sensor of drain runs: conditions under which it starts one."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from pipelines import dagster_runs as runs
from pipelines import sealing
from pipelines.resources import RecorderResource
from pipelines.sealing import poll_lanes_for_drain_run, request_sealing_drain_run
from recorder import clock
from recorder.sealing import open_sealer
from tests.support.waiting_sessions import stop_sessions

JOB = "seal_stopped_sessions"
DEFINITIONS = dg.Definitions(
    assets=[sealing.sealing], jobs=[sealing.seal_stopped_sessions], resources={"recorder": RecorderResource()}
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def tick(instance: dg.DagsterInstance, recorder: RecorderResource) -> dg.RunRequest | dg.SkipReason:
    """Return the result of a tick of the sensor."""
    answer = request_sealing_drain_run(lambda: instance, recorder)
    assert isinstance(answer, dg.RunRequest | dg.SkipReason)
    return answer


def make_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> str:
    """A record of a drain run; returns its id."""
    job = DEFINITIONS.resolve_job_def(JOB)
    # A queued run must say where its code is; there is no public way to make one.
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("recorder"), "__repository__")
    origin = repository.get_job_origin(JOB)
    return instance.create_run_for_job(job, status=status, remote_job_origin=origin).run_id


def test_a_stopped_session_starts_a_run(instance: dg.DagsterInstance, recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime)
    assert isinstance(tick(instance, recorder), dg.RunRequest)


def test_without_work_there_is_nothing_to_start(recorder: RecorderResource) -> None:
    assert poll_lanes_for_drain_run(recorder.runtime.database, runs=2, seconds=0) == "no session has stopped"


def test_while_all_places_are_taken_no_other_run_starts(
    instance: dg.DagsterInstance, recorder: RecorderResource
) -> None:
    stop_sessions(recorder.runtime)
    with ExitStack() as runs_at_work:
        for number in range(recorder.runtime.settings.seal_runs):
            assert runs_at_work.enter_context(open_sealer(recorder.runtime, f"run {number}"))
        assert isinstance(tick(instance, recorder), dg.SkipReason)


def test_a_second_run_starts_when_the_first_does_not_keep_up(
    recorder: RecorderResource,
) -> None:
    stop_sessions(recorder.runtime)
    database = recorder.runtime.database
    with open_sealer(recorder.runtime, "a run"):
        assert (
            poll_lanes_for_drain_run(database, runs=2, seconds=0, busy_after_s=3600)
            == "the runs at work keep up"
        )
        assert poll_lanes_for_drain_run(database, runs=2, seconds=0, busy_after_s=0) == "work waits"
        assert poll_lanes_for_drain_run(database, runs=1, seconds=0) == "enough runs are at work"


def advance_clock(monkeypatch: pytest.MonkeyPatch, span: timedelta) -> None:
    """Let the service's clock be ahead, as after so long."""
    later = clock.now() + span
    monkeypatch.setattr(clock, "now", lambda: later)
    monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(later))


@pytest.mark.parametrize("status", ["QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_while_a_run_comes_up_no_other_starts(
    instance: dg.DagsterInstance, recorder: RecorderResource, status: str
) -> None:
    stop_sessions(recorder.runtime)
    make_run(instance, dg.DagsterRunStatus[status])
    assert isinstance(tick(instance, recorder), dg.SkipReason)


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_a_run_that_lost_its_process_is_marked_and_followed(
    instance: dg.DagsterInstance, recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    stop_sessions(recorder.runtime)
    lost = make_run(instance, dg.DagsterRunStatus[status])
    advance_clock(monkeypatch, timedelta(minutes=2))
    assert isinstance(tick(instance, recorder), dg.RunRequest)
    run = instance.get_run_by_id(lost)
    assert run is not None and run.status == dg.DagsterRunStatus.FAILURE


def test_a_waiting_run_is_never_taken_for_lost(
    instance: dg.DagsterInstance, recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_sessions(recorder.runtime)
    make_run(instance, dg.DagsterRunStatus.QUEUED)
    advance_clock(monkeypatch, timedelta(minutes=2))
    assert isinstance(tick(instance, recorder), dg.SkipReason)


def test_after_a_failed_run_the_next_one_waits(
    instance: dg.DagsterInstance, recorder: RecorderResource
) -> None:
    stop_sessions(recorder.runtime)
    make_run(instance, dg.DagsterRunStatus.FAILURE)
    assert isinstance(tick(instance, recorder), dg.SkipReason)


def test_the_pause_doubles_with_every_failure_and_ends_with_a_success(instance: dg.DagsterInstance) -> None:
    make_run(instance, dg.DagsterRunStatus.FAILURE)
    first = runs.compute_pause_after_failed_runs(instance, JOB)
    make_run(instance, dg.DagsterRunStatus.FAILURE)
    two = runs.compute_pause_after_failed_runs(instance, JOB)
    make_run(instance, dg.DagsterRunStatus.SUCCESS)
    assert 0 < first <= 5 < two <= 10
    assert runs.compute_pause_after_failed_runs(instance, JOB) == 0
