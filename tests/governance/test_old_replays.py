"""Old replays and recoveries: removed by retention 90 days after their end. Contract §7, §8."""

from datetime import datetime, timedelta

import pytest
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin
from recorder.governance.holds import add_hold
from recorder.governance.retention import preview_retention, run_retention
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.replay_service.requests.replay_removal import find_removable_replays, remove_replays
from tests.support.factories import Caller, assert_problem
from tests.support.purges import finish_purges
from tests.support.replay_requests import post_recovery, post_replay
from tests.support.two_click_sessions import OTHER, replay_all, sealed_run

KIND = "replays_and_recoveries"


def in_days(days: float) -> datetime:
    """Return the instant so many days from now."""
    return clock.now() + timedelta(days=days)


def preview(caller: Caller, at: datetime) -> int:
    """Return how many replays and recoveries a run at an instant would remove."""
    key = caller.key
    report = preview_retention(caller.service.runtime, at=at, workspace_id=key.workspace_id)
    return report.counts[key.workspace_id, KIND]


def remove(caller: Caller, at: datetime) -> int:
    """Run retention at an instant; return how many replays and recoveries it removed."""
    key = caller.key
    report = run_retention(caller.service.runtime, "tests", at=at, workspace_id=key.workspace_id)
    assert report is not None and not report.failures
    return report.counts[key.workspace_id, KIND]


def count_steps(caller: Caller, replay_id: str) -> int:
    """Return the number of stored steps of a replay."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return len(db.exec(select(ReplayStepRow).where(ReplayStepRow.replay_id == replay_id)).all())


def test_ended_replays_go_after_90_days(caller: Caller) -> None:
    session_id = sealed_run(caller)
    replay_id = post_replay(caller, session_id)["id"]
    replay_all(caller)
    assert count_steps(caller, replay_id) == 2
    assert preview(caller, in_days(89)) == remove(caller, in_days(89)) == 0
    assert preview(caller, in_days(91)) == 1
    assert remove(caller, in_days(91)) == 1
    assert_problem(caller.get(f"/v1/replays/{replay_id}"), 404, "not_found")
    assert count_steps(caller, replay_id) == 0
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 0


def test_open_replays_stay(caller: Caller) -> None:
    replay_id = post_replay(caller, sealed_run(caller))["id"]
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 0
    assert caller.get(f"/v1/replays/{replay_id}").json()["status"] == "queued"


def test_replays_that_ended_late_stay(caller: Caller) -> None:
    replay_id = post_replay(caller, sealed_run(caller))["id"]
    replay_all(caller)
    with caller.service.runtime.database.transaction(write=True) as db:
        db.get_one(ReplayRow, replay_id).finished_at = in_days(10)
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 0
    assert remove(caller, in_days(101)) == 1


def make_recovery(caller: Caller) -> tuple[str, str, str]:
    """Return the ids of a session, of an ended recovery of it, and of the recovery's attempt."""
    session_id = sealed_run(caller)
    tagged = caller.post(f"/v1/sessions/{session_id}/tags", {"name": "stuck", "t_ms": 1_500})
    assert tagged.status_code == 201, tagged.text
    recovery_id = post_recovery(caller, session_id, failure_tag="stuck")["id"]
    replay_id = post_replay(caller, sealed_run(caller, first=OTHER))["id"]
    with caller.service.runtime.database.transaction(write=True) as db:
        db.get_one(ReplayRow, replay_id).cause = recovery_id
    replay_all(caller)
    assert caller.get(f"/v1/recoveries/{recovery_id}").json()["finished_at"] is not None
    return session_id, recovery_id, replay_id


def test_recoveries_go_with_their_attempts(caller: Caller) -> None:
    _, recovery_id, replay_id = make_recovery(caller)
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 2
    assert_problem(caller.get(f"/v1/recoveries/{recovery_id}"), 404, "not_found")
    assert_problem(caller.get(f"/v1/replays/{replay_id}"), 404, "not_found")


def test_a_recovery_of_a_held_session_stays_with_its_attempts(caller: Caller) -> None:
    session_id, recovery_id, replay_id = make_recovery(caller)
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, Origin.operator(caller.key.workspace_id), kind="session", value=session_id)
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 0
    assert caller.get(f"/v1/recoveries/{recovery_id}").status_code == 200
    assert caller.get(f"/v1/replays/{replay_id}").status_code == 200


@pytest.mark.parametrize("is_attempt", [False, True])
def test_a_replay_stays_as_long_as_the_session_that_it_recorded(caller: Caller, is_attempt: bool) -> None:
    # A purge of the replayed session finds the recorded one by it.
    if is_attempt:
        _, _, replay_id = make_recovery(caller)
    else:
        replay_id = post_replay(caller, sealed_run(caller))["id"]
        replay_all(caller)
    recorded = caller.make_session(status="stopped")
    with caller.service.runtime.database.transaction(write=True) as db:
        db.get_one(ReplayRow, replay_id).result_session_id = recorded
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 0
    caller.delete(f"/v1/sessions/{recorded}?hard=true")
    finish_purges(caller.service.runtime)
    assert remove(caller, in_days(91)) == (2 if is_attempt else 1)


def test_replays_of_a_held_session_stay(caller: Caller) -> None:
    held, free = sealed_run(caller), sealed_run(caller, first=OTHER)
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, Origin.operator(caller.key.workspace_id), kind="session", value=held)
    kept = [post_replay(caller, held)["id"], post_replay(caller, free, against={"session_id": held})["id"]]
    removed = post_replay(caller, free)["id"]
    replay_all(caller)
    assert preview(caller, in_days(91)) == remove(caller, in_days(91)) == 1
    assert [caller.get(f"/v1/replays/{id}").status_code for id in (*kept, removed)] == [200, 200, 404]


def test_a_transaction_removes_a_bounded_number_of_steps(caller: Caller) -> None:
    session_id = sealed_run(caller)
    ids = [post_replay(caller, session_id)["id"] for _ in range(3)]
    replay_all(caller)
    counts = []
    with caller.service.runtime.database.transaction(write=True) as db:
        while units := find_removable_replays(db, ids, list_held=lambda _: set()):
            counts.append(len(remove_replays(db, units, most_steps=4)))
    assert counts == [2, 1]
