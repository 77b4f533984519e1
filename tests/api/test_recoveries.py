"""Recoveries over HTTP: candidates, attempts, ends, events, and what goes with a purge. Contract §8."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from recorder import limits
from recorder.live.claimed_replay import claim_live_replay
from recorder.live.replay_journal import ReplayJournal
from recorder.models.operations import OutboxRow
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.recordings.failed_sessions import SessionFailure
from recorder.replay_service.recovery_search.candidate_search_process import SearchProcess
from recorder.replay_service.recovery_search.candidate_searches import MOST_SEARCHES, CandidateSearches
from recorder.replay_service.recovery_search.candidates import list_recovery_candidates
from recorder.replay_service.recovery_search.recovery_work import continue_recovery, list_due_recoveries
from recorder.replay_service.replay_drain_run import ReplayDrainRun
from recorder.replay_service.requests.encrypted_inputs import decrypt_inputs
from recorder.replay_service.requests.replays import set_replay_ended
from recorder.replay_service.scheduling.replay_drain_counts import ReplayDrainCounts
from recorder.replay_service.scheduling.store_pauses import StorePauses
from recorder.replays.recorded_session import InvalidRecording
from recorder.storage.leases import lease_for_block
from tests.support.completed_work import once
from tests.support.factories import Caller, assert_problem
from tests.support.failing_runs import PAGES, make_run, page
from tests.support.query_plans import noted_statements, plan_of
from tests.support.replay_requests import events_of, get_recovery, post_recovery
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import replay_all

USUAL = ("Open", "Review", "Approve")


def failing(caller: Caller, *, successes: int = 1, **given: Any) -> str:
    """Return a sealed session that failed at Approve, after others that did not."""
    for _ in range(successes):
        make_run(caller, *USUAL)
    return make_run(caller, *USUAL, error_at=3_200, seal=True, **given)


@dataclass(frozen=True)
class Story:
    """Recoveries of one workspace that ended, by name, with the ids of their failed sessions."""

    owner: Caller
    sessions: dict[str, str]
    recoveries: dict[str, dict[str, Any]]


@once
def story(caller: Caller) -> Story:
    """Return runs of several workflows, sealed at once; one drain run brings their recoveries to an end."""
    error = page("Server error", "Retry")
    back = ("Open", "Review", "Retry", "Review", "Approve")
    repeating = ("Open", "Approve", "Review", "Check")
    for _ in range(3):
        make_run(caller, *USUAL)
        make_run(caller, *back, error_at=3_100, tags=[("success", 5_001)], workflow="return")
    for way in (repeating, repeating, repeating, ("Open", "Approve", "Check")):
        make_run(caller, *way, workflow="repeat")
    make_run(caller, *USUAL, has_dom=False, workflow="plain")
    make_run(caller, *USUAL, workflow="return")
    sessions = {
        "usual": make_run(caller, *USUAL, error_at=3_200),
        "changed": make_run(caller, *USUAL, error_at=3_200, pages={"Review": error}),
        "lost": make_run(caller, *USUAL, error_at=3_200, pages=dict.fromkeys(PAGES, error)),
        "first": make_run(caller, "Retry", error_at=1_100),
        "plain": make_run(caller, *USUAL, error_at=3_200, has_dom=False, workflow="plain"),
        "repeat": make_run(caller, *repeating, error_at=4_100, tags=[("ready", 2_900)], workflow="repeat"),
        "return": make_run(caller, "Open", "Review", "Retry", error_at=3_100, workflow="return"),
    }
    seal_all(caller.service.runtime)
    made = {name: post_recovery(caller, session_id)["id"] for name, session_id in sessions.items()}
    report = replay_all(caller)
    assert report.recoveries["succeeded"] >= 5 and report.recoveries["candidates_exhausted"] >= 1
    return Story(
        caller, sessions, {name: get_recovery(caller, recovery_id) for name, recovery_id in made.items()}
    )


def recovered(caller: Caller, session_id: str, **members: Any) -> dict[str, Any]:
    """Return the recovery at its end."""
    made = post_recovery(caller, session_id, **members)
    replay_all(caller)
    return get_recovery(caller, made["id"])


def attempts_of(caller: Caller, recovery: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the replays of a recovery, in order."""
    listed: list[dict[str, Any]] = caller.get(f"/v1/replays?cause={recovery['id']}").json()["data"][::-1]
    assert [replay["id"] for replay in listed] == recovery["replay_ids"]
    return listed


def test_a_failed_session_is_recovered_from_the_last_node_that_no_success_gets_round(caller: Caller) -> None:
    shared = story(caller)
    session_id, shown = shared.sessions["usual"], shared.recoveries["usual"]
    assert (shown["status"], shown["reason"], shown["evidence"]) == ("succeeded", None, "dom"), shown
    events = shared.owner.get(f"/v1/sessions/{session_id}/events").json()["data"]
    passed = [candidate["event_id"] for candidate in shown["candidates"]]
    assert passed == [events[1]["id"], events[0]["id"]]
    best = shown["candidates"][0]
    # Three went on to success, three failed after Review.
    assert (best["hits"], best["successes"], best["frequency"]) == (6, 3, 0.5)
    assert (best["basis"], best["replayability"]) == ("cross_session", 1)
    assert (best["consequential_steps"], best["consequence_factor"]) == (0, 1)
    assert best["score"] == best["lower_bound"] and best["median_recovery_ms"] == 1_001
    frames = shared.owner.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    step = {"event_id": events[1]["id"], "t_ms": 2_000, "frame_id": frames[1]["id"]}
    assert shown["recovery_point"] == {"node_id": best["node_id"], **step}
    (attempt,) = attempts_of(shared.owner, shown)
    assert attempt["status"] == "completed" and attempt["session_id"] != session_id
    assert attempt["start"] == {"session_id": session_id, "event_id": events[1]["id"]}
    assert (attempt["against"], attempt["attempt"], attempt["mode"]) == (None, 1, "partial")
    assert attempt["progress"]["steps"] == 2 and best["replay_id"] == attempt["id"]
    assert shown["recovery_ms"] >= 0 and shown["finished_at"] is not None
    with shared.owner.service.runtime.database.transaction(write=False) as db:
        stored = db.get_one(RecoveryRow, shown["id"]).candidates
    # What was found in other sessions must not outlive them here.
    assert stored and not any("donor" in candidate for candidate in stored)
    assert events_of(shared.owner, shown["id"]) == ["recovery.started", "recovery.succeeded"]


def test_the_next_candidate_is_tried_where_the_page_is_another(caller: Caller) -> None:
    shared = story(caller)
    shown = shared.recoveries["changed"]
    assert shown["status"] == "succeeded"
    first, second = attempts_of(shared.owner, shown)
    assert (first["status"], first["divergence"]["kind"]) == ("diverged", "anchor_unreachable")
    assert (second["status"], second["attempt"]) == ("completed", 2)
    assert shown["recovery_point"]["event_id"] == shown["candidates"][1]["event_id"]


def test_a_recovery_fails_when_no_candidate_matches(caller: Caller) -> None:
    shared = story(caller)
    shown = shared.recoveries["lost"]
    assert (shown["status"], shown["reason"]) == ("failed", "candidates_exhausted")
    assert [attempt["status"] for attempt in attempts_of(shared.owner, shown)] == ["diverged"] * 2
    assert shown["recovery_point"] is None and shown["recovery_ms"] is None
    assert events_of(shared.owner, shown["id"]) == ["recovery.started", "recovery.failed"]


def test_a_policy_that_skips_divergences_recovers_from_no_other_page(caller: Caller) -> None:
    error, no_button = page("Server error", "Retry"), page("Approval", "Reject")
    make_run(caller, *USUAL)
    make_run(caller, *USUAL, workflow="changed", pages={"Approve": no_button})
    sessions = [
        make_run(caller, *USUAL, error_at=3_200, pages=dict.fromkeys(PAGES, error)),
        make_run(caller, *USUAL, error_at=3_200, workflow="changed"),
    ]
    seal_all(caller.service.runtime)
    policy = {"on_divergence": "skip"}
    made = [post_recovery(caller, session_id, policy=policy)["id"] for session_id in sessions]
    replay_all(caller)
    shown = [get_recovery(caller, recovery_id) for recovery_id in made]
    assert [recovery["reason"] for recovery in shown] == ["candidates_exhausted"] * 2
    for recovery, status in zip(shown, ("diverged", "completed"), strict=True):
        attempts = attempts_of(caller, recovery)
        assert attempts and {attempt["status"] for attempt in attempts} == {status}
        assert all(attempt["divergence"] for attempt in attempts)


def test_a_session_that_passed_no_such_node_has_no_recovery_points(caller: Caller) -> None:
    shown = story(caller).recoveries["first"]
    assert (shown["status"], shown["reason"], shown["candidates"]) == ("failed", "no_recovery_points", [])


def test_without_snapshots_the_graph_alone_decides(caller: Caller) -> None:
    shown = story(caller).recoveries["plain"]
    assert (shown["status"], shown["evidence"]) == ("succeeded", "graph")
    assert {candidate["replayability"] for candidate in shown["candidates"]} == {None}


def test_tags_make_candidates_and_consequential_steps_count_against_them(caller: Caller) -> None:
    shown = story(caller).recoveries["repeat"]
    counted = [
        (candidate["t_ms"], candidate["consequential_steps"], candidate["consequence_factor"])
        for candidate in shown["candidates"]
    ]
    # Review carries the tag; from Approve or Open on, the approval would be repeated.
    assert counted == [(3_000, 0, 1.0), (2_000, 1, 0.5), (1_000, 1, 0.5)]
    assert shown["status"] == "succeeded" and shown["recovery_point"]["t_ms"] == 3_000


def test_returns_of_those_that_failed_alike_are_counted(caller: Caller) -> None:
    shown = story(caller).recoveries["return"]
    best = shown["candidates"][0]
    assert (best["t_ms"], best["hits"], best["successes"], best["basis"]) == (2_000, 4, 3, "in_session")
    assert best["median_recovery_ms"] == 1_001 and shown["status"] == "succeeded"


def test_a_requested_recovery_point_is_the_only_candidate(caller: Caller) -> None:
    session_id = failing(caller)
    other = caller.get("/v1/sessions?outcome=success&limit=1").json()["data"][0]["id"]
    events = caller.get(f"/v1/sessions/{other}/events").json()["data"]
    frames = caller.get(f"/v1/sessions/{other}/frames").json()["data"]
    for named in ({"event_id": events[0]["id"]}, {"frame_id": frames[0]["id"]}):
        shown = recovered(caller, session_id, recovery_point={"session_id": other, **named})
        assert [candidate["t_ms"] for candidate in shown["candidates"]] == (
            [1_000] if "event_id" in named else []
        )
        if "event_id" in named:
            assert shown["status"] == "succeeded" and shown["recovery_point"]["t_ms"] == 1_000
    make_run(caller, "Check", *USUAL)
    aside = make_run(caller, "Check", "Open", seal=True)
    events = caller.get(f"/v1/sessions/{aside}/events").json()["data"]
    point = {"session_id": aside, "event_id": events[0]["id"]}
    shown = recovered(caller, session_id, recovery_point=point)
    # The failed session never passed it: the donor's own pages are all there is.
    assert [candidate["event_id"] for candidate in shown["candidates"]] == [None]
    assert attempts_of(caller, shown)[0]["start"] is None


def test_a_workspace_has_a_limit_of_open_recoveries(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_REPLAYS", 2)
    session_id = make_run(caller, *USUAL, error_event=True, seal=True)
    for _ in range(2):
        post_recovery(caller, session_id)
    body = {"session_id": session_id, "sandbox": "dry"}
    assert_problem(caller.post("/v1/recoveries", body), 422, "limit_reached")
    other = caller.service.make_caller()
    post_recovery(other, make_run(other, *USUAL, error_event=True, seal=True))
    replay_all(caller)
    post_recovery(caller, session_id)


def test_failures_by_an_error_event_and_by_a_named_tag(caller: Caller) -> None:
    for _ in range(2):
        make_run(caller, *USUAL)
    crashed = make_run(caller, *USUAL, error_event=True)
    stuck = make_run(caller, *USUAL, tags=[("stuck", 2_500)], seal=True)
    assert_problem(
        caller.post("/v1/recoveries", {"session_id": stuck, "sandbox": "dry"}), 422, "validation_failed"
    )
    shown = recovered(caller, stuck, failure_tag="stuck")
    assert (shown["failure_tag"], shown["failed_at_ms"]) == ("stuck", 2_500)
    assert [candidate["t_ms"] for candidate in shown["candidates"]] == [1_000]
    shown = recovered(caller, crashed)
    assert (shown["failure_tag"], shown["failed_at_ms"], shown["status"]) == (None, 3_001, "succeeded")
    # Of four that passed Review only the crashed one failed in this way.
    best = shown["candidates"][0]
    assert (best["t_ms"], best["hits"], best["successes"]) == (2_000, 4, 3)
    unknown = {"session_id": stuck, "sandbox": "dry", "failure_tag": "lost"}
    assert assert_problem(caller.post("/v1/recoveries", unknown), 404, "not_found")["resource"] == "tag"


def test_a_cancelled_recovery_ends_its_attempt(caller: Caller) -> None:
    made = post_recovery(caller, failing(caller), inputs={"pin": "hush-hush-42"})
    database = caller.service.runtime.database
    with lease_for_block(database, "recoveries of a test", "tests", ttl_ms=60_000) as held:
        with database.transaction(write=False) as db:
            (due,) = [row for row in list_due_recoveries(db) if row.id == made["id"]]
            session = db.get_one(SessionRow, due.session_id)
        failure = SessionFailure(due.failure_tag, due.failed_at_ms)
        candidates = list_recovery_candidates(caller.service.runtime, session, failure)
        assert held is not None and len(candidates) == 2
        assert continue_recovery(caller.service.runtime, held, due, candidates=candidates) is None
    with database.transaction(write=False) as db:
        assert made["id"] not in {row.id for row in list_due_recoveries(db)}
    path = f"/v1/recoveries/{made['id']}/cancel"
    cancelled = caller.post(path).json()
    assert (cancelled["status"], cancelled["reason"]) == ("failed", "cancelled")
    with database.transaction(write=False) as db:
        assert db.get_one(RecoveryRow, made["id"]).input_values is None
    (attempt,) = attempts_of(caller, cancelled)
    assert (attempt["status"], attempt["error"]["type"]) == ("failed", "cancelled")
    assert_problem(caller.post(path), 409, "invalid_state")
    replay_all(caller)
    assert events_of(caller, made["id"]) == ["recovery.started", "recovery.failed"]


def test_a_live_recovery_ends_as_its_live_replay_does(caller: Caller) -> None:
    shared = story(caller)
    caller, session_id = shared.owner, shared.sessions["usual"]
    body = {"session_id": session_id, "sandbox": "live"}
    cookie = {"name": "sid", "value": "hush-hush-43", "domain": "erp.example"}
    stranger = json.dumps({"cookies": [{**cookie, "domain": "bank.example"}]})
    assert_problem(caller.post("/v1/recoveries", body), 403, "insufficient_scope")
    live = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")
    assert_problem(live.post("/v1/recoveries", body), 422, "url_not_allowed")
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
        row.live_hosts = ["erp.example"]
        db.add(row)
    inputs = {"pin": "hush-hush-42", "login": json.dumps({"cookies": [cookie]})}
    policy = {"storage_state_ref": "login", "allow_methods": {"erp.example": ["GET"]}}
    elsewhere = {**policy, "allow_hosts": ["bank.example"]}
    for sent, pointer in (
        ({"policy": elsewhere}, "/policy/allow_hosts/0"),
        ({"policy": policy, "inputs": {"login": stranger}}, "/inputs/login"),
    ):
        problem = assert_problem(live.post("/v1/recoveries", {**body, **sent}), 422, "url_not_allowed")
        assert problem["errors"][0]["pointer"] == pointer
    made = live.post("/v1/recoveries", {**body, "inputs": inputs, "policy": policy}).json()
    assert {name: made["policy"][name] for name in policy} == policy and "min_support" not in made["policy"]
    assert_problem(caller.post(f"/v1/recoveries/{made['id']}/cancel"), 403, "insufficient_scope")
    runtime = caller.service.runtime
    with runtime.database.transaction(write=False) as db:
        stored = db.get_one(RecoveryRow, made["id"]).input_values
    assert stored is not None and b"hush" not in stored and made["inputs"] == ["login", "pin"]
    replay_all(caller)
    dry, tried = attempts_of(caller, get_recovery(caller, made["id"]))
    assert (tried["status"], get_recovery(caller, made["id"])["status"]) == ("queued", "started")
    with runtime.database.transaction(write=False) as db:
        rows = [db.get_one(ReplayRow, attempt["id"]) for attempt in (dry, tried)]
        assert db.get_one(RecoveryRow, made["id"]).input_values is None
        assert "hush" not in " ".join(str(row.data) for row in db.exec(select(OutboxRow)))
    assert [row.input_names for row in rows] == [["login", "pin"]] * 2 and rows[0].input_values is None
    assert decrypt_inputs(runtime.settings.secret, tried["id"], rows[1].input_values) == inputs
    assert rows[0].spec["policy"] == rows[1].spec["policy"] and "allow_methods" not in dry["policy"]
    assert {name: tried["policy"][name] for name in policy} == policy
    with runtime.database.transaction(write=True) as db:
        claimed = claim_live_replay(db, "tests", [tried["id"]])
    assert claimed is not None
    journal = ReplayJournal(runtime, tried["id"], claimed[1], lambda: False)
    journal.fail("sandbox", "The browser was lost.")
    journal.release()
    replay_all(caller)
    shown = get_recovery(caller, made["id"])
    assert (dry["sandbox"], dry["status"], tried["sandbox"], tried["mode"]) == (
        "dry",
        "completed",
        "live",
        "guided",
    )
    assert (shown["status"], shown["reason"]) == ("failed", "live_replay_ended")
    with runtime.database.transaction(write=True) as db:
        # As if the purge of the donor had removed the attempt before the recovery read it.
        recovery = db.get_one(RecoveryRow, made["id"])
        recovery.status, recovery.finished_at, recovery.reason = "started", None, None
        db.add(recovery)
        db.delete(db.get_one(ReplayRow, tried["id"]))
    replay_all(caller)
    again = get_recovery(caller, made["id"])
    assert (again["reason"], again["replay_ids"]) == ("live_replay_ended", shown["replay_ids"])
    actions = [entry["action"] for entry in caller.get("/v1/audit").json()["data"]]
    assert actions.count("recovery.create") == 1 and "replay.create" not in actions


def test_wrong_requests_are_refused_with_a_pointer(caller: Caller) -> None:
    nowhere = {"session_id": "ses_00000000000000000000000000", "sandbox": "dry"}
    for members, pointer in (
        ({"sandbox": None}, "/sandbox"),
        ({"sandbox": "wet"}, "/sandbox"),
        ({"mode": "full"}, "/mode"),
        ({"inputs": {"pin": "x" * 4_097}}, "/inputs/pin"),
        ({"policy": {"retries": 3}}, "/policy/retries"),
        ({"policy": {"storage_state_ref": "login"}}, "/policy/storage_state_ref"),
        ({"sandbox": "live", "policy": {"min_support": 0.2}}, "/policy/min_support"),
        ({"failure_tag": ""}, "/failure_tag"),
        ({"failure_tag": "a\u0007b"}, "/failure_tag"),
        ({"recovery_point": {"session_id": "ses_1"}}, "/recovery_point"),
        (
            {"recovery_point": {"session_id": "ses_1", "event_id": "evt_1", "frame_id": "frm_1"}},
            "/recovery_point",
        ),
    ):
        problem = assert_problem(caller.post("/v1/recoveries", nowhere | members), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == pointer
    assert_problem(caller.post("/v1/recoveries", nowhere), 404, "not_found")
    recording = caller.make_session(workflow="approve")
    assert_problem(
        caller.post("/v1/recoveries", {"session_id": recording, "sandbox": "dry"}), 409, "session_not_sealed"
    )
    session_id = failing(caller)
    elsewhere = make_run(caller, "Open", workflow="other", seal=True)
    for point, status in (
        ({"session_id": elsewhere, "event_id": "evt_nowhere"}, 422),
        ({"session_id": session_id, "event_id": "evt_nowhere"}, 404),
        ({"session_id": session_id, "frame_id": "frm_nowhere"}, 404),
    ):
        body = {"session_id": session_id, "sandbox": "dry", "recovery_point": point}
        assert caller.post("/v1/recoveries", body).status_code == status


def test_lists_take_filters_and_a_repeated_request_makes_one_recovery(caller: Caller) -> None:
    shared = story(caller)
    caller, session_id = shared.owner, shared.sessions["plain"]
    body = {"session_id": session_id, "sandbox": "dry"}
    first, again = (caller.post("/v1/recoveries", body, key="once") for _ in range(2))
    assert again.json() == first.json() and again.headers["Idempotent-Replayed"] == "true"
    changed = body | {"failure_tag": "error"}
    assert_problem(caller.post("/v1/recoveries", changed, key="once"), 422, "idempotency_key_reused")
    waiting, ended = first.json()["id"], shared.recoveries["plain"]["id"]
    ids = {
        query: [row["id"] for row in caller.get(f"/v1/recoveries?{query}").json()["data"]]
        for query in (
            "workflow=plain",
            "workflow=other",
            "workflow=plain&status=started&sandbox=dry",
            f"session_id={session_id}&limit=1",
        )
    }
    assert list(ids.values()) == [[waiting, ended], [], [waiting], [waiting]]
    assert caller.post(f"/v1/recoveries/{waiting}/cancel").status_code == 200


def test_recoveries_of_suspended_workspaces_wait(caller: Caller) -> None:
    made = post_recovery(caller, failing(caller))
    for status, expected in (("suspended", "started"), ("active", "succeeded")):
        with caller.service.runtime.database.transaction(write=True) as db:
            row = db.get_one(WorkspaceRow, caller.key.workspace_id)
            row.status = status
            db.add(row)
        replay_all(caller)
        with caller.service.runtime.database.transaction(write=False) as db:
            assert db.get_one(RecoveryRow, made["id"]).status == expected


def test_recoveries_go_with_their_session(caller: Caller) -> None:
    session_id = failing(caller)
    ended = recovered(caller, session_id)
    made = post_recovery(caller, session_id)
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    for recovery in (ended, made):
        assert_problem(caller.get(f"/v1/recoveries/{recovery['id']}"), 404, "not_found")
    with caller.service.runtime.database.transaction(write=False) as db:
        assert made["id"] not in {row.id for row in list_due_recoveries(db)}
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.exec(select(RecoveryRow).where(RecoveryRow.session_id == session_id)).all() == []
        subjects = [made["id"], ended["id"], *ended["replay_ids"]]
        assert db.exec(select(OutboxRow).where(col(OutboxRow.subject_id).in_(subjects))).all() == []
    assert caller.get("/v1/replays").json()["data"] == []


def test_the_next_candidate_is_tried_when_the_donor_was_deleted(caller: Caller) -> None:
    session_id = failing(caller, successes=1)
    made = post_recovery(caller, session_id)
    donor = caller.get("/v1/sessions?outcome=success").json()["data"][0]["id"]
    seal_all(caller.service.runtime)
    assert caller.delete(f"/v1/sessions/{donor}").status_code == 204
    replay_all(caller)
    shown = get_recovery(caller, made["id"])
    assert (shown["status"], shown["candidates"]) == ("failed", [])
    assert shown["reason"] == "no_recovery_points"


def begin_attempt(caller: Caller, recovery_id: str) -> None:
    """Start the first attempt of a recovery; no run works on it."""
    runtime = caller.service.runtime
    with lease_for_block(runtime.database, "recoveries of a test", "tests", ttl_ms=60_000) as held:
        with runtime.database.transaction(write=False) as db:
            row = db.get_one(RecoveryRow, recovery_id)
            session = db.get_one(SessionRow, row.session_id)
        failure = SessionFailure(row.failure_tag, row.failed_at_ms)
        candidates = list_recovery_candidates(runtime, session, failure)
        assert held is not None and candidates
        continue_recovery(runtime, held, row, candidates=candidates)


def list_due(caller: Caller) -> set[str]:
    with caller.service.runtime.database.transaction(write=False) as db:
        return {row.id for row in list_due_recoveries(db)}


def test_a_recovery_goes_on_after_the_purge_of_its_donor(caller: Caller) -> None:
    made = post_recovery(caller, failing(caller, successes=1))
    seal_all(caller.service.runtime)
    begin_attempt(caller, made["id"])
    assert made["id"] not in list_due(caller)
    (attempt,) = get_recovery(caller, made["id"])["replay_ids"]
    donor = caller.get(f"/v1/replays/{attempt}").json()["session_id"]
    assert caller.delete(f"/v1/sessions/{donor}?hard=true").status_code == 204
    assert made["id"] in list_due(caller)
    replay_all(caller)
    assert get_recovery(caller, made["id"])["status"] == "failed"


def test_a_run_finds_recoveries_whose_attempt_ended_unseen(caller: Caller) -> None:
    made = post_recovery(caller, failing(caller, successes=1))
    seal_all(caller.service.runtime)
    begin_attempt(caller, made["id"])
    with caller.service.runtime.database.transaction(write=True) as db:
        # As if the transaction that held the recovery when its attempt ended had failed.
        (attempt,) = db.exec(select(ReplayRow).where(ReplayRow.cause == made["id"])).all()
        set_replay_ended(attempt, "completed")
        db.add(attempt)
    assert made["id"] not in list_due(caller)
    replay_all(caller)
    assert get_recovery(caller, made["id"])["status"] == "succeeded"


def test_a_turn_searches_no_recoveries_whose_attempts_are_under_way(caller: Caller) -> None:
    database = caller.service.runtime.database
    made = post_recovery(caller, failing(caller))
    begin_attempt(caller, made["id"])
    if not database.is_sqlite:
        with database.transaction(write=True) as db:
            db.connection().exec_driver_sql("ANALYZE recoveries")
    with noted_statements() as noted, database.transaction(write=False) as db:
        list_due_recoveries(db)
    plans = [plan_of(database, *query) for query in noted if "recoveries" in query[0]]
    assert plans and all("ix_recoveries_due" in plan for plan in plans), plans
    assert not any("ix_recoveries_open" in plan or "Seq Scan on recoveries" in plan for plan in plans), plans
    assert caller.post(f"/v1/recoveries/{made['id']}/cancel").status_code == 200


def test_a_recovery_that_ended_its_run_several_times_is_set_aside(caller: Caller) -> None:
    made = post_recovery(caller, failing(caller))
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(RecoveryRow, made["id"])
        row.searches = MOST_SEARCHES
        db.add(row)
    assert replay_all(caller).recoveries == {"internal": 1}
    assert get_recovery(caller, made["id"])["reason"] == "internal"


def test_workspaces_take_turns_with_their_searches(caller: Caller) -> None:
    flooded = failing(caller)
    floods = [post_recovery(caller, flooded)["id"] for _ in range(3)]
    other = caller.service.make_caller()
    made = post_recovery(other, failing(other))["id"]
    # Those of the other workspace are looked for by the second search, not after the three.
    runtime = caller.service.runtime
    searches = CandidateSearches(runtime, StorePauses(), ReplayDrainCounts())
    with lease_for_block(runtime.database, "searches", "tests", ttl_ms=60_000) as held:
        assert held is not None
        with runtime.database.transaction(write=False) as db:
            for recovery_id in (*floods, made):
                assert searches.add(db.get_one(RecoveryRow, recovery_id))
            more = [RecoveryRow(**db.get_one(RecoveryRow, floods[0]).model_dump() | {"id": f"rcv_{n}"})
                    for n in range(30)]  # fmt: skip
        assert [searches.add(row) for row in more].count(True) == 17
        counted: list[str] = []
        while len(counted) < 2:
            searches.advance(held)
            with runtime.database.transaction(write=False) as db:
                counted = [row_id for row_id in (*floods, made) if db.get_one(RecoveryRow, row_id).searches]
        searches.end()
    assert counted == [floods[0], made]
    # The tests of this file share the database.
    for owner, recovery_id in [(other, made), *((caller, flood) for flood in floods)]:
        assert owner.post(f"/v1/recoveries/{recovery_id}/cancel").status_code == 200


def test_a_search_that_takes_long_goes_on_beside_the_others(caller: Caller) -> None:
    runtime = caller.service.runtime
    made = [post_recovery(caller, session_id)["id"] for session_id in [failing(caller)] * 2]
    searches = CandidateSearches(runtime, StorePauses(), ReplayDrainCounts(), quick_s=0.0)
    with lease_for_block(runtime.database, "searches", "tests", ttl_ms=300_000) as held:
        assert held is not None
        with runtime.database.transaction(write=False) as db:
            rows = [db.get_one(RecoveryRow, recovery_id) for recovery_id in made]
        assert all(map(searches.add, rows))
        until, has_both = time.monotonic() + 240, False
        while searches.advance(held) and time.monotonic() < until:
            has_both |= len(searches._long.list_ids()) == 2
            time.sleep(0.01)
        assert has_both and searches.list_ids() == []
        searches.end()
    shown = [get_recovery(caller, recovery_id) for recovery_id in made]
    assert [len(recovery["replay_ids"]) for recovery in shown] == [1, 1]
    for recovery in shown:
        assert caller.post(f"/v1/recoveries/{recovery['id']}/cancel").status_code == 200


def test_a_search_that_runs_out_of_time_keeps_the_candidate_that_it_has(caller: Caller) -> None:
    runtime = caller.service.runtime
    made = post_recovery(caller, failing(caller))
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(RecoveryRow, made["id"])
        session = db.get_one(SessionRow, row.session_id)
    failure = SessionFailure(row.failure_tag, row.failed_at_ms)
    every = list_recovery_candidates(runtime, session, failure)
    (first,) = list_recovery_candidates(runtime, session, failure, most_seconds=0.0)
    assert len(every) == 2 and first["node_id"] in {candidate["node_id"] for candidate in every}
    assert caller.post(f"/v1/recoveries/{made['id']}/cancel").status_code == 200


def test_a_recovery_waits_for_the_store_of_its_donors(caller: Caller) -> None:
    runtime = caller.service.runtime
    made = post_recovery(caller, failing(caller))
    folder = Path(runtime.settings.blob_url)
    away = folder.rename(folder.with_name("away"))
    folder.write_text("no folder")
    assert replay_all(caller).recoveries == {}
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(RecoveryRow, made["id"])
        session = db.get_one(SessionRow, row.session_id)
    assert (row.status, row.searches, row.candidates) == ("started", 0, None)
    failure = SessionFailure(row.failure_tag, row.failed_at_ms)
    assert list_recovery_candidates(runtime, session, failure, skip_unavailable=True) == []
    # Without time left it is not known whether the session has recovery points.
    with pytest.raises(InvalidRecording):
        list_recovery_candidates(runtime, session, failure, skip_unavailable=True, most_seconds=0.0)
    folder.unlink()
    away.rename(folder)
    assert replay_all(caller).recoveries == {"succeeded": 1}


def test_a_search_that_takes_too_long_ends_its_recovery_alone(caller: Caller) -> None:
    session_id = failing(caller)
    made = post_recovery(caller, session_id)
    replay = caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry"}).json()
    # The process takes longer than this to start.
    run = ReplayDrainRun(caller.service.runtime, "tests", search_process=SearchProcess(seconds=0.1))
    assert run.take()
    while run.work_on_due_replays():
        pass
    run.release()
    assert (get_recovery(caller, made["id"])["status"], get_recovery(caller, made["id"])["reason"]) == (
        "failed",
        "invalid_recording",
    )
    assert caller.get(f"/v1/replays/{replay['id']}").json()["status"] == "completed"


def test_a_recovery_whose_files_are_damaged_fails_and_the_run_goes_on(caller: Caller) -> None:
    session_id = failing(caller)
    folder = Path(caller.service.runtime.lake.url) / caller.key.workspace_id / "live" / "steps"
    files = list(folder.rglob("*.parquet"))
    assert files
    for file in files:
        file.write_bytes(b"damaged")
    made = post_recovery(caller, session_id)
    replay = caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry"}).json()
    report = replay_all(caller)
    assert (report.recoveries, report.statuses) == ({"internal": 1}, {"completed": 1})
    assert (get_recovery(caller, made["id"])["status"], get_recovery(caller, made["id"])["reason"]) == (
        "failed",
        "internal",
    )
    assert caller.get(f"/v1/replays/{replay['id']}").json()["status"] == "completed"
