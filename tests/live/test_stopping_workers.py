"""Replays of a worker that is to stop: results that are known are stored. Contract §8."""

import pytest

from recorder.live.replay_journal import LiveResult, ReplayJournal, ReplayStopped
from recorder.replays.replay_results import ReplaySummary, StepResult
from tests.api.conftest import caller, service
from tests.live.test_live_work import ask, must_take, set_status
from tests.support.factories import Caller
from tests.support.replay_requests import get_replay
from tests.support.two_click_sessions import sealed_run

__all__ = ["caller", "service"]


def start_journal(caller: Caller, orders: list[bool]) -> tuple[str, ReplayJournal]:
    """Return a replay that is claimed, and its journal; the worker is to stop once there is an order."""
    replay_id = ask(caller, sealed_run(caller))
    row, held = must_take(caller, replay_id)
    return replay_id, ReplayJournal(caller.service.runtime, row.id, held, lambda: bool(orders))


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_a_result_is_stored_as_it_is_although_the_worker_stops(caller: Caller, end: str) -> None:
    orders: list[bool] = []
    replay_id, journal = start_journal(caller, orders)
    journal.store(StepResult(1, "evt_1", "matched"))
    orders.append(True)
    if end == "completed":
        journal.finish(LiveResult("completed", None, ReplaySummary(matched=1)))
    else:
        journal.fail("sandbox", "The browser is gone.")
    shown = get_replay(caller, replay_id)
    assert shown["status"] == end
    assert shown["error"] == (
        None if end == "completed" else {"type": "sandbox", "message": "The browser is gone."}
    )


def test_no_step_begins_once_the_worker_stops(caller: Caller) -> None:
    orders: list[bool] = []
    replay_id, journal = start_journal(caller, orders)
    journal.begin(1)
    orders.append(True)
    with pytest.raises(ReplayStopped):
        journal.begin(2)
    shown = get_replay(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "internal")
    with pytest.raises(ReplayStopped):  # the end that is stored stays
        journal.finish(LiveResult("completed", None, ReplaySummary()))
    assert get_replay(caller, replay_id)["status"] == "failed"


def test_a_suspended_workspace_gets_no_result(caller: Caller) -> None:
    replay_id, journal = start_journal(caller, [True])
    set_status(caller, "suspended")
    with pytest.raises(ReplayStopped):
        journal.finish(LiveResult("completed", None, ReplaySummary()))
    set_status(caller, "active")
    assert get_replay(caller, replay_id)["error"]["type"] == "cancelled"
