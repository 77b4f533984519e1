"""`/v1/memory/*` and `GET /v1/sessions?path=`: answers, filters, and what is refused. Spec §4.2."""

from typing import Any

import pytest

from recorder.ids import new_id
from recorder.memory.building.nodes import GraphScope
from recorder.memory.storing.versions import add_version, read_head
from tests.factories import Caller, assert_problem
from tests.finished import patch, seal_all
from tests.hostile import nothing_stored
from tests.walks import add_tag, ask, sealed_walks, stopped_walk

QUERIES = ("paths", "outliers", "recovery_points", "graph", "diff")
SESSION_MEMBERS = {
    "id",
    "workflow",
    "status",
    "metadata",
    "actor",
    "started_at",
    "stopped_at",
    "duration_ms",
    "frame_count",
    "event_count",
    "outcome",
    "created_at",
}


def similar(caller: Caller, session_id: str, **body: Any) -> list[dict[str, Any]]:
    """The sessions like another one."""
    answer = caller.post("/v1/memory/similar", {"session_id": session_id, **body})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["next_cursor"], found["has_more"]) == (None, False)
    data: list[dict[str, Any]] = found["data"]
    return data


def on_path(caller: Caller, query: str) -> list[str]:
    """The ids of listed sessions."""
    answer = caller.get(f"/v1/sessions?{query}")
    assert answer.status_code == 200, answer.text
    return [session["id"] for session in answer.json()["data"]]


def test_outliers_are_sessions_with_figures_the_least_typical_first(caller: Caller) -> None:
    sealed_walks(caller, *["abcd"] * 8)
    (odd,) = sealed_walks(caller, "xyz", tag="error")
    (rare,) = sealed_walks(caller, "aqr")
    found = ask(caller, "outliers", "&threshold=0.2")
    assert [session["id"] for session in found["data"]] == [odd, rare]
    assert (found["next_cursor"], found["has_more"]) == (None, False)
    first = found["data"][0]
    assert set(first) == SESSION_MEMBERS | {"path_id", "path_frequency", "typicality"}
    assert (first["path_frequency"], first["outcome"]) == (0.1, "error")
    assert 0 < first["typicality"] < found["data"][1]["typicality"] < 1
    assert ask(caller, "outliers")["data"] == []
    assert [one["id"] for one in ask(caller, "outliers", "&threshold=1&outcome=error")["data"]] == []


def test_outliers_come_in_pages_of_one_version(caller: Caller) -> None:
    ids = sealed_walks(caller, *["abcd"] * 5, "xyz", "uvw", "rst")
    whole = [one["id"] for one in ask(caller, "outliers", "&threshold=0.5")["data"]]
    assert sorted(whole) == sorted(ids[5:])
    page = ask(caller, "outliers", "&threshold=0.5&limit=2")
    assert page["has_more"] and [one["id"] for one in page["data"]] == whole[:2]
    sealed_walks(caller, "mno", "klm")
    rest = ask(caller, "outliers", f"&threshold=0.5&limit=2&cursor={page['next_cursor']}")
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (whole[2:], False)
    assert len(ask(caller, "outliers", "&threshold=0.5")["data"]) == 5
    answer = caller.get(f"/v1/memory/outliers?workflow=checkout&cursor={page['next_cursor']}")
    assert_problem(answer, 400, "invalid_cursor")


def test_pages_of_outliers_end_with_a_rebuild(caller: Caller) -> None:
    sealed_walks(caller, *["abcd"] * 5, "xyz", "uvw")
    page = ask(caller, "outliers", "&threshold=0.5&limit=1")
    scope = GraphScope(caller.key.workspace_id, "live", "checkout")
    with caller.service.runtime.database.transaction(write=True) as db:
        head = read_head(db, scope, lock=True)
        assert head is not None
        add_version(db, scope, head, "rebuild")
    query = "/v1/memory/outliers?workflow=checkout&threshold=0.5&limit=1"
    problem = assert_problem(caller.get(f"{query}&cursor={page['next_cursor']}"), 400, "invalid_cursor")
    assert "begin again" in problem["detail"]
    again = ask(caller, "outliers", "&threshold=0.5&limit=1")
    assert caller.get(f"{query}&cursor={again['next_cursor']}").status_code == 200


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


def test_recovery_points_tell_where_sessions_came_back(caller: Caller) -> None:
    sealed_walks(caller, *["abcd"] * 3, tag="success")
    newest, _ = (
        stopped_walk(caller, "abxcd", failed_at=3_000, started_at=f"2024-03-0{day}T00:00:00Z")
        for day in (2, 1)
    )
    lost = stopped_walk(caller, "abx", tag="error")
    seal_all(caller)
    (point,) = ask(caller, "recovery_points")["data"]
    assert (point["frequency"], point["session_count"], point["basis"]) == (2 / 3, 2, "in_session")
    # From c at 4 s to the success tag at the end, at 5 s.
    assert (point["median_recovery_ms"], point["session_id"]) == (1_000, newest)
    (shown,) = caller.get(f"/v1/sessions/{newest}/frames").json()["data"]
    assert point["frame_id"] == shown["id"]
    nodes = {node for path in ask(caller, "paths")["data"] for node in path["node_ids"]}
    assert point["node_id"] in nodes and point["label"]
    add_tag(caller, lost, "timeout", t_ms=3_000)
    (crossed,) = ask(caller, "recovery_points", "&failure_tag=timeout")["data"]
    assert (crossed["basis"], crossed["frequency"], crossed["session_count"]) == ("cross_session", 1, 1)


def test_recovery_points_need_a_frame_and_a_failure(caller: Caller) -> None:
    sealed_walks(caller, "abcd", tag="success")
    stopped_walk(caller, "abxcd", failed_at=3_000, has_frame=False)
    seal_all(caller)
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
    seal_all(caller)
    add_tag(caller, session_id, "declined", t_ms=3_500)
    (point,) = ask(caller, "recovery_points")["data"]
    assert (point["session_id"], point["median_recovery_ms"]) == (session_id, 1_000)


def test_a_path_lists_the_sessions_that_went_its_nodes_side_by_side(caller: Caller) -> None:
    # Two went the short way: a path is shown by the most frequent of its variants.
    *short, long, _, broken = sealed_walks(caller, "bc", "bc", "abcd", "abd", "bxc")
    paths = {len(path["node_ids"]): path["path_id"] for path in ask(caller, "paths")["data"]}
    assert on_path(caller, f"path={paths[2]}") == [long, *short[::-1]]
    assert on_path(caller, f"path={paths[2]}&limit=1") == [long]
    assert broken not in on_path(caller, f"path={paths[2]}&limit=500")


def test_a_path_goes_with_the_other_filters_and_the_cursor(caller: Caller) -> None:
    human = {"id": "someone", "kind": "human"}
    ids = [stopped_walk(caller, "ab", tag="error" if n % 2 else "success", actor=human) for n in range(5)]
    seal_all(caller)
    add_tag(caller, ids[0], "odd")
    (path,) = ask(caller, "paths")["data"]
    query = f"path={path['path_id']}"
    assert on_path(caller, f"{query}&outcome=error") == [ids[3], ids[1]]
    assert on_path(caller, f"{query}&tag=odd&actor.kind=human&status=sealed&workflow=checkout") == [ids[0]]
    for other in ("actor.kind=model", "status=recording", "workflow=elsewhere", "until=1h", "tag=even"):
        assert on_path(caller, f"{query}&{other}") == []
    seen: list[str] = []
    page = caller.get(f"/v1/sessions?{query}&limit=2").json()
    while True:
        seen += [session["id"] for session in page["data"]]
        if not page["has_more"]:
            break
        page = caller.get(f"/v1/sessions?{query}&limit=2&cursor={page['next_cursor']}").json()
    assert seen == ids[::-1]


def test_a_path_of_nobody_is_not_found(caller: Caller) -> None:
    sealed_walks(caller, "ab")
    (path,) = ask(caller, "paths")["data"]
    others = (
        caller.service.make_caller(),
        caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id),
    )
    for who, path_id in (
        (caller, "pth_unknown"),
        (caller, ""),
        *((other, path["path_id"]) for other in others),
    ):
        problem = assert_problem(who.get(f"/v1/sessions?path={path_id}"), 404, "not_found")
        assert problem["resource"] == "path"


def test_two_periods_are_compared(caller: Caller) -> None:
    sealed_walks(caller, *["abc"] * 3, started_at="2024-01-10T00:00:00Z")
    sealed_walks(caller, "abc", "xyz", started_at="2024-02-10T00:00:00Z", tag="error")
    query = "&since=2024-02-01T00:00:00Z&against_until=2024-02-01T00:00:00Z"
    found = ask(caller, "diff", query)
    assert (found["selected"]["session_count"], found["against"]["session_count"]) == (2, 3)
    assert (found["selected"]["outcomes"]["error"], found["against"]["outcomes"]["error"]) == (1, 0)
    assert {path["change"] for path in found["paths"]} == {"appeared", "changed"}
    assert len(found["nodes"]) == 6 and {edge["change"] for edge in found["edges"]} >= {"appeared", "changed"}
    assert len(ask(caller, "diff", f"{query}&limit=1")["nodes"]) == 1
    assert ask(caller, "diff", f"{query}&min_change=1")["paths"] == []


def test_two_kinds_of_actors_are_compared(caller: Caller) -> None:
    sealed_walks(caller, "abc", actor={"id": "someone", "kind": "human"})
    sealed_walks(caller, "abd", actor={"id": "robot", "kind": "model"})
    found = ask(caller, "diff", "&actor.kind=model&against_actor.kind=human")
    assert (found["selected"]["actor_kind"], found["against"]["actor_kind"]) == ("model", "human")
    assert sorted(node["change"] for node in found["nodes"]) == ["appeared", "disappeared"]


def test_a_comparison_with_nothing_is_refused(caller: Caller) -> None:
    sealed_walks(caller, "abc")
    problem = assert_problem(
        caller.get("/v1/memory/diff?workflow=checkout&since=7d"), 422, "validation_failed"
    )
    assert (problem["errors"][0]["pointer"], problem["errors"][0]["code"]) == ("against_since", "missing")
    answer = caller.get("/v1/memory/diff?workflow=checkout&against_since=1d&against_until=2d")
    assert assert_problem(answer, 422, "invalid_range")["errors"][0]["pointer"] == "against_since"
    answer = caller.get("/v1/memory/diff?workflow=checkout&against_since=soon")
    assert assert_problem(answer, 422, "invalid_time")["errors"][0]["pointer"] == "against_since"


def test_the_graph_comes_in_every_format(caller: Caller) -> None:
    sealed_walks(caller, "abc", "abd")
    for format, media_type, begins in (
        ("json", "application/json", "{"),
        ("graphml", "application/graphml+xml", "<?xml"),
        ("mermaid", "text/vnd.mermaid; charset=utf-8", "flowchart"),
        ("dot", "text/vnd.graphviz; charset=utf-8", "digraph"),
        ("svg", "image/svg+xml", "<svg"),
    ):
        answer = caller.get(f"/v1/memory/graph?workflow=checkout&format={format}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.text.lstrip().startswith(begins)


def test_the_graph_shows_the_sessions_that_match(caller: Caller) -> None:
    sealed_walks(caller, *["abc"] * 3, tag="success")
    sealed_walks(caller, "abd", tag="error")

    def count(query: str) -> int:
        return sum(node["id"].startswith("nde_") for node in ask(caller, "graph", query)["nodes"])

    assert [count(query) for query in ("", "&outcome=success", "&min_frequency=0.5", "&since=1h")] == [
        4,
        3,
        3,
        0,
    ]
    assert_problem(caller.get("/v1/memory/graph?workflow=checkout&format=png"), 422, "validation_failed")


@pytest.mark.parametrize("what", QUERIES)
def test_an_unknown_workflow_is_not_found_and_a_foreign_one_alike(caller: Caller, what: str) -> None:
    caller.make_session()
    other = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    more = "&against_since=2d" if what == "diff" else ""
    for who, workflow in ((caller, "nobodys_work"), (other, "checkout")):
        answer = who.get(f"/v1/memory/{what}?workflow={workflow}{more}")
        assert assert_problem(answer, 404, "not_found")["resource"] == "workflow"
    for slug in ("", "A", "a b"):
        assert_problem(caller.get(f"/v1/memory/{what}?workflow={slug}"), 422, "validation_failed")


@pytest.mark.parametrize(
    ("what", "query", "code"),
    [
        ("paths", "min_frequency=1.01", "validation_failed"),
        ("paths", "min_frequency=-0.1", "validation_failed"),
        ("graph", "min_frequency=2", "validation_failed"),
        ("outliers", "threshold=1.5", "validation_failed"),
        ("outliers", "threshold=-1", "validation_failed"),
        ("outliers", "threshold=nan", "validation_failed"),
        ("diff", "against_since=1d&min_change=3", "validation_failed"),
        ("recovery_points", "outcome=success", "validation_failed"),
        ("outliers", "since=1h&until=2h", "invalid_range"),
        ("recovery_points", "since=1h&until=2h", "invalid_range"),
        ("graph", "since=1h&until=2h", "invalid_range"),
        ("outliers", "cursor=nonsense", "invalid_cursor"),
    ],
)
def test_what_is_out_of_range_is_refused(caller: Caller, what: str, query: str, code: str) -> None:
    caller.make_session()
    status = 400 if code == "invalid_cursor" else 422
    assert_problem(caller.get(f"/v1/memory/{what}?workflow=checkout&{query}"), status, code)


def test_a_new_workflow_answers_with_nothing(caller: Caller) -> None:
    caller.make_session()
    for what in ("paths", "outliers", "recovery_points"):
        assert ask(caller, what)["data"] == []
    found = ask(caller, "diff", "&against_since=2d")
    assert (found["paths"], found["selected"]["session_count"], found["selected"]["outcomes"]) == (
        [],
        0,
        None,
    )


def test_a_session_of_somebody_else_is_not_found(caller: Caller) -> None:
    (one,) = sealed_walks(caller, "abc")
    for session_id in (one, new_id("ses"), "nonsense"):
        answer = caller.service.make_caller().post("/v1/memory/similar", {"session_id": session_id})
        assert assert_problem(answer, 404, "not_found")["resource"] == "session"
