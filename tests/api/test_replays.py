"""Replays over HTTP: requests, the work of a drain run, steps, decisions, events. Spec §4.6; contract §8."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from recorder import clock, limits
from recorder.models.operations import OutboxRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.due_replays import list_due_replays
from recorder.replay_service.replay_drain_run import ReplayDrainRun
from recorder.replay_service.requests import request_checks
from recorder.replay_service.scheduling.store_pauses import StorePauses
from recorder.replays.replay_policy import DECISION_TIME
from tests.support.factories import Caller, assert_problem, event, frame
from tests.support.replay_requests import allow_hosts, events_of, get_replay, post_replay
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import OTHER, replay_all, sealed_run


def test_a_replay_of_an_unchanged_page_is_completed(caller: Caller) -> None:
    session_id = sealed_run(caller)
    made = post_replay(caller, session_id)
    assert (made["status"], made["mode"], made["sandbox"]) == ("queued", "full", "dry")
    assert made["progress"] == {"step": 0, "steps": None} and made["finished_at"] is None
    assert replay_all(caller).statuses == {"completed": 1}
    shown = get_replay(caller, made["id"])
    assert (shown["status"], shown["error"], shown["divergence"]) == ("completed", None, None), shown
    assert shown["summary"]["matched"] == 2 and shown["summary"]["evidence"] == "dom"
    assert shown["progress"] == {"step": 2, "steps": 2}
    steps = caller.get(f"/v1/replays/{made['id']}/steps?limit=1").json()
    assert [step["step"] for step in steps["data"]] == [1] and steps["has_more"]
    rest = caller.get(f"/v1/replays/{made['id']}/steps?limit=1&cursor={steps['next_cursor']}").json()
    assert [step["step"] for step in rest["data"]] == [2] and not rest["has_more"]
    assert {step["outcome"] for step in steps["data"] + rest["data"]} == {"matched"}
    assert events_of(caller, made["id"]) == ["replay.queued", "replay.running", "replay.completed"]


def test_a_replay_against_a_changed_page_diverges(caller: Caller) -> None:
    session_id, changed = sealed_run(caller), sealed_run(caller, first=OTHER)
    made = post_replay(caller, session_id, against={"session_id": changed})
    report = replay_all(caller)
    shown = get_replay(caller, made["id"])
    assert shown["status"] == "diverged" and shown["against"] == {"session_id": changed}
    assert (shown["divergence"]["step"], shown["divergence"]["kind"]) == (1, "target_missing")
    assert (report.statuses, report.divergences) == ({"diverged": 1}, {"target_missing": 1})
    assert events_of(caller, made["id"])[-1] == "replay.diverged"


def test_a_partial_replay_begins_with_the_first_event_at_or_after_its_anchor(caller: Caller) -> None:
    session_id = sealed_run(caller)
    events = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    frames = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    for anchor, position in (
        ({"tag": "ready"}, 1),
        ({"frame_id": frames[0]["id"]}, 0),
        ({"event_id": events[1]["id"]}, 1),
    ):
        made = post_replay(caller, session_id, mode="partial", anchor=anchor)
        expected = {"event_id": events[position]["id"], "t_ms": events[position]["t_ms"]}
        assert (made["anchor"], made["anchor_event"]) == (anchor, expected)
        replay_all(caller)
        steps = caller.get(f"/v1/replays/{made['id']}/steps").json()["data"]
        assert [step["event_id"] for step in steps] == [item["id"] for item in events[position:]]


def test_a_guided_replay_waits_for_a_decision_and_goes_on(caller: Caller) -> None:
    session_id = sealed_run(caller)
    made = post_replay(caller, session_id, mode="guided")
    replay_all(caller)
    shown = get_replay(caller, made["id"])
    assert shown["status"] == "running" and shown["awaiting"]["step"] == 2
    path = f"/v1/replays/{made['id']}/decision"
    problem = assert_problem(caller.post(path, {"step": 1, "action": "act"}), 409, "invalid_state")
    assert problem["current_status"] == "running"
    decided = caller.post(path, {"step": 2, "action": "act"})
    assert (decided.status_code, decided.json()["awaiting"]) == (200, None)
    assert_problem(caller.post(path, {"step": 2, "action": "act"}), 409, "invalid_state")
    replay_all(caller)
    assert get_replay(caller, made["id"])["status"] == "completed"
    assert events_of(caller, made["id"]) == ["replay.queued", "replay.running", "replay.completed"]


def test_a_guided_replay_without_a_decision_fails_by_timeout(caller: Caller) -> None:
    made = post_replay(caller, sealed_run(caller), mode="guided")
    replay_all(caller)
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(ReplayRow, made["id"])
        assert row.awaiting_until is not None
        row.awaiting_until -= DECISION_TIME
        db.add(row)
    late = caller.post(f"/v1/replays/{made['id']}/decision", {"step": 2, "action": "act"})
    assert_problem(late, 409, "invalid_state")
    replay_all(caller)
    shown = get_replay(caller, made["id"])
    assert (shown["status"], shown["error"]["type"], shown["awaiting"]) == ("failed", "timeout", None)


def test_a_cancelled_replay_stays_so(caller: Caller) -> None:
    made = post_replay(caller, sealed_run(caller))
    path = f"/v1/replays/{made['id']}/cancel"
    cancelled = caller.post(path).json()
    assert (cancelled["status"], cancelled["error"]["type"]) == ("failed", "cancelled")
    assert_problem(caller.post(path), 409, "invalid_state")
    assert replay_all(caller).statuses == {}
    assert events_of(caller, made["id"]) == ["replay.queued", "replay.failed"]


def test_live_replays_need_their_scope_and_allowed_hosts(caller: Caller) -> None:
    session_id = sealed_run(caller)
    body = {"session_id": session_id, "sandbox": "live"}
    problem = assert_problem(caller.post("/v1/replays", body), 403, "insufficient_scope")
    assert "replay:live" in problem["detail"]
    # Before anything is looked up.
    missing = body | {"session_id": "ses_00000000000000000000000000"}
    assert_problem(caller.post("/v1/replays", missing), 403, "insufficient_scope")
    live = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")
    assert_problem(live.post("/v1/replays", body), 422, "url_not_allowed")
    allow_hosts(caller, "erp.example")
    for hosts, pointer in ((["elsewhere.example"], "/policy/allow_hosts/0"), ([], "/policy/allow_hosts")):
        refused = body | {"policy": {"allow_hosts": hosts}}
        problem = assert_problem(live.post("/v1/replays", refused), 422, "url_not_allowed")
        assert problem["errors"][0]["pointer"] == pointer
    made = live.post("/v1/replays", body | {"policy": {"allow_hosts": ["erp.example"]}})
    assert made.status_code == 202
    assert_problem(caller.post(f"/v1/replays/{made.json()['id']}/cancel"), 403, "insufficient_scope")
    replay_all(caller)  # leaves it to the live sandbox
    assert get_replay(caller, made.json()["id"])["status"] == "queued"
    with_other = body | {"against": {"session_id": session_id}}
    problem = assert_problem(live.post("/v1/replays", with_other), 422, "validation_failed")
    assert problem["errors"][0]["pointer"] == "/against"
    actions = [entry["action"] for entry in caller.get("/v1/audit").json()["data"]]
    assert actions.count("replay.create") == 1


def test_live_replays_draw_on_a_bucket_of_their_own(caller: Caller) -> None:
    live = caller.service.make_caller(scope="write replay:live", tier="default")
    body = {"session_id": "ses_00000000000000000000000000", "sandbox": "live"}
    answers = [live.post("/v1/replays", body) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [404] * 10 + [429]
    assert answers[-1].headers["X-Scope"] == "per_key"
    assert live.post("/v1/replays", body | {"sandbox": "dry"}).status_code == 404


def test_inputs_are_named_and_never_shown(caller: Caller) -> None:
    allow_hosts(caller, "erp.example")
    live = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")
    inputs = {"password": "hush-hush-42"}
    session_id = sealed_run(caller)
    for sandbox in ("live", "dry"):
        made = post_replay(live, session_id, sandbox=sandbox, inputs=inputs)
        assert made["inputs"] == ["password"]
        with caller.service.runtime.database.transaction(write=False) as db:
            stored = db.get_one(ReplayRow, made["id"]).input_values
            # A dry one types nothing, and keeps none.
            assert stored is None if sandbox == "dry" else stored is not None and b"hush" not in stored
            assert "hush" not in " ".join(str(row.data) for row in db.exec(select(OutboxRow)))
        assert "hush" not in caller.get("/v1/replays").text
        assert live.post(f"/v1/replays/{made['id']}/cancel").status_code == 200
        with caller.service.runtime.database.transaction(write=False) as db:
            assert db.get_one(ReplayRow, made["id"]).input_values is None
    assert "hush" not in caller.get(f"/v1/replays/{made['id']}").text


def test_a_stored_state_must_be_of_an_allowed_host(caller: Caller) -> None:
    allow_hosts(caller, "erp.example")
    live = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live")
    state = {"cookies": [{"name": "sid", "value": "hush-hush-42", "domain": "bank.example"}]}
    body = {
        "session_id": sealed_run(caller),
        "sandbox": "live",
        "policy": {"storage_state_ref": "login"},
        "inputs": {"login": json.dumps(state)},
    }
    problem = assert_problem(live.post("/v1/replays", body), 422, "url_not_allowed")
    assert problem["errors"][0]["pointer"] == "/inputs/login"
    methods = {"policy": {"allow_methods": {"bank.example": ["GET"]}}}
    problem = assert_problem(live.post("/v1/replays", {**body, **methods}), 422, "url_not_allowed")
    assert problem["errors"][0]["pointer"] == "/policy/allow_methods/bank.example"
    state["cookies"].append({"name": "sid", "value": "hush", "domain": ".example"})
    made = live.post("/v1/replays", {**body, "inputs": {"login": json.dumps(state)}})
    assert (made.status_code, made.json()["inputs"]) == (202, ["login"]), made.text
    assert made.json()["policy"]["storage_state_ref"] == "login" and "hush" not in made.text


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no sandbox": ({"sandbox": None}, "/sandbox"),
    "unknown sandbox": ({"sandbox": "wet"}, "/sandbox"),
    "unknown mode": ({"mode": "half"}, "/mode"),
    "partial without anchor": ({"mode": "partial"}, "/anchor"),
    "full with anchor": ({"anchor": {"tag": "ready"}}, "/anchor"),
    "two anchors": ({"mode": "partial", "anchor": {"tag": "a", "event_id": "evt_1"}}, "/anchor"),
    "empty until": ({"until": {}}, "/until"),
    "unknown policy": ({"policy": {"retries": 3}}, "/policy/retries"),
    "thresholds the wrong way": (
        {"policy": {"thresholds": {"ok": 0.1, "diverged": 0.5}}},
        "/policy/thresholds",
    ),
    "host that is none": ({"policy": {"allow_hosts": ["erp.example:x"]}}, "/policy/allow_hosts/0"),
    "method that is none": (
        {"policy": {"allow_methods": {"erp.example": ["get"]}}},
        "/policy/allow_methods/erp.example/0",
    ),
    "host without methods": (
        {"policy": {"allow_methods": {"erp.example": []}}},
        "/policy/allow_methods/erp.example",
    ),
    **{
        f"origin {origin}": (
            {"sandbox": "live", "policy": {"base_url_map": {"https://erp.example": origin}}},
            "/policy/base_url_map/https:~1~1erp.example",
        )
        for origin in ("http://[x", "http://ex\u2100mple", "http://erp.example:http", "http://a/b", "ftp://a")
    },
    "page of a dry replay": ({"policy": {"heal": "off", "viewport": {"w": 640}}}, "/policy/viewport"),
    "support without a graph": ({"policy": {"min_support": 0.2}}, "/policy/min_support"),
    "support of a live replay": (
        {"sandbox": "live", "policy": {"min_support": 0.2}},
        "/policy/min_support",
    ),
    "input of the wrong type": ({"inputs": {"password": 7}}, "/inputs/password"),
    "input without a name": ({"inputs": {"": "x"}}, "/inputs/"),
    "name of an input that is too long": ({"inputs": {"k" * 300: "x"}}, f"/inputs/{'k' * 100}…"),
    "automatic anchor that is none": ({"mode": "partial", "anchor": {"auto": False}}, "/anchor/auto"),
    "input that is too long": ({"inputs": {"a/b": "x" * 4_097}}, "/inputs/a~1b"),
    "file that is too long": ({"inputs": {"evt_1": "data:," + "x" * 262_145}}, "/inputs/evt_1"),
    "stored state that is none": (
        {"sandbox": "live", "inputs": {"state": "{}x"}, "policy": {"storage_state_ref": "state"}},
        "/inputs/state",
    ),
    "stored state that is too long": (
        {"sandbox": "live", "inputs": {"state": " " * 262_145}, "policy": {"storage_state_ref": "state"}},
        "/inputs/state",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_refused_with_a_pointer(caller: Caller, case: str) -> None:
    members, pointer = WRONG[case]
    body = {"session_id": "ses_00000000000000000000000000", "sandbox": "dry"} | members
    problem = assert_problem(caller.post("/v1/replays", body), 422, "validation_failed")
    assert problem["errors"][0]["pointer"] == pointer


def test_a_policy_shows_what_has_an_effect_and_can_be_sent_again(caller: Caller) -> None:
    body = {"session_id": sealed_run(caller), "sandbox": "dry"}
    live_only = {"allow_methods": {"erp.example": ["GET"]}, "storage_state_ref": "login"}
    problem = assert_problem(
        caller.post("/v1/replays", {**body, "policy": live_only}), 422, "validation_failed"
    )
    assert [error["pointer"] for error in problem["errors"]] == [f"/policy/{name}" for name in live_only]
    assert "which takes on_divergence, heal, thresholds" in problem["errors"][0]["message"]
    shown = caller.post("/v1/replays", {**body, "policy": {"allow_hosts": None}}).json()["policy"]
    assert set(shown) == {"on_divergence", "heal", "thresholds"}
    assert caller.post("/v1/replays", {**body, "policy": shown}).json()["policy"] == shown
    graph = {**body, "against": {"graph": True}}
    assert caller.post("/v1/replays", graph).json()["policy"] == {**shown, "min_support": 0.01}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"mode": "partial", "anchor": {"auto": False}}, "Takes true."),
        ({"mode": "half"}, "Takes 'full', 'partial' or 'guided'."),
        ({"inputs": {"": "x"}}, "The member's name takes at least 1 character."),
    ],
    ids=["constant", "texts", "name"],
)
def test_messages_are_in_words_of_json(caller: Caller, members: dict[str, Any], message: str) -> None:
    body = {"session_id": "ses_unknown", "sandbox": "dry", **members}
    problem = assert_problem(caller.post("/v1/replays", body), 422, "validation_failed")
    assert [error["message"] for error in problem["errors"]] == [message]


def test_sessions_and_places_that_are_not_there(caller: Caller) -> None:
    session_id = sealed_run(caller)
    recording = caller.make_session(workflow="approve")
    body = {"session_id": recording, "sandbox": "dry"}
    assert_problem(caller.post("/v1/replays", body), 409, "session_not_sealed")
    for position, resource in (
        ({"tag": "nowhere"}, "tag"),
        ({"frame_id": "frm_nowhere"}, "frame"),
        ({"event_id": "evt_nowhere"}, "event"),
    ):
        for members in ({"mode": "partial", "anchor": position}, {"until": position}):
            answer = caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry"} | members)
            assert assert_problem(answer, 404, "not_found")["resource"] == resource
    frames = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    backwards = {"mode": "partial", "anchor": {"tag": "ready"}, "until": {"frame_id": frames[0]["id"]}}
    answer = caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry"} | backwards)
    assert_problem(answer, 422, "invalid_range")


def test_a_range_of_two_events_of_one_millisecond_must_go_forwards(caller: Caller) -> None:
    session_id = caller.make_session(workflow="approve")
    caller.add_frames(session_id, frame(1, id="frm_early"), frame(5, id="frm_late"))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "early", "t_ms": 2})
    caller.add_events(session_id, event(5, id="evt_A"), event(5, id="evt_B"))
    caller.post(f"/v1/sessions/{session_id}/stop")
    seal_all(caller.service.runtime)

    def post(**members: Any) -> Any:
        return caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry"} | members)

    for anchor, until, status in (("evt_B", "evt_A", 422), ("evt_A", "evt_A", 202), ("evt_A", "evt_B", 202)):
        answer = post(mode="partial", anchor={"event_id": anchor}, until={"event_id": until})
        assert answer.status_code == status, answer.text
        if status == 422:
            assert_problem(answer, 422, "invalid_range")
    # A replay ends with the last event at or before `until`.
    for until in ({"frame_id": "frm_early"}, {"tag": "early"}):
        for members in ({}, {"mode": "partial", "anchor": {"frame_id": "frm_early"}}):
            problem = assert_problem(post(until=until, **members), 404, "not_found")
            assert problem["resource"] == "event"
    assert post(until={"frame_id": "frm_late"}).status_code == 202


def test_a_range_without_an_event_is_refused(caller: Caller) -> None:
    session_id = sealed_run(caller)  # clicks at 100 and 300, the tag ready at 250
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "end", "t_ms": 299}).status_code == 201
    body = {"session_id": session_id, "sandbox": "dry", "mode": "partial", "anchor": {"tag": "ready"}}
    assert_problem(caller.post("/v1/replays", body | {"until": {"tag": "end"}}), 422, "invalid_range")
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "end", "t_ms": 300}).status_code == 201
    assert caller.post("/v1/replays", body | {"until": {"tag": "end"}}).status_code == 202


def test_lists_take_filters(caller: Caller) -> None:
    first, second = sealed_run(caller), sealed_run(caller, workflow="reject")
    made = [post_replay(caller, session_id)["id"] for session_id in (first, second)]
    replay_all(caller)
    waiting = post_replay(caller, first)["id"]
    ids = {
        query: [row["id"] for row in caller.get(f"/v1/replays?{query}").json()["data"]]
        for query in (
            "sandbox=dry",
            "workflow=reject",
            "status=queued",
            f"session_id={first}",
            "cause=rcv_00000000000000000000000000",
        )
    }
    assert list(ids.values()) == [[waiting, *made[::-1]], [made[1]], [waiting], [waiting, made[0]], []]


def test_a_repeated_request_makes_one_replay(caller: Caller) -> None:
    body = {"session_id": sealed_run(caller), "sandbox": "dry"}
    first = caller.post("/v1/replays", body, key="once")
    second = caller.post("/v1/replays", body, key="once")
    assert (second.status_code, second.json()) == (202, first.json())
    assert second.headers["Idempotent-Replayed"] == "true"
    assert_problem(
        caller.post("/v1/replays", body | {"mode": "guided"}, key="once"), 422, "idempotency_key_reused"
    )


def test_a_repeated_key_is_answered_without_another_look_at_the_recording(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = sealed_run(caller)
    event_id = caller.get(f"/v1/sessions/{session_id}/events").json()["data"][0]["id"]
    bodies = {
        "/v1/replays": {"mode": "partial", "anchor": {"event_id": event_id}},
        "/v1/recoveries": {
            "failure_tag": "stuck",
            "recovery_point": {"session_id": session_id, "event_id": event_id},
        },
    }
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "stuck", "t_ms": 1_500})
    posted = {
        path: caller.post(path, {"session_id": session_id, "sandbox": "dry"} | body, key="once")
        for path, body in bodies.items()
    }
    assert [answer.status_code for answer in posted.values()] == [202, 202]

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("The recording was read again.")

    monkeypatch.setattr(request_checks, "find_anchor_time", fail)
    for path, body in bodies.items():
        again = caller.post(path, {"session_id": session_id, "sandbox": "dry"} | body, key="once")
        assert (again.status_code, again.json()) == (202, posted[path].json())


def test_replays_go_with_their_session_and_the_one_they_were_compared_with(caller: Caller) -> None:
    session_id, changed = sealed_run(caller), sealed_run(caller, first=OTHER)
    kept = post_replay(caller, session_id)
    body = {"session_id": session_id, "sandbox": "dry", "against": {"session_id": changed}}
    compared = caller.post("/v1/replays", body, key="compared").json()
    replay_all(caller)
    assert caller.delete(f"/v1/sessions/{changed}").status_code == 204
    assert_problem(caller.get(f"/v1/replays/{compared['id']}"), 404, "not_found")
    assert caller.delete(f"/v1/sessions/{changed}?hard=true").status_code == 204
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.get(ReplayRow, compared["id"]) is None and db.get(ReplayRow, kept["id"]) is not None
        steps = select(ReplayStepRow).where(ReplayStepRow.replay_id == compared["id"])
        assert db.exec(steps).all() == []
    assert events_of(caller, compared["id"]) == []
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    assert caller.get("/v1/replays").json()["data"] == []
    assert events_of(caller, kept["id"]) == []


def test_a_run_whose_lease_another_run_has_replays_nothing(caller: Caller) -> None:
    post_replay(caller, sealed_run(caller))
    first, second = (ReplayDrainRun(caller.service.runtime, owner) for owner in ("one", "two"))
    assert first.take() and not second.take()
    first.release()
    assert second.take() and second.work_on_due_replays()
    second.release()


def test_replays_of_a_suspended_workspace_wait(caller: Caller) -> None:
    replay_all(caller)  # those of other tests
    made = post_replay(caller, sealed_run(caller))
    for status, expected in (("suspended", {}), ("active", {"completed": 1})):
        with caller.service.runtime.database.transaction(write=True) as db:
            row = db.get_one(WorkspaceRow, caller.key.workspace_id)
            row.status = status
            db.add(row)
        assert replay_all(caller).statuses == expected
    assert get_replay(caller, made["id"])["status"] == "completed"


def test_workspaces_take_turns(caller: Caller) -> None:
    flooded = sealed_run(caller)
    for _ in range(3):
        post_replay(caller, flooded)
    other = caller.service.make_caller()
    made = post_replay(other, sealed_run(other))
    with caller.service.runtime.database.transaction(write=False) as db:
        due = list_due_replays(db, limit=2, without=[])
        assert [row.workspace_id for row in due] == [caller.key.workspace_id, other.key.workspace_id]
        assert made["id"] not in [row.id for row in list_due_replays(db, limit=9, without=[made["id"]])]


def test_a_workspace_that_came_during_a_turn_is_first_in_the_next(caller: Caller) -> None:
    flooded, other = sealed_run(caller), caller.service.make_caller()
    # The cache copies no result: the policies differ.
    mine = [
        post_replay(caller, flooded, policy={"thresholds": {"ok": 0.7 + n / 1000}})["id"] for n in range(60)
    ]
    run = ReplayDrainRun(caller.service.runtime, "tests", turn_s=0.0)
    assert run.take() and run.work_on_due_replays()
    theirs = post_replay(other, sealed_run(other))["id"]
    assert run.work_on_due_replays()
    run.release()
    assert get_replay(other, theirs)["status"] == "completed"
    assert get_replay(caller, mine[-1])["status"] != "completed"
    replay_all(caller)
    assert get_replay(caller, mine[-1])["status"] == "completed"


def test_a_replay_waits_for_its_store(caller: Caller) -> None:
    runtime = caller.service.runtime
    made = post_replay(caller, sealed_run(caller))
    folder = Path(runtime.settings.blob_url)
    away = folder.rename(folder.with_name("away"))
    folder.write_text("no folder")
    run = ReplayDrainRun(runtime, "tests")
    assert run.take() and run.work_on_due_replays() and not run.work_on_due_replays()
    run.release()
    assert get_replay(caller, made["id"])["status"] == "running"
    folder.unlink()
    away.rename(folder)
    replay_all(caller)
    assert get_replay(caller, made["id"])["status"] == "completed"


@pytest.mark.parametrize(("minutes", "status"), [(9, "running"), (11, "failed")])
def test_a_replay_whose_store_is_away_for_ten_minutes_fails(
    caller: Caller, minutes: int, status: str
) -> None:
    runtime = caller.service.runtime
    made = post_replay(caller, sealed_run(caller))
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ReplayRow, made["id"])
        # A guided replay began when it was first run, long before its last decision.
        row.status, row.started_at = "running", clock.now() - timedelta(hours=1)
        db.add(row)
    folder = Path(runtime.settings.blob_url)
    away = folder.rename(folder.with_name("away"))
    folder.write_text("no folder")
    now_s = 0.0
    run = ReplayDrainRun(runtime, "tests", pauses=StorePauses(read_clock=lambda: now_s))
    assert run.take() and run.work_on_due_replays()
    assert get_replay(caller, made["id"])["status"] == "running"
    now_s = minutes * 60.0
    assert run.work_on_due_replays()
    run.release()
    folder.unlink()
    away.rename(folder)
    assert get_replay(caller, made["id"])["status"] == status
    replay_all(caller)


def test_a_store_that_answered_has_ten_minutes_again(caller: Caller) -> None:
    runtime = caller.service.runtime
    made = post_replay(caller, sealed_run(caller), mode="guided")
    folder = Path(runtime.settings.blob_url)
    times_s = [0.0]
    run = ReplayDrainRun(runtime, "tests", pauses=StorePauses(read_clock=lambda: times_s[-1]))
    assert run.take()
    statuses = []
    for now_s, is_away in ((0.0, True), (60.0, False), (660.0, True)):
        times_s.append(now_s)
        if shown := get_replay(caller, made["id"])["awaiting"]:
            decision = {"step": shown["step"], "action": "skip"}
            assert caller.post(f"/v1/replays/{made['id']}/decision", decision).status_code == 200
        away = folder.rename(folder.with_name("away")) if is_away else None
        if away is not None:
            folder.write_text("no folder")
        assert run.work_on_due_replays()
        if away is not None:
            folder.unlink()
            away.rename(folder)
        statuses.append(get_replay(caller, made["id"])["status"])
    run.release()
    assert statuses == ["running", "running", "running"]
    replay_all(caller)


def test_a_workspace_has_a_limit_of_open_replays(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_REPLAYS", 2)
    session_id = sealed_run(caller)
    for _ in range(2):
        post_replay(caller, session_id)
    body = {"session_id": session_id, "sandbox": "dry"}
    assert_problem(caller.post("/v1/replays", body), 422, "limit_reached")
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    post_replay(tester, sealed_run(tester))
    replay_all(caller)
    post_replay(caller, session_id)
