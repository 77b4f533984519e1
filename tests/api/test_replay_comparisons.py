"""Replays against a path or the whole graph, and from an automatic anchor. Contract §8."""

from typing import Any

from sqlmodel import select

from recorder.models.operations import OutboxRow
from recorder.models.replay import ReplayRow
from tests.support.completed_work import patch
from tests.support.factories import Caller, assert_problem
from tests.support.failing_runs import make_run
from tests.support.two_click_sessions import replay_all

USUAL = ("Open", "Review", "Approve")


def replayed(caller: Caller, session_id: str, **members: Any) -> dict[str, Any]:
    """Return a dry replay at its end."""
    made = caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry"} | members)
    assert made.status_code == 202, made.text
    replay_all(caller)
    shown: dict[str, Any] = caller.get(f"/v1/replays/{made.json()['id']}").json()
    return shown


def test_ways_that_no_other_session_takes_are_unseen(caller: Caller) -> None:
    for _ in range(3):
        make_run(caller, *USUAL)
    usual = make_run(caller, *USUAL)
    rare = make_run(caller, "Open", "Review", "Check", "Approve", seal=True)
    graph = {"graph": True}
    assert replayed(caller, usual, against=graph)["status"] == "completed"
    shown = replayed(caller, rare, against=graph)
    assert (shown["status"], shown["against"], shown["divergence"]["step"]) == ("diverged", graph, 3)
    divergence = shown["divergence"]
    assert (divergence["kind"], divergence["acted"]) == ("edge_unseen", False)
    # The name of what one session did alone is not shown.
    assert (divergence["expected"]["name"], divergence["observed"]["name"]) == (
        "Click Approve",
        "Click button",
    )
    strict = replayed(caller, usual, against=graph, policy={"min_support": 1.0})
    assert strict["divergence"]["kind"] == "edge_unseen"  # one of five went on to Check
    path = caller.get("/v1/memory/paths?workflow=approve").json()["data"][0]
    shown = replayed(caller, usual, against={"path_id": path["path_id"]})
    assert (shown["status"], shown["against"]) == ("completed", {"path_id": path["path_id"]})


def test_a_replay_keeps_no_text_of_other_sessions_that_name_a_node(caller: Caller) -> None:
    others = [make_run(caller, *USUAL) for _ in range(4)]
    rare = make_run(caller, "Open", "Review", "Check", "Approve", seal=True)
    shown = replayed(caller, rare, against={"graph": True})
    expected = shown["divergence"]["expected"]
    assert expected["name"] == "Click Approve"
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get_one(ReplayRow, shown["id"])
        events = db.exec(select(OutboxRow).filter_by(subject_id=shown["id"], type="replay.diverged")).all()
    (listed,) = caller.get(f"/v1/replays?session_id={rare}").json()["data"]
    bare = {**expected, "name": "Click button"}
    stored = [row.divergence, listed["divergence"], *(item.data["replay"]["divergence"] for item in events)]
    assert [each["expected"] for each in stored] == [bare] * 3
    for session_id in others:
        assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert caller.get(f"/v1/replays/{shown['id']}").json()["divergence"]["expected"] == bare


def test_comparisons_with_what_is_not_there_are_refused(caller: Caller) -> None:
    session_id = make_run(caller, *USUAL, seal=True)
    body = {"session_id": session_id, "sandbox": "dry"}
    make_run(caller, *USUAL, workflow="other", seal=True)
    (path,) = caller.get("/v1/memory/paths?workflow=other").json()["data"]
    for path_id in (path["path_id"], "pth_00000000000000000000000000", "nonsense"):
        answer = caller.post("/v1/replays", body | {"against": {"path_id": path_id}})
        assert assert_problem(answer, 404, "not_found")["resource"] == "path"
    for against in ({}, {"graph": False}, {"graph": True, "session_id": session_id}):
        assert_problem(caller.post("/v1/replays", body | {"against": against}), 422, "validation_failed")
    for anchor in ({"auto": False}, {"auto": True, "tag": "ready"}):
        wrong = body | {"mode": "partial", "anchor": anchor}
        assert_problem(caller.post("/v1/replays", wrong), 422, "validation_failed")
    live = body | {"mode": "partial", "anchor": {"auto": True}, "sandbox": "live"}
    problem = assert_problem(caller.post("/v1/replays", live), 422, "validation_failed")
    assert "POST /v1/recoveries" in problem["errors"][0]["message"]
    answer = caller.post("/v1/replays", body | {"mode": "partial", "anchor": {"auto": True}})
    problem = assert_problem(answer, 422, "validation_failed")
    assert (problem["errors"][0]["pointer"], problem["errors"][0]["code"]) == ("/anchor/auto", "no_failure")


def test_an_automatic_anchor_is_the_best_candidate(caller: Caller) -> None:
    for _ in range(2):
        make_run(caller, *USUAL)
    session_id = make_run(caller, *USUAL, error_at=3_200, seal=True)
    shown = replayed(caller, session_id, mode="partial", anchor={"auto": True})
    events = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert shown["anchor"] == {"auto": True}
    assert shown["anchor_event"] == {"event_id": events[1]["id"], "t_ms": 2_000}
    assert (shown["status"], shown["progress"]["steps"]) == ("completed", 2)
    lost = make_run(caller, "Retry", error_at=1_100, seal=True)
    failed = replayed(caller, lost, mode="partial", anchor={"auto": True})
    assert (failed["status"], failed["error"]["type"]) == ("failed", "invalid_recording")


def test_a_session_that_is_in_no_graph_is_not_compared_with_one(caller: Caller) -> None:
    make_run(caller, *USUAL, seal=True)
    patch(caller, "/v1/workflows/approve", {"memory_graph": False})
    paused = make_run(caller, *USUAL, seal=True)
    shown = replayed(caller, paused, against={"graph": True})
    assert (shown["status"], shown["error"]["type"]) == ("failed", "invalid_recording")
    assert "paused" in shown["error"]["message"]
    assert replayed(caller, paused)["status"] == "completed"


def test_sessions_without_snapshots_are_compared_by_their_events(caller: Caller) -> None:
    usual, again = (make_run(caller, *USUAL, has_dom=False) for _ in range(2))
    other = make_run(caller, "Open", "Quit", "Pay", has_dom=False, seal=True)
    shown = replayed(caller, usual, against={"session_id": again})
    assert (shown["status"], shown["summary"]["evidence"]) == ("completed", "events")
    shown = replayed(caller, usual, against={"session_id": other})
    assert (shown["status"], shown["divergence"]["kind"], shown["divergence"]["step"]) == (
        "diverged",
        "edge_unseen",
        2,
    )
    shown = replayed(caller, usual)
    assert (shown["status"], shown["summary"]["matched"], shown["summary"]["evidence"]) == (
        "completed",
        3,
        None,
    )
