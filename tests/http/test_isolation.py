"""Nobody reaches what belongs to another workspace or mode: it answers exactly as if it were not there.

Contract §1 (404), §2. The addresses come from OpenAPI, so that a new route is covered when it appears.
"""

from typing import Any

import pytest

from tests.factories import Caller, Service, event, footprint, frame

MISSING = "ses_01k00000000000000000000000"
BODIES: dict[str, Any] = {
    "/events": {"events": [event(1)]},
    "/frames": {"frames": [frame(1)]},
    "/tags": {"name": "seen"},
}


def session_requests(service: Service) -> list[tuple[str, str, Any]]:
    """Method, address and body of every route that names a session."""
    found = []
    for path, methods in service.app.openapi()["paths"].items():
        if "{session_id}" in path:
            for method in methods:
                body = BODIES.get(path[path.rindex("/") :]) if method == "post" else None
                found.append((method.upper(), path.replace("{frame_id}", "frm_mine"), body))
    return found


def answers(caller: Caller, session_id: str) -> list[tuple[int, Any]]:
    """What each route answers about a session, without what differs from request to request."""
    told = []
    for method, path, body in session_requests(caller.service):
        address = path.replace("{session_id}", session_id)
        answer = caller.request(method, address, json=body) if body else caller.request(method, address)
        problem = answer.json()
        problem.pop("request_id", None)
        told.append((answer.status_code, problem))
    return told


@pytest.fixture
def owned(caller: Caller) -> str:
    """A session with an event, a frame and a tag."""
    session_id = caller.make_session(workflow="owned")
    caller.add_events(session_id, event(1, id="evt_mine"))
    caller.add_frames(session_id, frame(1, id="frm_mine"))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "mine"})
    return session_id


def test_every_route_of_a_session_is_asked(service: Service) -> None:
    assert len(session_requests(service)) >= 12


@pytest.mark.parametrize("who", ["other workspace", "test key of the same workspace"])
def test_a_foreign_session_answers_like_a_missing_one(caller: Caller, owned: str, who: str) -> None:
    mode = "test" if who.startswith("test") else "live"
    workspace_id = caller.key.workspace_id if mode == "test" else None
    stranger = caller.service.make_caller(mode=mode, workspace_id=workspace_id)
    before = footprint(caller.service.runtime)
    told = answers(stranger, owned)
    assert told == answers(stranger, MISSING)
    assert {status for status, _ in told} == {404}
    assert footprint(caller.service.runtime) == before


def test_a_deleted_session_answers_like_a_missing_one(caller: Caller, owned: str) -> None:
    assert caller.delete(f"/v1/sessions/{owned}").status_code == 204
    before = footprint(caller.service.runtime)
    assert answers(caller, owned) == answers(caller, MISSING)
    assert footprint(caller.service.runtime) == before


def test_lists_show_ones_own_sessions_alone(caller: Caller, owned: str) -> None:
    stranger = caller.service.make_caller()
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    for query in ("", "?tag=mine", "?workflow=owned", "?status=recording"):
        assert [session["id"] for session in caller.get(f"/v1/sessions{query}").json()["data"]] == [owned]
        assert stranger.get(f"/v1/sessions{query}").json()["data"] == []
        assert tester.get(f"/v1/sessions{query}").json()["data"] == []


def test_a_batch_stop_leaves_foreign_sessions_alone(caller: Caller, owned: str) -> None:
    stranger = caller.service.make_caller()
    before = footprint(caller.service.runtime)
    items = stranger.post("/v1/sessions:batch_stop", {"ids": [owned, MISSING, "nonsense"]}).json()["data"]
    assert [item.pop("id") for item in items] == [owned, MISSING, "nonsense"]
    assert items[0] == items[1] == items[2]
    assert (items[0]["result"], items[0]["error"]["code"]) == ("error", "not_found")
    assert footprint(caller.service.runtime) == before


def test_two_sessions_may_use_the_same_ids(caller: Caller, owned: str) -> None:
    other = caller.make_session()
    assert caller.add_events(other, event(2, id="evt_mine"), key="batch-1").json()["accepted"] == 1
    assert caller.add_frames(other, frame(2, 7, id="frm_mine"), key="batch-1").json()["accepted"] == 1
    assert caller.get(f"/v1/sessions/{owned}/frames/frm_mine").json()["t_ms"] == 1
    assert caller.get(f"/v1/sessions/{other}/frames/frm_mine").json()["t_ms"] == 2


def test_modes_of_a_workspace_count_apart(caller: Caller, owned: str) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    tester.make_session(workflow="owned")
    assert len(tester.get("/v1/sessions?workflow=owned").json()["data"]) == 1
    assert len(caller.get("/v1/sessions?workflow=owned").json()["data"]) == 1
