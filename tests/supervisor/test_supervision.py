"""Rules of supervision with a clock of the test: silence, pauses, the folder's lock, pulses."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recorder.heartbeat import HeartbeatReader, write_heartbeat
from recorder.supervisor.guard_handle import GuardProcess
from recorder.supervisor.liveness import Liveness, RestartPauses
from recorder.supervisor.output import WarningPrinter
from recorder.supervisor.processes import ChildFailed, ChildProcess, Command, end_leftover_processes
from recorder.supervisor.run_records import SERVICE, AlreadyRunning, RunRecord
from tests.support.deployment_processes import ROOT


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    """Return a clock that does not advance."""
    return Clock()


def ask(liveness: Liveness, *answers: bool) -> None:
    """Note the results of questions of this life."""
    for answer in answers:
        liveness.note(answer, starts=liveness.starts)


def test_a_process_is_silent_once_it_has_not_answered_for_so_long(clock: Clock) -> None:
    liveness = Liveness(silence_s=30, now=clock)
    ask(liveness, True)
    clock.at += 29
    ask(liveness, False, False)
    assert not liveness.is_silent
    clock.at += 2
    assert liveness.is_silent
    ask(liveness, True)
    assert not liveness.is_silent and liveness.is_answering


def test_a_silence_that_nobody_asked_into_is_none(clock: Clock) -> None:
    liveness = Liveness(silence_s=30, now=clock)
    ask(liveness, True)
    clock.at += 500  # the supervisor itself was stopped
    assert not liveness.is_silent
    ask(liveness, False)
    assert not liveness.is_silent
    ask(liveness, False)
    assert liveness.is_silent


def test_a_start_gets_three_times_as_long(clock: Clock) -> None:
    liveness = Liveness(silence_s=30, now=clock)
    clock.at += 500
    liveness.begin()
    ask(liveness, False, False, False)
    clock.at += 90
    assert not liveness.is_silent
    clock.at += 1
    assert liveness.is_silent


def test_an_answer_of_an_earlier_life_does_not_count(clock: Clock) -> None:
    liveness = Liveness(silence_s=30, now=clock)
    earlier = liveness.starts
    liveness.begin()
    assert not liveness.note(True, starts=earlier) and not liveness.is_answering
    assert liveness.note(True, starts=liveness.starts)
    assert not liveness.note(True, starts=liveness.starts)


def test_who_waits_for_another_process_is_excused(clock: Clock) -> None:
    liveness = Liveness(silence_s=30, now=clock)
    ask(liveness, True)
    clock.at += 40
    ask(liveness, False, False)
    liveness.excuse()
    ask(liveness, False, False)
    assert not liveness.is_silent
    clock.at += 31
    assert liveness.is_silent


def test_pauses_double_to_a_minute_and_begin_again_after_five_good_minutes() -> None:
    pauses = RestartPauses()
    assert [pauses.next(healthy_s=10) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pauses.next(healthy_s=299) == 60
    assert [pauses.next(healthy_s=300), pauses.next(healthy_s=0)] == [1, 2]
    # A process that ends again and again is started for days.
    assert [pauses.next(healthy_s=0) for _ in range(2_000)][-1] == 60


def make_child(folder: Path, clock: Clock, *, answers: Callable[[], bool] = lambda: True) -> ChildProcess:
    """Return a child that ends at once; it is never started unless the test does."""
    command = Command(
        name="part",
        arguments=[sys.executable, "-c", "print('said')"],
        environment={},
        log=folder / "part.log",
        is_ready=lambda: True,
        answers=answers,
    )
    return ChildProcess(command, silence_s=30, now=clock)


def test_a_process_that_ends_again_and_again_is_started_after_growing_pauses(
    tmp_path: Path, clock: Clock
) -> None:
    child, guard = make_child(tmp_path, clock), GuardProcess()
    try:
        for pause in (1, 2, 4, 8, 16, 32, 60, 60):
            child.start(guard)
            child.wait(20)
            assert child.has_ended() and not child.is_due()
            assert child.plan_restart() == pause
            assert child.plan_restart() is None
            clock.at += pause - 0.01
            assert not child.is_due()
            clock.at += 0.02
            assert child.is_due()
            guard.release_group(child.pid)
    finally:
        guard.close()
    assert (tmp_path / "part.log").read_text() == "said\n" * 8


def test_the_pause_of_a_silent_process_began_with_its_silence(tmp_path: Path, clock: Clock) -> None:
    child, guard = make_child(tmp_path, clock), GuardProcess()
    planned = []
    try:
        for silent_s in (30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 5.0):
            child.start(guard)
            child.wait(20)
            planned.append(child.plan_restart(since_s=silent_s))
            guard.release_group(child.pid)
    finally:
        guard.close()
    assert planned == [1, 1, 1, 1, 1, 2, 55]


def test_a_stopped_process_is_killed_at_once_and_another_has_five_seconds(
    tmp_path: Path, clock: Clock
) -> None:
    sleeping = [sys.executable, "-c", "import signal, time; print('up', flush=True); time.sleep(60)"]
    command = Command(
        name="part",
        arguments=sleeping,
        environment={},
        log=tmp_path / "part.log",
        is_ready=lambda: True,
        answers=lambda: True,
    )
    guard = GuardProcess()
    child = ChildProcess(command, silence_s=30, now=clock)
    try:
        child.start(guard)
        while not (tmp_path / "part.log").read_text():
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)  # it takes a moment
        child.ask_to_end()
        assert child.is_overdue
        child.end_group()
        child.wait(10)
        assert child.has_ended()
        child.start(guard)
        clock.at += 40
        child.ask_to_end()
        child.liveness.excuse()  # begins the silence again
        assert child.silent_s == 40
        assert child.is_ending and not child.is_overdue
        clock.at += 5
        assert child.is_overdue
        child.wait(10)
        assert child.has_ended()
    finally:
        guard.close()


def test_a_folder_is_locked_by_one_service_and_free_once_it_has_ended(tmp_path: Path) -> None:
    first = RunRecord.hold(tmp_path, SERVICE, since="2026-05-01T08:00:00.000Z")
    first.update(api="http://127.0.0.1:8700")
    who = f"process {os.getpid()}, since 2026-05-01T08:00:00.000Z, at http://127.0.0.1:8700"
    with pytest.raises(AlreadyRunning, match=who):
        RunRecord.hold(tmp_path, SERVICE, wait_s=10)  # it does not wait for one that runs
    first.release()
    RunRecord.hold(tmp_path, SERVICE).release()


def test_what_a_killed_service_left_behind_is_waited_for(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, subprocess, sys\n"
        "from recorder.supervisor.run_records import SERVICE, RunRecord\n"
        f"record = RunRecord.hold(pathlib.Path({str(tmp_path)!r}), SERVICE)\n"
        "child = ['sleep', '1.5']\n"
        "subprocess.Popen(child, pass_fds=[record.descriptor])\n"
        "os._exit(9)\n"
    )
    # The killed process stays a zombie: who started it does not wait for it yet.
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as killed:
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(AlreadyRunning):
            RunRecord.hold(tmp_path, SERVICE)
        RunRecord.hold(tmp_path, SERVICE, wait_s=10).release()
        killed.wait()


def test_groups_of_a_killed_service_stay_in_its_record_until_they_are_ended(tmp_path: Path) -> None:
    first = RunRecord.hold(tmp_path, SERVICE)
    first.update(groups=[4711, 4712])
    first.release()
    second = RunRecord.hold(tmp_path, SERVICE, since="later")
    assert second.groups == [4711, 4712]
    second.update(groups=[])
    second.release()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="leftovers are found in /proc")
def test_leftovers_are_ended_and_other_processes_are_not(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True); time.sleep(60)"
    )

    def start(folder: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-c", deaf],
            env={"RECORDER_DATA_DIR": folder},
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert started.stdout is not None and started.stdout.readline()
        return started

    # One of the service, one of another folder whose number is in the record, one that is in no record.
    ours, others, unrecorded = start("/data"), start("/data-2"), start("/data")
    try:
        groups = [ours.pid, others.pid]
        assert end_leftover_processes(groups, "RECORDER_DATA_DIR=/data", grace_s=0.2) == 1
        assert ours.wait(10) == -signal.SIGKILL
        assert others.poll() is None and unrecorded.poll() is None
        assert end_leftover_processes(groups, "RECORDER_DATA_DIR=/data", grace_s=0.2) == 0
    finally:
        for process in (ours, others, unrecorded):
            process.kill()
            process.communicate()


def test_a_group_that_was_released_outlives_the_guard() -> None:
    guard = GuardProcess()
    sleepers = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    watched, released = sleepers
    try:
        for sleeper in sleepers:
            guard.watch_group(sleeper.pid)
        guard.release_group(released.pid)
        guard.close()
        assert watched.wait(10) < 0 and released.poll() is None
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_a_guard_that_was_killed_has_a_successor(tmp_path: Path, clock: Clock) -> None:
    changes: list[list[int]] = []
    guard, child = GuardProcess(on_change=changes.append), make_child(tmp_path, clock)
    child.start(guard)
    assert not guard.restart_if_ended() and changes == [[child.pid]]
    guard._process.kill()
    guard._process.wait()
    guard.release_group(child.pid)  # it tells nobody, and does not fail
    assert changes == [[child.pid], []]
    assert guard.restart_if_ended() and not guard.restart_if_ended()
    child.wait(20)
    guard.close()


@pytest.mark.parametrize(
    ("last", "exit_code", "said"),
    [
        (
            '{"level": "error", "event": "RECORDER_REGION takes one of us, eu, apac."}',
            78,
            "RECORDER_REGION takes",
        ),
        ('{"level": "error", "event": "the process cannot start"}', 1, "The part did not start; its log is"),
        ("\x1b[31mValueError: no\x1b[0m\n", 1, "The last line: ValueError: no"),
    ],
    ids=["refused", "defect", "trace"],
)
def test_a_child_that_did_not_start_is_one_sentence(
    tmp_path: Path, clock: Clock, last: str, exit_code: int, said: str
) -> None:
    child = make_child(tmp_path, clock)
    child.command.log.write_text(f"Traceback (most recent call last):\n  File x\n{last}\n")
    message = str(ChildFailed(child.command, exit_code=exit_code))
    assert said in message and "\n" not in message and "Traceback" not in message and "\x1b" not in message


def test_a_pulse_is_one_that_came_since_the_last_look(tmp_path: Path) -> None:
    path = tmp_path / "run" / "part.pulse"
    write_heartbeat(path)
    reader = HeartbeatReader(path)  # a file that an earlier service left
    assert not reader.has_beaten()
    os.utime(path, ns=(1, 1))
    assert reader.has_beaten() and not reader.has_beaten()
    write_heartbeat(path)
    assert reader.has_beaten()
    path.unlink()
    assert not reader.has_beaten()


def test_silence_of_dagster_is_not_printed_before_its_first_report_is_due() -> None:
    printed: list[str] = []
    watch = WarningPrinter("http://127.0.0.1:1/readyz", printed.append, has_dagster=True)
    watch.take({"warnings": [{"code": "dagster_silent", "message": "Dagster is silent."}]})
    assert printed == []


def test_a_warning_is_printed_when_it_appears_and_when_it_goes(clock: Clock) -> None:
    said: list[str] = []
    url = "http://127.0.0.1:1/readyz"
    watch = WarningPrinter(url, said.append, has_dagster=True, first_report_s=0.0, now=clock)
    fine = {"database": "ok", "lake": "ok"}
    watch.take({"parts": fine, "warnings": [{"code": "sealing_behind", "message": "waiting: 3, for 119 s"}]})
    clock.at += 80
    watch.take({"parts": fine, "warnings": [{"code": "sealing_behind", "message": "waiting: 4, for 3 min"}]})
    watch.take({"parts": {**fine, "lake": "unavailable"}, "warnings": []})
    clock.at += 125
    watch.take({"parts": fine, "warnings": [{"code": "dagster_silent", "message": "Dagster is silent."}]})
    assert said == [
        "Warning  sealing_behind: waiting: 3, for 119 s",
        "Warning  unavailable: The lake does not answer; requests get 503.",
        "Ended    sealing_behind, after 80 s",
        "Warning  dagster_silent: Dagster is silent.",
        "Ended    unavailable (lake), after 2 min",
    ]


def test_of_warnings_with_one_code_the_new_ones_are_printed(clock: Clock) -> None:
    said: list[str] = []
    watch = WarningPrinter("http://127.0.0.1:1/readyz", said.append, has_dagster=True, now=clock)
    first, second = ({"code": "sensor_off", "message": f"`{name}` is off."} for name in ("b", "a"))
    for warnings in ([first], [second, first], [second], []):
        watch.take({"warnings": warnings})
        clock.at += 5
    assert said == [
        "Warning  sensor_off: `b` is off.",
        "Warning  sensor_off: `a` is off.",
        "Ended    sensor_off, after 15 s",
    ]


def test_without_dagster_its_silence_is_no_news() -> None:
    said: list[str] = []
    watch = WarningPrinter("http://127.0.0.1:1/readyz", said.append, has_dagster=False)
    watch.take({"warnings": [{"code": "dagster_silent", "message": "Dagster is silent."}]})
    assert said == []
