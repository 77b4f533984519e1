"""States of processes: running, ended, stopped, and their age."""

import os
import signal
import subprocess
import time

from recorder.process_states import is_process_running, is_process_stopped, measure_process_age
from tests.support.waiting import wait_for


def test_a_process_runs_until_it_ends_although_it_was_not_waited_for() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_process_running(process.pid)
        process.kill()
        wait_for(lambda: not is_process_running(process.pid))
    assert not is_process_running(process.pid)


def test_a_stopped_process_is_seen_as_stopped() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_process_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_process_stopped(process.pid))
        process.kill()


def test_the_age_of_a_process_is_the_time_since_it_started() -> None:
    began = time.monotonic()
    with subprocess.Popen(["sleep", "60"]) as process:
        time.sleep(0.3)
        age_s = measure_process_age(process.pid)
        elapsed_s = time.monotonic() - began
        process.kill()
    assert age_s is not None and 0.2 < age_s < elapsed_s + 0.1
    own_age_s = measure_process_age(os.getpid())
    assert own_age_s is not None and own_age_s > age_s


def test_the_age_of_an_ended_process_is_unknown() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert measure_process_age(process.pid) is None
