"""`POST /v1/memory/similar`: sessions like another one. Spec §4.2."""

from typing import Any

import pytest

from recorder.ids import new_id
from tests.support.completed_work import patch
from tests.support.factories import Caller, assert_problem
from tests.support.hostile_cases import nothing_stored
from tests.support.http_walks import SESSION_MEMBERS, sealed_walks, stopped_walk


def similar(caller: Caller, session_id: str, **body: Any) -> list[dict[str, Any]]:
    """The sessions like another one."""
    answer = caller.post("/v1/memory/similar", {"session_id": session_id, **body})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["next_cursor"], found["has_more"]) == (None, False)
    data: list[dict[str, Any]] = found["data"]
    return data


def test_similar_sessions_are_ranked_and_leave_the_asked_one_out(caller: Caller) -> None:
    one, same, near, far = sealed_walks(caller, "abcd", "abcd", "abce", "xyz")
    found = similar(caller, one)
    assert [session["id"] for session in found] == [same, near]
    assert set(found[0]) == SESSION_MEMBERS | {"similarity", "path_id", "shared_nodes"}
    assert (found[0]["similarity"], len(found[0]["shared_nodes"])) == (1, 4)
    assert 0 < found[1]["similarity"] < 1
    assert found[1]["shared_nodes"] == found[0]["shared_nodes"][:3]
    assert [session["id"] for session in similar(caller, one, limit=1)] == [same]
    assert similar(caller, far) == []


def test_a_search_changes_nothing_and_waits_for_no_writer(caller: Caller) -> None:
    one, same = sealed_walks(caller, "abc", "abc")
    database = caller.service.runtime.database
    with nothing_stored(caller.service.runtime), database.transaction(write=True):
        assert [session["id"] for session in similar(caller, one)] == [same]


def test_deleted_sessions_are_similar_to_nobody(caller: Caller) -> None:
    one, same, other = sealed_walks(caller, "abc", "abc", "abc")
    caller.delete(f"/v1/sessions/{same}")
    assert [session["id"] for session in similar(caller, one)] == [other]
    assert_problem(caller.post("/v1/memory/similar", {"session_id": same}), 404, "not_found")


def test_a_session_that_is_not_sealed_has_no_similar_ones_yet(caller: Caller) -> None:
    for session_id in (caller.make_session(), stopped_walk(caller, "abc")):
        problem = assert_problem(
            caller.post("/v1/memory/similar", {"session_id": session_id}), 409, "session_not_sealed"
        )
        assert problem["current_status"] in ("recording", "stopped")


def test_a_session_sealed_in_a_pause_has_no_similar_ones(caller: Caller) -> None:
    (before,) = sealed_walks(caller, "abc")
    patch(caller, "/v1/workflows/checkout", {"memory_graph": False})
    (meanwhile,) = sealed_walks(caller, "abc")
    patch(caller, "/v1/workflows/checkout", {"memory_graph": True})
    (after,) = sealed_walks(caller, "abc")
    assert similar(caller, meanwhile) == []
    assert [session["id"] for session in similar(caller, before)] == [after]


@pytest.mark.parametrize(
    "body",
    [{}, {"session_id": 1}, {"session_id": "ses_x", "limit": 0}, {"session_id": "ses_x", "limit": 501}],
)
def test_a_search_that_is_not_whole_is_refused(caller: Caller, body: dict[str, Any]) -> None:
    assert_problem(caller.post("/v1/memory/similar", body), 422, "validation_failed")


def test_a_keyed_search_is_answered_again(caller: Caller) -> None:
    one, _ = sealed_walks(caller, "abc", "abc")
    first, second = (caller.post("/v1/memory/similar", {"session_id": one}, key="same") for _ in range(2))
    assert (first.status_code, second.content) == (200, first.content)
    assert second.headers["Idempotent-Replayed"] == "true"


def test_a_session_of_somebody_else_is_not_found(caller: Caller) -> None:
    (one,) = sealed_walks(caller, "abc")
    for session_id in (one, new_id("ses"), "nonsense"):
        answer = caller.service.make_caller().post("/v1/memory/similar", {"session_id": session_id})
        assert assert_problem(answer, 404, "not_found")["resource"] == "session"
