"""`GET /v1/memory/recovery_points`: where sessions that failed came back. Spec §4.2."""

from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.tenant import GraphScope, Tenant
from tests.support.completed_work import patch
from tests.support.factories import Caller, assert_problem
from tests.support.http_graph_sessions import add_tag, ask, sealed_walks, stopped_walk
from tests.support.sealing import seal_all


def test_recovery_points_tell_where_sessions_came_back(caller: Caller) -> None:
    sealed_walks(caller, *["abcd"] * 3, tag="success")
    newest, _ = (
        stopped_walk(caller, "abxcd", failed_at=3_000, started_at=f"2024-03-0{day}T00:00:00Z")
        for day in (2, 1)
    )
    lost = stopped_walk(caller, "abx", tag="error")
    seal_all(caller.service.runtime)
    (point,) = ask(caller, "recovery_points")["data"]
    assert (point["frequency"], point["session_count"], point["basis"]) == (2 / 3, 2, "in_session")
    # From c at 4 s to the success tag at the end, at 5 s.
    assert (point["median_recovery_ms"], point["session_id"]) == (1_000, newest)
    (shown,) = caller.get(f"/v1/sessions/{newest}/frames").json()["data"]
    assert point["frame_id"] == shown["id"]
    events = caller.get(f"/v1/sessions/{newest}/events").json()["data"]
    assert point["event_id"] == events[3]["id"]
    nodes = {node for path in ask(caller, "paths")["data"] for node in path["node_ids"]}
    assert point["node_id"] in nodes and point["label"]
    add_tag(caller, lost, "timeout", t_ms=3_000)
    (crossed,) = ask(caller, "recovery_points", "&failure_tag=timeout")["data"]
    assert (crossed["basis"], crossed["frequency"], crossed["session_count"]) == ("cross_session", 1, 1)


def test_a_recording_without_frames_has_points_with_their_event(caller: Caller) -> None:
    sealed_walks(caller, "abcd", tag="success")
    session_id = stopped_walk(caller, "abxcd", failed_at=3_000, has_frame=False)
    seal_all(caller.service.runtime)
    (point,) = ask(caller, "recovery_points")["data"]
    events = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert (point["session_id"], point["frame_id"]) == (session_id, None)
    assert point["event_id"] == events[3]["id"]


def test_a_session_that_failed_twice_came_back_after_the_last_failure(caller: Caller) -> None:
    sealed_walks(caller, "abcd", tag="success")
    session_id = stopped_walk(caller, "abxcd", failed_at=3_000)
    add_tag(caller, session_id, "error", t_ms=100)
    seal_all(caller.service.runtime)
    (point,) = ask(caller, "recovery_points")["data"]
    assert point["event_id"] == caller.get(f"/v1/sessions/{session_id}/events").json()["data"][3]["id"]


def test_a_witness_that_a_frame_shows_is_preferred(caller: Caller) -> None:
    sealed_walks(caller, "abcd", tag="success")
    shown = stopped_walk(caller, "abxcd", failed_at=3_000, started_at="2024-03-01T00:00:00Z")
    stopped_walk(caller, "abxcd", failed_at=3_000, has_frame=False, started_at="2024-03-02T00:00:00Z")
    seal_all(caller.service.runtime)
    (point,) = ask(caller, "recovery_points")["data"]
    assert (point["session_id"], point["frame_id"] is not None) == (shown, True)


def test_a_point_without_a_recorded_session_takes_no_room_of_the_limit(caller: Caller) -> None:
    expired = sealed_walks(caller, *["abcd"] * 2, tag="success")
    sealed_walks(caller, *["pqrs"] * 2, tag="success")
    sealed_walks(caller, "abx", "abx", "pqx", tag="error")
    first, second = ask(caller, "recovery_points")["data"]
    assert (first["session_count"], second["session_count"], first["basis"]) == (2, 1, "cross_session")
    scope = GraphScope(Tenant(caller.key.workspace_id, "live"), "checkout")
    with caller.service.runtime.database.transaction(write=True) as db:
        purge_sessions_from_graph(db, scope, expired)
    for query in ("", "&limit=1"):
        (point,) = ask(caller, "recovery_points", query)["data"]
        assert point["node_id"] == second["node_id"]


def test_recovery_points_need_a_failure(caller: Caller) -> None:
    sealed_walks(caller, "abcd", tag="success")
    assert ask(caller, "recovery_points")["data"] == []
    assert ask(caller, "recovery_points", "&failure_tag=nobody")["data"] == []
    for name in ("", "a" * 129, "a%00b"):
        answer = caller.get(f"/v1/memory/recovery_points?workflow=checkout&failure_tag={name}")
        assert_problem(answer, 422, "validation_failed")


def test_names_of_failure_and_success_are_those_of_the_workflow(caller: Caller) -> None:
    patch(
        caller,
        "/v1/workflows/checkout",
        {"outcome_rules": {"error_tags": ["declined"], "success_tags": ["paid"]}},
    )
    sealed_walks(caller, "abcd", tag="paid")
    session_id = stopped_walk(caller, "abxcd", tag="paid")
    seal_all(caller.service.runtime)
    add_tag(caller, session_id, "declined", t_ms=3_500)
    (point,) = ask(caller, "recovery_points")["data"]
    assert (point["session_id"], point["median_recovery_ms"]) == (session_id, 1_000)
