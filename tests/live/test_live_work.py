"""Claims, journals and ends of live replays, without a browser. Spec §4.6, contract §8."""

from typing import Any

import pytest
from sqlmodel import select

from recorder import clock
from recorder.live.browser import NoBrowser, find_chromium
from recorder.live.replay_journal import ReplayJournal, Stopped
from recorder.live.work import LEASE_PREFIX, claim, end_lost, list_waiting, run_replay
from recorder.models.operations import LeaseRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.workspace import WorkspaceRow
from recorder.replays.results import StepResult
from recorder.storage.leases import HeldLease, LeaseLost
from tests.api.conftest import caller, service
from tests.api.test_replays import allow_hosts
from tests.support.completed_work import seal_all
from tests.support.factories import Caller, event
from tests.support.replayed_sessions import sealed_run

__all__ = ["caller", "service"]


def ask(caller: Caller, session_id: str, **members: Any) -> str:
    """Ask for a live replay; return its id."""
    allow_hosts(caller, "erp.example")
    live = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")
    answer = live.post("/v1/replays", {"session_id": session_id, "sandbox": "live", **members})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def take(caller: Caller, replay_id: str | None = None, **options: Any) -> tuple[ReplayRow, HeldLease] | None:
    """Claim a replay of this workspace."""
    with caller.service.runtime.database.transaction(write=True) as db:
        return claim(db, "worker", replay_id=replay_id, **options)


def must_take(caller: Caller, replay_id: str) -> tuple[ReplayRow, HeldLease]:
    """Claim a replay that waits."""
    claimed = take(caller, replay_id)
    assert claimed is not None
    return claimed


def journal_of(caller: Caller, replay_id: str) -> ReplayJournal:
    """The journal of a replay that is claimed for it."""
    row, held = must_take(caller, replay_id)
    return ReplayJournal(caller.service.runtime, row.id, held, lambda: False)


def show(caller: Caller, replay_id: str) -> dict[str, Any]:
    """The replay now."""
    shown: dict[str, Any] = caller.get(f"/v1/replays/{replay_id}").json()
    return shown


def sweep(caller: Caller) -> int:
    """End replays whose worker is gone."""
    with caller.service.runtime.database.transaction(write=True) as db:
        return end_lost(db)


def expire(caller: Caller, replay_id: str) -> None:
    """Let the lease of a replay run out."""
    with caller.service.runtime.database.transaction(write=True) as db:
        lease = db.get_one(LeaseRow, LEASE_PREFIX + replay_id)
        lease.expires_ms = clock.now_ms() - 1
        db.add(lease)


def leases_of(caller: Caller, replay_id: str) -> int:
    """Number of leases of a replay."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return len(list(db.exec(select(LeaseRow).where(LeaseRow.name == LEASE_PREFIX + replay_id))))


def test_a_replay_is_claimed_once(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    must_take(caller, replay_id)
    assert take(caller, replay_id) is None
    assert show(caller, replay_id)["status"] == "running"


def test_a_workspace_gets_half_of_the_places(caller: Caller) -> None:
    session_id = sealed_run(caller)
    replay_id = ask(caller, session_id)
    mine = caller.key.workspace_id
    assert take(caller, replay_id, busy=[mine, mine], places=4) is None
    assert take(caller, replay_id, busy=[mine, "wsp_other", "wsp_other"], places=4) is not None


def test_replays_of_a_suspended_workspace_wait(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    set_status(caller, "suspended")
    assert take(caller, replay_id) is None
    with caller.service.runtime.database.transaction(write=False) as db:
        assert replay_id not in [row.id for row in list_waiting(db, each=10, limit=1_000)]
    set_status(caller, "active")
    assert take(caller, replay_id) is not None


def set_status(caller: Caller, status: str) -> None:
    """Set the status of the caller's workspace."""
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
        row.status = status
        db.add(row)


def test_a_running_replay_of_a_suspended_workspace_stops_at_its_next_step(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    journal = journal_of(caller, replay_id)
    journal.begin(1)
    set_status(caller, "suspended")
    with pytest.raises(Stopped):
        journal.begin(2)
    set_status(caller, "active")
    shown = show(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "cancelled")
    assert "suspended" in shown["error"]["message"] and shown["progress"]["step"] == 1


def test_a_cancelled_replay_stops_at_its_next_step(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    journal = journal_of(caller, replay_id)
    assert caller_of_live(caller).post(f"/v1/replays/{replay_id}/cancel").status_code == 200
    with pytest.raises(Stopped):
        journal.intend(StepResult(1, "evt_1", "matched"))
    journal.release()
    assert caller.get(f"/v1/replays/{replay_id}/steps").json()["data"] == []
    assert leases_of(caller, replay_id) == 0


def caller_of_live(caller: Caller) -> Caller:
    """A key of the same workspace that may steer live replays."""
    return caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")


def test_a_running_replay_of_a_deleted_session_stops(caller: Caller) -> None:
    session_id = sealed_run(caller)
    replay_id = ask(caller, session_id)
    journal = journal_of(caller, replay_id)
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    with pytest.raises(Stopped):
        journal.begin(1)
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get(ReplayRow, replay_id)
    assert row is None or row.status == "failed"


def test_a_replay_whose_worker_is_gone_fails_and_nothing_is_stored_after(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller), inputs={"password": "hush-hush-42"})
    journal = journal_of(caller, replay_id)
    journal.intend(StepResult(1, "evt_1", "matched", delivery="uncertain"))
    sweep(caller)
    assert show(caller, replay_id)["status"] == "running"
    expire(caller, replay_id)
    assert sweep(caller) == 1
    shown = show(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "internal")
    with pytest.raises(LeaseLost):
        journal.store(StepResult(1, "evt_1", "matched"))
    journal.release()
    steps = caller.get(f"/v1/replays/{replay_id}/steps").json()["data"]
    assert [step["delivery"] for step in steps] == ["uncertain"]
    assert sweep(caller) == 0 and leases_of(caller, replay_id) == 0
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.get_one(ReplayRow, replay_id).input_values is None


def test_a_missing_input_is_found_before_a_browser_starts(caller: Caller) -> None:
    session_id = caller.make_session(workflow="approve")
    masked = {"value": None, "masked": True, "secret_ref": "pin"}
    target = {"role": "textbox", "name": "PIN", "selectors": ["#pin"]}
    caller.add_events(session_id, event(100, "fill", target=target, input=masked, url="http://erp.example/"))
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller)
    replay_id = ask(caller, session_id)
    run_replay(caller.service.runtime, *must_take(caller, replay_id))
    shown = show(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "input_missing")
    assert "pin" in shown["error"]["message"]
    with caller.service.runtime.database.transaction(write=False) as db:
        assert not list(db.exec(select(ReplayStepRow).where(ReplayStepRow.replay_id == replay_id)))


def test_a_browser_that_is_not_there_is_named(caller: Caller) -> None:
    settings = caller.service.runtime.settings
    missing = settings.live._replace(chromium="/nowhere/chromium")
    with pytest.raises(NoBrowser, match="RECORDER_CHROMIUM names /nowhere/chromium"):
        find_chromium(type(settings)(**{**vars(settings), "live": missing}))
