"""Claims, journals and ends of live replays, without a browser. Spec §4.6, contract §8."""

import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlmodel import col, select

from recorder import clock
from recorder.access.keys import Caller as AccessCaller
from recorder.live import worker as worker_module
from recorder.live.browser import Browser, NoBrowser, PageUnresponsive, find_chromium
from recorder.live.claimed_replay import (
    LEASE_PREFIX,
    claim_live_replay,
    end_lost_live_replays,
    list_next_live_replays,
    list_waiting_live_replays,
    run_claimed_replay,
)
from recorder.live.hidden_inputs import HiddenInputs
from recorder.live.proxy import FilteringProxy
from recorder.live.replay_journal import LiveResult, ReplayJournal, ReplayStopped
from recorder.live.replay_plan import LiveReplayPlanner
from recorder.live.run_recording import ReplayRunRecorder
from recorder.live.step_execution import StepExecutor
from recorder.live.step_loop import LiveRun
from recorder.live.worker import ReplayWorker
from recorder.masking.masker import Masker, compile_masker_rules
from recorder.models.operations import LeaseRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.net.addresses import AllowList
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from recorder.replay_service.recordings.recording_messages import EventMessage, RecordingMessage
from recorder.replay_service.recordings.recording_reads import read_recording
from recorder.replays.recorded_session import InvalidRecording
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import ReplayAnchor
from recorder.replays.replay_results import ReplaySummary, StepResult
from recorder.storage.leases import HeldLease, LeaseLost
from recorder.tenant import Tenant
from tests.api.conftest import caller, service
from tests.support.factories import Caller, event, picture
from tests.support.query_plans import noted_statements, plan_of
from tests.support.replay_requests import allow_hosts, get_replay
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import sealed_run

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
        waiting = (
            [replay_id] if replay_id is not None and not options else list_next_live_replays(db, **options)
        )
        return claim_live_replay(db, "worker", [id for id in waiting if replay_id in (None, id)])


def must_take(caller: Caller, replay_id: str) -> tuple[ReplayRow, HeldLease]:
    """Claim a replay that waits."""
    claimed = take(caller, replay_id)
    assert claimed is not None
    return claimed


def journal_of(caller: Caller, replay_id: str) -> ReplayJournal:
    """Return the journal of a replay that is claimed for it."""
    row, held = must_take(caller, replay_id)
    return ReplayJournal(caller.service.runtime, row.id, held, lambda: False)


def sweep(caller: Caller) -> int:
    """End replays whose worker is gone."""
    return end_lost_live_replays(caller.service.runtime.database)


def expire(caller: Caller, replay_id: str) -> None:
    """Let the lease of a replay run out."""
    with caller.service.runtime.database.transaction(write=True) as db:
        lease = db.get_one(LeaseRow, LEASE_PREFIX + replay_id)
        lease.expires_ms = clock.now_ms() - 1
        db.add(lease)


def leases_of(caller: Caller, replay_id: str) -> int:
    """Return the number of leases of a replay."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return len(list(db.exec(select(LeaseRow).where(LeaseRow.name == LEASE_PREFIX + replay_id))))


def test_a_replay_is_claimed_once(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    must_take(caller, replay_id)
    assert take(caller, replay_id) is None
    assert get_replay(caller, replay_id)["status"] == "running"


def test_a_workspace_gets_half_of_the_slots(caller: Caller) -> None:
    session_id = sealed_run(caller)
    replay_id = ask(caller, session_id)
    mine = caller.key.workspace_id
    assert take(caller, replay_id, busy=[mine, mine], slots=4) is None
    assert take(caller, replay_id, busy=[mine, "wsp_other", "wsp_other"], slots=4) is not None


def test_replays_of_a_suspended_workspace_wait(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    set_status(caller, "suspended")
    assert take(caller, replay_id) is None
    with caller.service.runtime.database.transaction(write=False) as db:
        assert replay_id not in [row.id for row in list_waiting_live_replays(db, each=10, limit=1_000)]
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
    with pytest.raises(ReplayStopped):
        journal.begin(2)
    set_status(caller, "active")
    shown = get_replay(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "cancelled")
    assert "suspended" in shown["error"]["message"] and shown["progress"]["step"] == 1


def test_a_cancelled_replay_stops_at_its_next_step(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    journal = journal_of(caller, replay_id)
    assert caller_of_live(caller).post(f"/v1/replays/{replay_id}/cancel").status_code == 200
    with pytest.raises(ReplayStopped):
        journal.store(StepResult(1, "evt_1", "matched"))
    journal.release()
    assert caller.get(f"/v1/replays/{replay_id}/steps").json()["data"] == []
    assert leases_of(caller, replay_id) == 0


def caller_of_live(caller: Caller) -> Caller:
    """Return a key of the same workspace that may steer live replays."""
    return caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")


def test_a_running_replay_of_a_deleted_session_stops(caller: Caller) -> None:
    session_id = sealed_run(caller)
    replay_id = ask(caller, session_id)
    journal = journal_of(caller, replay_id)
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    with pytest.raises(ReplayStopped):
        journal.begin(1)
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get(ReplayRow, replay_id)
    assert row is None or row.status == "failed"


def test_a_replay_whose_worker_is_gone_fails_and_nothing_is_stored_after(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller), inputs={"password": "hush-hush-42"})
    journal = journal_of(caller, replay_id)
    journal.store(StepResult(1, "evt_1", "matched", delivery="uncertain"))
    sweep(caller)
    assert get_replay(caller, replay_id)["status"] == "running"
    expire(caller, replay_id)
    assert sweep(caller) == 1
    shown = get_replay(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "internal")
    with pytest.raises(LeaseLost):
        journal.store(StepResult(1, "evt_1", "matched"))
    journal.release()
    steps = caller.get(f"/v1/replays/{replay_id}/steps").json()["data"]
    assert [step["delivery"] for step in steps] == ["uncertain"]
    assert sweep(caller) == 0 and leases_of(caller, replay_id) == 0
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.get_one(ReplayRow, replay_id).input_values is None


@pytest.mark.parametrize("end", ["finish", "fail", "cancel", "lose", "delete"])
def test_the_recording_of_a_run_stops_with_its_replay(caller: Caller, end: str) -> None:
    session_id = sealed_run(caller)
    replay_id = ask(caller, session_id)
    journal = journal_of(caller, replay_id)
    recorded = journal.start_session()
    shown = get_replay(caller, replay_id)
    assert shown["result_session_id"] == recorded
    session = caller.get(f"/v1/sessions/{recorded}").json()
    assert (session["status"], session["origin"]) == ("recording", "replay")
    assert session["actor"] == {"id": replay_id, "kind": "script"}
    match end:
        case "finish":
            journal.finish(LiveResult("completed", None, ReplaySummary()))
        case "fail":
            journal.fail("sandbox", "The browser is gone.")
        case "cancel":
            assert caller_of_live(caller).post(f"/v1/replays/{replay_id}/cancel").status_code == 200
        case "lose":
            expire(caller, replay_id)
            assert sweep(caller) >= 1
        case "delete":
            assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
            with pytest.raises(ReplayStopped):
                journal.begin(1)
    assert caller.get(f"/v1/sessions/{recorded}").json()["status"] == "stopped"
    refused = caller.add_events(recorded, event(1))
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")


def test_a_deleted_recording_does_not_hold_up_its_replay(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    journal = journal_of(caller, replay_id)
    assert caller.delete(f"/v1/sessions/{journal.start_session()}").status_code == 204
    journal.finish(LiveResult("completed", None, ReplaySummary()))
    assert get_replay(caller, replay_id)["status"] == "completed"


def test_what_a_run_records_is_masked_and_too_large_parts_are_left_out(caller: Caller) -> None:
    runtime = caller.service.runtime
    journal = journal_of(caller, ask(caller, sealed_run(caller)))
    session_id = journal.start_session()
    masker = Masker(compile_masker_rules(('{"builtins":["email"]}',)), b"k" * 32)
    sender = AccessCaller(Tenant(caller.key.workspace_id, "live"), "replay")
    recording = ReplayRunRecorder(runtime, sender, session_id, masker)
    dom = {"v": 1, "format": "nodes", "html": ["html", {}, ["p", {}, "ada@ledgerly.example"]]}
    image = picture(format="JPEG")
    frame_id = recording.add_frame(image, t_ms=5, url="http://x.example/", dom=dom, rects=[[1, 2, 3, 4]])
    recording.add_frame(b"no picture", t_ms=6, url="http://x.example/", dom=dom, rects=[])
    recording.add_event({"t_ms": 7, "type": "click", "frame_id": frame_id, "title": "ada@ledgerly.example"})
    recording.add_event({"t_ms": 8, "type": "No Type"})
    recording.close()
    recording.add_event({"t_ms": 9, "type": "click"})
    frames = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    assert [(row["id"], row["masked_rects"]) for row in frames] == [(frame_id, [[1, 2, 3, 4]])]
    events = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert [item["title"] for item in events] == [masker.mask_text("ada@ledgerly.example")]
    journal.fail("sandbox", "The browser is gone.")


def test_workspaces_take_turns(caller: Caller) -> None:
    other = caller.service.make_caller()
    mine = [ask(caller, sealed_run(caller)) for _ in range(2)]
    theirs = ask(other, sealed_run(other))
    with caller.service.runtime.database.transaction(write=False) as db:
        waiting = [row.id for row in list_waiting_live_replays(db, each=1, limit=1_000)]
        assert {mine[0], theirs} <= set(waiting) and mine[1] not in waiting
        assert {*mine, theirs} <= {row.id for row in list_waiting_live_replays(db, each=2, limit=1_000)}
    served = [caller.key.workspace_id]
    claimed = []
    while (taken := take(caller, served=served)) is not None:
        served.append(taken[0].workspace_id)
        claimed.append(taken[0].id)
    assert claimed.index(theirs) < claimed.index(mine[0]) < claimed.index(mine[1])


def test_a_poll_that_finds_no_replay_opens_no_write_transaction(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    replay_ids = [ask(caller, sealed_run(caller)) for _ in range(2)]
    is_over, worker = threading.Event(), ReplayWorker(runtime, slots=2)
    monkeypatch.setattr(worker_module, "run_claimed_replay", lambda *_: is_over.wait())
    transaction, writes = runtime.database.transaction, []

    def note(*, write: bool) -> Any:
        writes.append(write)
        return transaction(write=write)

    with transaction(write=True) as db:  # those of other tests
        others = list(db.exec(select(ReplayRow).where(col(ReplayRow.id).not_in(replay_ids))))
        for row in others:
            row.finished_at = row.finished_at or clock.now()
            db.add(row)
    monkeypatch.setattr(runtime.database, "transaction", note)
    assert worker._start_one("worker") and writes == [False, True]
    # The workspace has its half of the slots while its replay runs.
    writes.clear()
    has_started = worker._start_one("worker")
    is_over.set()
    assert not has_started and writes == [False]
    for thread, _ in worker._running.values():
        thread.join()
    assert worker._start_one("worker") and get_replay(caller, replay_ids[1])["status"] == "running"
    writes.clear()
    assert not worker._start_one("worker") and writes == [False]


def test_replays_that_wait_are_found_by_an_index(caller: Caller) -> None:
    ask(caller, sealed_run(caller))
    database = caller.service.runtime.database
    for search in (list_next_live_replays, partial(list_waiting_live_replays, each=1, limit=1)):
        with database.transaction(write=False) as db, noted_statements() as noted:
            assert search(db)
        plans = [plan_of(database, *statement) for statement in noted if "FROM replays" in statement[0]]
        assert len(plans) == 2 and all("ix_replays_live_queued" in plan for plan in plans)


def test_lost_replays_are_searched_by_an_index_without_a_write_transaction(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = caller.service.runtime.database
    while sweep(caller):  # those of other tests
        pass
    replay_id = ask(caller, sealed_run(caller))
    must_take(caller, replay_id)
    transaction, writes = database.transaction, []

    def note(*, write: bool) -> Any:
        writes.append(write)
        return transaction(write=write)

    monkeypatch.setattr(database, "transaction", note)
    with noted_statements() as noted:
        assert sweep(caller) == 0
    assert writes == [False]
    (plan,) = [plan_of(database, *statement) for statement in noted if "FROM replays" in statement[0]]
    assert "ix_replays_live_running" in plan and "ix_replays_open" not in plan
    expire(caller, replay_id)
    writes.clear()
    assert sweep(caller) == 1 and writes == [False, True]


def test_many_lost_replays_are_ended_in_parts(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    while sweep(caller):
        pass
    monkeypatch.setattr("recorder.live.claimed_replay.MOST_LOST", 2)
    session_id = sealed_run(caller)
    for replay_id in [ask(caller, session_id) for _ in range(3)]:
        must_take(caller, replay_id)
        expire(caller, replay_id)
    assert [sweep(caller) for _ in range(3)] == [2, 1, 0]


def test_the_time_of_a_replay_begins_when_it_is_claimed(caller: Caller) -> None:
    replay_id = ask(caller, sealed_run(caller))
    journal = journal_of(caller, replay_id)
    plan = LiveReplayPlanner()
    try:
        made = plan.plan(_read_recording(caller, replay_id), None, None)
    finally:
        plan.end()
    proxy = FilteringProxy(ReachableHosts(()), AddressGuard(AllowList.parse(())))
    nothing: Any = None
    actor = StepExecutor(
        made, ReplayPolicy(), {}, HiddenInputs({}), nothing, proxy, nothing, journal, nothing, ends_at=0.0
    )
    result = LiveRun(actor, "full").run()
    assert (result.status, result.error and result.error.type) == ("failed", "timeout")
    journal.fail("timeout", "The time is over.")


def _read_recording(caller: Caller, replay_id: str) -> RecordingMessage:
    runtime = caller.service.runtime
    with runtime.database.transaction(write=False) as db:
        replay = db.get_one(ReplayRow, replay_id)
        session = db.get_one(SessionRow, replay.session_id)
    return read_recording(runtime, session)


def test_a_recording_is_planned_in_a_process_with_limits(caller: Caller) -> None:
    message = _read_recording(caller, ask(caller, sealed_run(caller)))
    planner = LiveReplayPlanner()
    try:
        plan = planner.plan(message, None, None)
        assert [(step.step, step.is_consequential, step.has_succeeded) for step in plan.steps] == [
            (1, False, True), (2, True, True),
        ]  # fmt: skip
        last = planner.plan(message, ReplayAnchor("tag", "ready"), None)
        assert [step.step for step in last.steps] == [2] and [step.step for step in last.prefix] == [1]
        assert last.steps[0].read().event["target"]["name"] == "Approve" and last.total == 2
        with pytest.raises(InvalidRecording, match="no such tag"):
            planner.plan(message, ReplayAnchor("tag", "missing"), None)
        data = msgspec.Raw(msgspec.json.encode({"data": {"text": "x" * 60_000}}))
        large = [EventMessage(f"evt_{n}", n, "click", None, data) for n in range(400)]
        with pytest.raises(InvalidRecording, match="at most 16 MiB"):
            planner.plan(RecordingMessage("ses_1", large, [], []), None, None)
        nothing = [EventMessage("evt_1", 1, "log", None, data)]
        with pytest.raises(InvalidRecording, match="no action in the range"):
            planner.plan(RecordingMessage("ses_1", nothing, [], []), None, None)
    finally:
        planner.end()
    hasty = LiveReplayPlanner(seconds=0.0)
    with pytest.raises(InvalidRecording, match="takes more than 0 seconds"):
        hasty.plan(message, None, None)


def test_processes_that_take_too_much_memory_are_ended() -> None:
    program = """
import subprocess, sys, time
from recorder.live.browser_memory_limit import MemoryWatch
watch = MemoryWatch(100_000_000, every_s=0.02)
watch.start()
start = lambda size: subprocess.Popen([sys.executable, "-c", f"held = bytearray({size}); input()"], stdin=-1)
small = start(20_000_000)
time.sleep(0.5)
print(small.poll(), watch.is_exceeded, start(200_000_000).wait(), small.wait(), watch.is_exceeded)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["None", "False", "-9", "-9", "True"], done.stderr


def test_a_missing_input_is_found_before_a_browser_starts(caller: Caller) -> None:
    session_id = caller.make_session(workflow="approve")
    masked = {"value": None, "masked": True, "secret_ref": "pin"}
    target = {"role": "textbox", "name": "PIN", "selectors": ["#pin"]}
    caller.add_events(session_id, event(100, "fill", target=target, input=masked, url="http://erp.example/"))
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    replay_id = ask(caller, session_id)
    with LiveReplayPlanner() as planner:
        run_claimed_replay(caller.service.runtime, *must_take(caller, replay_id), planner)
    shown = get_replay(caller, replay_id)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "input_missing")
    assert "pin" in shown["error"]["message"]
    with caller.service.runtime.database.transaction(write=False) as db:
        assert not list(db.exec(select(ReplayStepRow).where(ReplayStepRow.replay_id == replay_id)))


@pytest.mark.timeout(60)
def test_a_browser_that_does_not_answer_in_time_is_ended(caller: Caller) -> None:
    proxy = FilteringProxy(ReachableHosts(()), AddressGuard(AllowList.parse(())))
    browser = Browser(caller.service.runtime.settings, proxy, grace_s=0.1)
    silent = subprocess.Popen(["sleep", "300"], stdin=-1, stdout=-1, start_new_session=True)
    browser.process = silent
    with pytest.raises(PageUnresponsive):
        browser.call("click", timeout_ms=500)
    assert (browser.process, silent.poll()) == (None, -signal.SIGKILL)


def test_a_browser_that_is_not_there_is_named(caller: Caller) -> None:
    settings = caller.service.runtime.settings
    missing = settings.browser._replace(chromium="/nowhere/chromium")
    with pytest.raises(NoBrowser, match="RECORDER_CHROMIUM names /nowhere/chromium"):
        find_chromium(type(settings)(**{**vars(settings), "browser": missing}))
