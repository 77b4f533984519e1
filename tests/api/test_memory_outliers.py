"""`GET /v1/memory/outliers`: the least typical sessions, page by page. Spec §4.2."""

from recorder.memory.storage.versions import add_graph_version, read_newest_version
from recorder.tenant import GraphScope, Tenant
from tests.support.factories import Caller, assert_problem
from tests.support.http_graph_sessions import SESSION_MEMBERS, ask, sealed_walks


def test_outliers_are_sessions_with_figures_the_least_typical_first(caller: Caller) -> None:
    sealed_walks(caller, *["abcd"] * 8)
    (odd,) = sealed_walks(caller, "xyz", tag="error")
    (rare,) = sealed_walks(caller, "aqr")
    outliers = ask(caller, "outliers", "&threshold=0.2")
    assert [session["id"] for session in outliers["data"]] == [odd, rare]
    assert (outliers["next_cursor"], outliers["has_more"]) == (None, False)
    first = outliers["data"][0]
    assert set(first) == SESSION_MEMBERS | {"path_id", "path_frequency", "typicality"}
    assert (first["path_frequency"], first["outcome"]) == (0.1, "error")
    assert 0 < first["typicality"] < outliers["data"][1]["typicality"] < 1
    assert ask(caller, "outliers")["data"] == []
    assert [item["id"] for item in ask(caller, "outliers", "&threshold=1&outcome=error")["data"]] == []


def test_by_typicality_all_sessions_are_listed_and_a_threshold_is_refused(caller: Caller) -> None:
    ids = sealed_walks(caller, *["abcd"] * 5, "xyz")
    ranked = ask(caller, "outliers", "&rank=typicality")["data"]
    assert ranked[0]["id"] == ids[5] and {session["id"] for session in ranked} == set(ids)
    page = ask(caller, "outliers", "&rank=typicality&limit=2")
    rest = ask(caller, "outliers", f"&rank=typicality&limit=500&cursor={page['next_cursor']}")
    assert [item["id"] for item in page["data"] + rest["data"]] == [item["id"] for item in ranked]
    answer = caller.get("/v1/memory/outliers?workflow=checkout&rank=typicality&threshold=0.2")
    problem = assert_problem(answer, 422, "validation_failed")
    assert problem["errors"][0]["pointer"] == "threshold"
    assert_problem(caller.get("/v1/memory/outliers?workflow=checkout&rank=size"), 422, "validation_failed")


def test_by_typicality_a_session_without_steps_is_listed_on_no_path(caller: Caller) -> None:
    ids = sealed_walks(caller, *["abcd"] * 4, "")
    ranked = ask(caller, "outliers", "&rank=typicality")["data"]
    assert {session["id"] for session in ranked} == set(ids)
    (empty,) = [session for session in ranked if session["id"] == ids[4]]
    assert (empty["path_id"], empty["path_frequency"]) == (None, 0)
    assert 0 < empty["typicality"] < 1
    assert len(ask(caller, "outliers", "&threshold=1")["data"]) == 4


def test_outliers_come_in_pages_of_one_version(caller: Caller) -> None:
    ids = sealed_walks(caller, *["abcd"] * 5, "xyz", "uvw", "rst")
    whole = [item["id"] for item in ask(caller, "outliers", "&threshold=0.5")["data"]]
    assert sorted(whole) == sorted(ids[5:])
    page = ask(caller, "outliers", "&threshold=0.5&limit=2")
    assert page["has_more"] and [item["id"] for item in page["data"]] == whole[:2]
    sealed_walks(caller, "mno", "klm")
    rest = ask(caller, "outliers", f"&threshold=0.5&limit=2&cursor={page['next_cursor']}")
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (whole[2:], False)
    assert len(ask(caller, "outliers", "&threshold=0.5")["data"]) == 5
    answer = caller.get(f"/v1/memory/outliers?workflow=checkout&cursor={page['next_cursor']}")
    assert_problem(answer, 400, "invalid_cursor")


def test_pages_of_outliers_end_with_a_rebuild(caller: Caller) -> None:
    sealed_walks(caller, *["abcd"] * 5, "xyz", "uvw")
    page = ask(caller, "outliers", "&threshold=0.5&limit=1")
    scope = GraphScope(Tenant(caller.key.workspace_id, "live"), "checkout")
    with caller.service.runtime.database.transaction(write=True) as db:
        head = read_newest_version(db, scope, lock=True)
        assert head is not None
        add_graph_version(db, scope, head, "rebuild")
    query = "/v1/memory/outliers?workflow=checkout&threshold=0.5&limit=1"
    problem = assert_problem(caller.get(f"{query}&cursor={page['next_cursor']}"), 400, "invalid_cursor")
    assert "begin again" in problem["detail"]
    again = ask(caller, "outliers", "&threshold=0.5&limit=1")
    assert caller.get(f"{query}&cursor={again['next_cursor']}").status_code == 200
