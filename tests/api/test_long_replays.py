"""Dry replays that take long: they are computed beside the others, and end alone when they take too long."""

from typing import Any

import pytest

from recorder.replay_service.dry.dry_computation import DryComputation
from recorder.replay_service.dry.dry_process import DryProcess
from recorder.replay_service.replay_drain_run import ReplayDrainRun
from tests.support.factories import Caller
from tests.support.replay_requests import get_replay, post_replay
from tests.support.two_click_sessions import long_run, replay_all, sealed_run


def test_a_replay_that_takes_long_is_computed_beside_the_others(caller: Caller) -> None:
    slow = post_replay(caller, long_run(caller), policy={"on_divergence": "skip"})["id"]
    quick = post_replay(caller, sealed_run(caller, workflow="reject"))["id"]
    run = ReplayDrainRun(
        caller.service.runtime, "tests", computation=DryComputation(caller.service.runtime, quick_s=0.2)
    )
    assert run.take() and run.work_on_due_replays()
    seen = []
    while run.work_on_due_replays():
        seen.append((get_replay(caller, slow)["status"], get_replay(caller, quick)["status"]))
    run.release()
    assert ("running", "completed") in seen and seen[-1] == ("completed", "completed")


@pytest.mark.parametrize(
    "limits",
    [
        {"seconds": 0.1},
        # Only the processor's time can end it: it may wait for one as long as it takes.
        {"seconds": 0.1, "is_long": True, "waiting_factor": 10_000},
    ],
    ids=["time", "processor-time"],
)
def test_a_replay_that_takes_too_long_fails_alone(caller: Caller, limits: dict[str, Any]) -> None:
    slow = post_replay(caller, long_run(caller), policy={"on_divergence": "skip"})
    quick = post_replay(caller, sealed_run(caller, workflow="reject"))
    runtime = caller.service.runtime
    computation = DryComputation(runtime, quick_s=0.2, make_long_process=lambda: DryProcess(**limits))
    run = ReplayDrainRun(runtime, "tests", computation=computation)
    assert run.take()
    while run.work_on_due_replays():
        pass
    run.release()
    shown = get_replay(caller, slow["id"])
    assert (shown["status"], shown["error"]["type"]) == ("failed", "invalid_recording")
    assert "takes more than 0.1 seconds" in shown["error"]["message"]
    assert get_replay(caller, quick["id"])["status"] == "completed"


def test_long_replays_of_a_run_that_ends_are_done_by_the_next(caller: Caller) -> None:
    runtime = caller.service.runtime
    slow = post_replay(caller, long_run(caller), policy={"on_divergence": "skip"})["id"]
    run = ReplayDrainRun(runtime, "tests", computation=DryComputation(runtime, quick_s=0.2))
    assert run.take() and run.work_on_due_replays() and run.work_on_due_replays()
    run.release()
    assert get_replay(caller, slow)["status"] == "running"
    replay_all(caller)
    assert get_replay(caller, slow)["status"] == "completed"


def test_few_replays_of_a_session_that_takes_long_wait_for_a_place(caller: Caller) -> None:
    session_id = long_run(caller)
    for number in range(12):
        post_replay(
            caller, session_id, policy={"on_divergence": "skip", "thresholds": {"ok": 0.7 + number / 1_000}}
        )
    computation = DryComputation(caller.service.runtime, quick_s=0.1)
    run = ReplayDrainRun(caller.service.runtime, "tests", computation=computation)
    assert run.take()
    while not computation.long:
        run.work_on_due_replays()
    run.work_on_due_replays()
    # Two may be under way, and five wait; the others stay in SQL.
    assert 5 <= len(computation.long.list_ids()) <= 7
    run.release()
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
