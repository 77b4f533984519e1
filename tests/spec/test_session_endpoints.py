"""Spec §4.1, row by row: every address of sessions, and every parameter of the list."""

from typing import Any

import pytest

from recorder import limits
from tests.support.factories import Caller, assert_problem, event, frame
from tests.support.limiter_clock import stopped_clock
from tests.support.recorded_sessions import execute
from tests.support.specification_checks import Rows

ROWS = Rows()


@pytest.mark.parametrize("name", ROWS)
def test_spec_4_1(caller: Caller, name: str) -> None:
    ROWS[name](caller)


def ids(caller: Caller, query: str = "") -> list[str]:
    """Return the ids of a list."""
    answer = caller.get(f"/v1/sessions?{query}")
    assert answer.status_code == 200, answer.text
    return [session["id"] for session in answer.json()["data"]]


@ROWS.row("POST /v1/sessions: 201, the session object")
def check_post_v1_sessions_201_the_session_object(caller: Caller) -> None:
    answer = caller.post("/v1/sessions", {"workflow": "checkout"})
    session = answer.json()
    assert answer.status_code == 201
    assert caller.get(f"/v1/sessions/{session['id']}").json() == session
    assert (session["metadata"], session["actor"], session["status"]) == ({}, None, "created")


@ROWS.row("POST /v1/sessions: start true")
def check_post_v1_sessions_start_true(caller: Caller) -> None:
    session = caller.post("/v1/sessions", {"workflow": "checkout", "start": True}).json()
    assert session["status"] == "recording" and session["started_at"] == session["created_at"]


@ROWS.row("POST /v1/sessions/{id}/start: no body, status recording")
def check_post_v1_sessions_id_start_no_body_status_recording(caller: Caller) -> None:
    answer = caller.post(f"/v1/sessions/{caller.make_session(status='created')}/start")
    assert (answer.status_code, answer.json()["status"]) == (200, "recording")


@ROWS.row("POST /v1/sessions/{id}/stop: no body, idempotent, status stopped")
def check_post_v1_sessions_id_stop_no_body_idempotent_status(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/stop"
    first, second = caller.post(address), caller.post(address)
    assert (first.status_code, first.json()["status"]) == (200, "stopped")
    assert second.content == first.content


@ROWS.row("POST /v1/sessions/{id}/tags: name and data")
def check_post_v1_sessions_id_tags_name_and_data(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/tags"
    answer = caller.post(address, {"name": "ready", "data": {"n": 1}})
    assert (answer.status_code, answer.json()["name"], answer.json()["data"]) == (201, "ready", {"n": 1})


@ROWS.row("GET /v1/sessions/{id}: include is a comma-separated list")
def check_get_v1_sessions_id_include_is_a_comma_separated_list(caller: Caller) -> None:
    session = caller.get(f"/v1/sessions/{caller.make_session()}?include=events,tags,frames_summary").json()
    assert (session["events"], session["tags"], session["frames_summary"]["count"]) == ([], [], 0)


@ROWS.row("GET /v1/sessions: data, next_cursor, has_more")
def check_get_v1_sessions_data_next_cursor_has_more(caller: Caller) -> None:
    session_id = caller.make_session()
    page = caller.get("/v1/sessions").json()
    assert set(page) == {"data", "next_cursor", "has_more"}
    assert page["data"] == [caller.get(f"/v1/sessions/{session_id}").json()]


@ROWS.row("list: workflow, one or more slugs")
def check_list_workflow_one_or_more_slugs(caller: Caller) -> None:
    pay, ship, _ = (caller.make_session(workflow=slug) for slug in ("pay", "ship", "sell"))
    assert ids(caller, "workflow=pay") == [pay]
    assert ids(caller, "workflow=pay&workflow=ship") == [ship, pay]


@ROWS.row("list: status")
def check_list_status(caller: Caller) -> None:
    made = {status: caller.make_session(status=status) for status in ("created", "recording", "stopped")}
    for status, session_id in made.items():
        assert ids(caller, f"status={status}") == [session_id]
    execute(
        caller.service.runtime, "UPDATE sessions SET status = 'sealed' WHERE id = :id", id=made["stopped"]
    )
    assert ids(caller, "status=sealed") == [made["stopped"]]


@ROWS.row("list: outcome")
def check_list_outcome(caller: Caller) -> None:
    made = {}
    for tag, outcome in (("done", "success"), ("failed", "error"), ("seen", "abandoned")):
        made[outcome] = caller.make_session(status="stopped")
        caller.post(f"/v1/sessions/{made[outcome]}/tags", {"name": tag})
    for outcome, session_id in made.items():
        assert ids(caller, f"outcome={outcome}") == [session_id]


@ROWS.row("list: actor.kind")
def check_list_actor_kind(caller: Caller) -> None:
    made = {
        kind: caller.make_session(actor={"id": "x", "kind": kind}) for kind in ("human", "model", "script")
    }
    for kind, session_id in made.items():
        assert ids(caller, f"actor.kind={kind}") == [session_id]


@ROWS.row("list: since, ISO or relative")
def check_list_since_iso_or_relative(caller: Caller) -> None:
    old, new = caller.make_session(), caller.make_session()
    created = caller.get(f"/v1/sessions/{new}").json()["created_at"]
    assert ids(caller, "since=30d") == ids(caller, "since=1h") == [new, old]
    assert new in ids(caller, f"since={created}") and ids(caller, "since=9999-01-01T00:00:00Z") == []


@ROWS.row("list: until, ISO")
def check_list_until_iso(caller: Caller) -> None:
    session_id = caller.make_session()
    assert ids(caller, "until=9999-01-01T00:00:00Z") == [session_id]
    assert ids(caller, "until=2020-01-01T00:00:00%2B02:00") == []


@ROWS.row("list: tag")
def check_list_tag(caller: Caller) -> None:
    tagged, _ = caller.make_session(), caller.make_session()
    for _ in range(2):
        caller.post(f"/v1/sessions/{tagged}/tags", {"name": "ready to pay"})
    assert ids(caller, "tag=ready%20to%20pay") == [tagged]


@ROWS.row("list: limit, 1 to 500, default 100")
def check_list_limit_1_to_500_default_100(caller: Caller) -> None:
    made = [caller.make_session() for _ in range(102)]
    assert ids(caller) == made[::-1][:100] and len(ids(caller, "limit=500")) == 102
    assert ids(caller, "limit=1") == made[-1:]
    for limit in (0, 501):
        assert_problem(caller.get(f"/v1/sessions?limit={limit}"), 422, "validation_failed")


@ROWS.row("list: cursor, the next_cursor of the previous response")
def check_list_cursor_the_next_cursor_of_the_previous_response(caller: Caller) -> None:
    made = [caller.make_session() for _ in range(3)]
    cursor = caller.get("/v1/sessions?limit=2").json()["next_cursor"]
    assert ids(caller, f"limit=2&cursor={cursor}") == made[:1]


@ROWS.row("DELETE /v1/sessions/{id}: soft")
def check_delete_v1_sessions_id_soft(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert_problem(caller.get(f"/v1/sessions/{session_id}"), 404, "not_found")
    assert ids(caller) == []


@ROWS.row("DELETE /v1/sessions/{id}?hard=true: immediate")
def check_delete_v1_sessions_id_hard_true(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    assert ids(caller) == []


@ROWS.row("POST /v1/sessions:batch_stop: ids")
def check_post_v1_sessions_batch_stop_ids(caller: Caller) -> None:
    made = [caller.make_session() for _ in range(3)]
    answer = caller.post("/v1/sessions:batch_stop", {"ids": made[:2]})
    assert (answer.status_code, answer.json()["stopped"]) == (200, 2)
    assert set(ids(caller, "status=stopped")) == set(made[:2])


@ROWS.row("POST /v1/sessions/{id}/events: at most 100 items")
def check_post_v1_sessions_id_events_at_most_100_items(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.add_events(session_id, *[event(1)] * limits.EVENTS_PER_BATCH).status_code == 202
    assert_problem(caller.add_events(session_id, *[event(1)] * 101), 422, "batch_too_large")


@ROWS.row("POST /v1/sessions/{id}/frames: at most 50 frames")
def check_post_v1_sessions_id_frames_at_most_50_frames(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.add_frames(session_id, *[frame(1)] * limits.FRAMES_PER_BATCH).status_code == 202
    assert_problem(caller.add_frames(session_id, *[frame(1)] * 51), 422, "batch_too_large")


@ROWS.row("all endpoints need the Authorization header")
def check_all_endpoints_need_the_authorization_header(caller: Caller) -> None:
    client: Any = caller.service.client
    with stopped_clock(caller.service) as clock:  # strangers have a limit too
        for path, methods in caller.service.app.openapi()["paths"].items():
            for method in methods if path.startswith("/v1/") else ():
                clock.now += 1
                answer = client.request(method.upper(), path.replace("{", "").replace("}", ""))
                assert_problem(answer, 401, "missing_authorization")
