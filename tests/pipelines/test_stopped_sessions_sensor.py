"""Sensor of drain runs: conditions under which it starts one."""

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import dagster as dg
import pytest
import yaml
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from pipelines import dagster_runs as runs
from pipelines import sealing
from pipelines.resources import RecorderResource
from pipelines.sealing import poll_lanes_for_sealing_run, request_sealing_drain_run
from recorder import clock
from recorder.sealing import open_sealer
from tests.support.project_texts import ROOT
from tests.support.waiting_sessions import stop_sessions

JOB = "seal_stopped_sessions"
DEFINITIONS = dg.Definitions(
    assets=[sealing.sealing], jobs=[sealing.seal_stopped_sessions], resources={"recorder": RecorderResource()}
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Yield a Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def tick(instance: dg.DagsterInstance, recorder: RecorderResource) -> dg.RunRequest | dg.SkipReason:
    """Return the result of a tick of the sensor."""
    answer = request_sealing_drain_run(lambda: instance, recorder)
    assert isinstance(answer, dg.RunRequest | dg.SkipReason)
    return answer


def make_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> str:
    """Create a record of a drain run; return its id."""
    job = DEFINITIONS.resolve_job_def(JOB)
    # A queued run must say where its code is; there is no public way to make one.
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("recorder"), "__repository__")
    origin = repository.get_job_origin(JOB)
    return instance.create_run_for_job(job, status=status, remote_job_origin=origin).run_id


def test_a_stopped_session_starts_a_run(instance: dg.DagsterInstance, recorder: RecorderResource) -> None:
    stop_sessions(recorder.runtime)
    assert isinstance(tick(instance, recorder), dg.RunRequest)


def test_without_work_there_is_nothing_to_start(recorder: RecorderResource) -> None:
    state = poll_lanes_for_sealing_run(recorder.runtime.database, runs=2, seconds=0)
    assert state == "no session has stopped"


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
            poll_lanes_for_sealing_run(database, runs=2, seconds=0, busy_after_s=3600)
            == "the runs at work keep up"
        )
        assert poll_lanes_for_sealing_run(database, runs=2, seconds=0, busy_after_s=0) == "work waits"
        assert poll_lanes_for_sealing_run(database, runs=1, seconds=0) == "enough runs are at work"


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


def read_status(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the name of a run's status."""
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status.value


def make_run_of_process(instance: dg.DagsterInstance, status: str, process_id: int) -> str:
    """Make a run that Dagster's default launcher started a process for; return its id."""
    run_id = make_run(instance, dg.DagsterRunStatus[status])
    run = instance.get_run_by_id(run_id)
    instance.report_engine_event("Started process for run.", run, EngineEventData.in_process(process_id))
    return run_id


@pytest.fixture
def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_a_run_without_a_process_is_marked_and_followed(
    instance: dg.DagsterInstance, recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    stop_sessions(recorder.runtime)
    lost = make_run(instance, dg.DagsterRunStatus[status])
    advance_clock(monkeypatch, timedelta(minutes=4))
    assert isinstance(tick(instance, recorder), dg.RunRequest)
    assert read_status(instance, lost) == "FAILURE"


@pytest.mark.parametrize(("launched_earlier", "is_lost"), [(True, True), (False, False)])
def test_a_run_may_have_its_process_later_unless_its_code_server_is_gone(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, launched_earlier: bool, is_lost: bool
) -> None:
    run_id = make_run(instance, dg.DagsterRunStatus.STARTING)
    [record] = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
    if launched_earlier:
        record = record._replace(update_timestamp=record.update_timestamp - timedelta(days=1))
    later = record.update_timestamp + timedelta(seconds=100)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert runs.fail_lost_dagster_run(instance, record) == is_lost
    assert read_status(instance, run_id) == ("FAILURE" if is_lost else "STARTING")


def test_a_run_whose_process_lives_is_not_marked_and_another_may_start(
    instance: dg.DagsterInstance, recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_sessions(recorder.runtime)
    run_id = make_run_of_process(instance, "STARTED", os.getpid())
    for seconds, expected in ((45, dg.SkipReason), (70, dg.RunRequest), (4_000, dg.RunRequest)):
        with monkeypatch.context() as patch:
            advance_clock(patch, timedelta(seconds=seconds))
            assert isinstance(tick(instance, recorder), expected)
        assert read_status(instance, run_id) == "STARTED"


def test_a_run_that_is_seen_without_a_lease_for_ten_minutes_is_marked(
    instance: dg.DagsterInstance, recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_sessions(recorder.runtime)
    run_id = make_run_of_process(instance, "STARTED", os.getpid())
    advance_clock(monkeypatch, timedelta(hours=2))
    began = time.monotonic()
    seen = []
    # It had a lease while it was not seen, from the second 300 on.
    for second in [*range(0, 300, 30), *range(900, 1_540, 30)]:
        monkeypatch.setattr(time, "monotonic", lambda second=second: began + second)
        tick(instance, recorder)
        seen.append((second, read_status(instance, run_id)))
    assert [second for second, status in seen if status == "FAILURE"] == [1_530]


@pytest.mark.parametrize("hours", [1, -1])
def test_a_run_whose_process_is_gone_is_marked_whatever_the_clock_says(
    instance: dg.DagsterInstance,
    recorder: RecorderResource,
    monkeypatch: pytest.MonkeyPatch,
    ended_process: int,
    hours: int,
) -> None:
    stop_sessions(recorder.runtime)
    run_id = make_run_of_process(instance, "STARTING", ended_process)
    advance_clock(monkeypatch, timedelta(hours=hours))
    tick(instance, recorder)
    assert read_status(instance, run_id) == "FAILURE"


@pytest.mark.parametrize(("named_s_ago", "expected"), [(3_600, "FAILURE"), (0, "STARTED")])
def test_a_run_is_lost_when_its_process_number_belongs_to_a_later_process(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, named_s_ago: int, expected: str
) -> None:
    run_id = make_run(instance, dg.DagsterRunStatus.STARTED)
    with subprocess.Popen(["sleep", "60"]) as process:
        event = DagsterEvent(
            dg.DagsterEventType.ENGINE_EVENT.value,
            JOB,
            message="Started process for run.",
            event_specific_data=EngineEventData.in_process(process.pid),
        )
        named_at = clock.now().timestamp() - named_s_ago
        instance.store_event(
            dg.EventLogEntry(None, logging.INFO, "", run_id, named_at, job_name=JOB, dagster_event=event)
        )
        # Also after the clock was set forward.
        advance_clock(monkeypatch, timedelta(hours=2))
        runs.fail_dagster_runs_without_process(instance)
        process.kill()
    assert read_status(instance, run_id) == expected


def test_a_run_that_ended_since_it_was_listed_keeps_its_status(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, ended_process: int
) -> None:
    run_id = make_run_of_process(instance, "STARTED", ended_process)
    [record] = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
    success = DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, JOB)
    instance.report_dagster_event(success, run_id)
    advance_clock(monkeypatch, timedelta(minutes=1))
    assert runs.fail_lost_dagster_run(instance, record)
    assert read_status(instance, run_id) == "SUCCESS"


@pytest.mark.parametrize("folder", ["dagster_home", "deploy/dagster_home"])
def test_dagster_leaves_starting_runs_to_the_sensors(folder: str) -> None:
    settings = yaml.safe_load((ROOT / folder / "dagster.yaml").read_text())
    assert settings["run_monitoring"]["start_timeout_seconds"] > runs.LONGEST_WITHOUT_LEASE_S


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


def test_after_the_clock_was_set_back_a_failed_run_is_followed(
    instance: dg.DagsterInstance, recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_sessions(recorder.runtime)
    make_run(instance, dg.DagsterRunStatus.FAILURE)
    advance_clock(monkeypatch, timedelta(hours=-5))
    assert isinstance(tick(instance, recorder), dg.RunRequest)


def test_the_pause_doubles_with_every_failure_and_ends_with_a_success(instance: dg.DagsterInstance) -> None:
    make_run(instance, dg.DagsterRunStatus.FAILURE)
    first = runs.compute_pause_after_failed_runs(instance, JOB)
    make_run(instance, dg.DagsterRunStatus.FAILURE)
    two = runs.compute_pause_after_failed_runs(instance, JOB)
    make_run(instance, dg.DagsterRunStatus.SUCCESS)
    assert 0 < first <= 5 < two <= 10
    assert runs.compute_pause_after_failed_runs(instance, JOB) == 0
