"""`POST /v1/memory/similar`: sessions like another one. Spec §4.2."""

from typing import Any

import pytest
from sqlmodel import select

from recorder.ids import new_id
from recorder.models.operations import IdempotencyRow
from tests.support.completed_work import patch
from tests.support.factories import Caller, assert_problem
from tests.support.hostile_cases import nothing_stored
from tests.support.http_graph_sessions import SESSION_MEMBERS, sealed_walks, stopped_walk
from tests.support.repeated_requests import REPLAYED, assert_replayed


def similar(caller: Caller, session_id: str, **body: Any) -> list[dict[str, Any]]:
    """Return the sessions like another one."""
    answer = caller.post("/v1/memory/similar", {"session_id": session_id, **body})
    assert answer.status_code == 200, answer.text
    listed = answer.json()
    assert (listed["next_cursor"], listed["has_more"]) == (None, False)
    data: list[dict[str, Any]] = listed["data"]
    return data


def test_similar_sessions_are_ranked_and_leave_the_asked_one_out(caller: Caller) -> None:
    first, same, near, far = sealed_walks(caller, "abcd", "abcd", "abce", "xyz")
    listed = similar(caller, first)
    assert [session["id"] for session in listed] == [same, near]
    assert set(listed[0]) == SESSION_MEMBERS | {"similarity", "path_id", "shared_nodes"}
    assert (listed[0]["similarity"], len(listed[0]["shared_nodes"])) == (1, 4)
    assert 0 < listed[1]["similarity"] < 1
    assert listed[1]["shared_nodes"] == listed[0]["shared_nodes"][:3]
    assert [session["id"] for session in similar(caller, first, limit=1)] == [same]
    assert similar(caller, far) == []


def test_a_search_changes_nothing_and_waits_for_no_writer(caller: Caller) -> None:
    first, same = sealed_walks(caller, "abc", "abc")
    database = caller.service.runtime.database
    with nothing_stored(caller.service.runtime), database.transaction(write=True):
        assert [session["id"] for session in similar(caller, first)] == [same]


def test_deleted_sessions_are_similar_to_nobody(caller: Caller) -> None:
    first, same, other = sealed_walks(caller, "abc", "abc", "abc")
    caller.delete(f"/v1/sessions/{same}")
    assert [session["id"] for session in similar(caller, first)] == [other]
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
    single, _ = sealed_walks(caller, "abc", "abc")
    first, second = (caller.post("/v1/memory/similar", {"session_id": single}, key="same") for _ in range(2))
    assert (first.status_code, second.content) == (200, first.content)
    assert second.headers["Idempotent-Replayed"] == "true"


def test_a_session_of_somebody_else_is_not_found(caller: Caller) -> None:
    (single,) = sealed_walks(caller, "abc")
    for session_id in (single, new_id("ses"), "nonsense"):
        answer = caller.service.make_caller().post("/v1/memory/similar", {"session_id": session_id})
        assert assert_problem(answer, 404, "not_found")["resource"] == "session"


def kept_keys(caller: Caller) -> list[tuple[str, int]]:
    """Return the path and size of the kept answer of each key of a workspace."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = select(IdempotencyRow).where(IdempotencyRow.workspace_id == caller.key.workspace_id)
        return [(row.path, len(row.answer)) for row in db.exec(rows)]


def test_a_key_is_kept_without_the_answer_which_is_computed_again(caller: Caller) -> None:
    first, same, other = sealed_walks(caller, "abc", "abc", "abc")
    body = {"session_id": first}
    once = caller.post("/v1/memory/similar", body, key="k")
    assert kept_keys(caller) == [("/v1/memory/similar", 0)]
    again = caller.post("/v1/memory/similar", body, key="k")
    assert_replayed(once, again)
    caller.delete(f"/v1/sessions/{same}")
    later = caller.post("/v1/memory/similar", body, key="k")
    assert later.headers[REPLAYED] == "true"
    assert [session["id"] for session in later.json()["data"]] == [other]
    changed = caller.post("/v1/memory/similar", {**body, "limit": 1}, key="k")
    assert_problem(changed, 422, "idempotency_key_reused")


def test_a_search_with_a_key_waits_for_no_writer_before_it_has_its_answer(caller: Caller) -> None:
    first, _ = sealed_walks(caller, "abc", "abc")
    body = {"session_id": first}
    once = caller.post("/v1/memory/similar", body, key="k")
    runtime = caller.service.runtime
    with nothing_stored(runtime), runtime.database.transaction(write=True):
        assert_replayed(once, caller.post("/v1/memory/similar", body, key="k"))
        missing = caller.post("/v1/memory/similar", {"session_id": new_id("ses")}, key="other")
        assert_problem(missing, 404, "not_found")


def test_a_search_that_was_refused_leaves_its_key_free(caller: Caller) -> None:
    recording = caller.make_session()
    body = {"session_id": recording}
    assert_problem(caller.post("/v1/memory/similar", body, key="k"), 409, "session_not_sealed")
    assert kept_keys(caller) == []
    (sealed,) = sealed_walks(caller, "abc")
    answer = caller.post("/v1/memory/similar", {"session_id": sealed}, key="k")
    assert (answer.status_code, answer.headers.get(REPLAYED)) == (200, None)
