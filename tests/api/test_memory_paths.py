"""`GET /v1/sessions?path=` and `subpath=`: the sessions of a path. Spec §4.2; contract §2."""

from tests.support.factories import Caller, assert_problem
from tests.support.http_graph_sessions import add_tag, ask, sealed_walks, stopped_walk
from tests.support.sealing import seal_all


def on_path(caller: Caller, query: str) -> list[str]:
    """Return the ids of listed sessions."""
    answer = caller.get(f"/v1/sessions?{query}")
    assert answer.status_code == 200, answer.text
    return [session["id"] for session in answer.json()["data"]]


def test_a_path_lists_the_sessions_that_went_its_nodes_side_by_side(caller: Caller) -> None:
    *short, long, broken = sealed_walks(caller, "bc", "bc", "pqrbcstu", "bxc")
    path_id = caller.get(f"/v1/sessions/{short[0]}").json()["path_id"]
    (path,) = (path for path in ask(caller, "paths")["data"] if path["path_id"] == path_id)
    assert len(path["node_ids"]) == 2
    assert on_path(caller, f"subpath={path_id}") == [long, *short[::-1]]
    assert on_path(caller, f"subpath={path_id}&limit=1") == [long]
    assert broken not in on_path(caller, f"subpath={path_id}&limit=500")


def test_a_path_lists_as_many_sessions_as_it_counts_and_each_carries_it(caller: Caller) -> None:
    ids = sealed_walks(caller, "abcd", "abcd", "abd", "xyz", "xyz", "q")
    recording = caller.make_session(workflow="checkout", start=True)
    listed: list[str] = []
    for path in ask(caller, "paths")["data"]:
        sessions = caller.get(f"/v1/sessions?path={path['path_id']}").json()["data"]
        assert len(sessions) == path["session_count"]
        assert {session["path_id"] for session in sessions} == {path["path_id"]}
        listed += [session["id"] for session in sessions]
    assert sorted(listed) == sorted(ids)
    assert caller.get(f"/v1/sessions/{recording}").json()["path_id"] is None
    for session_id in (ids[0], recording):
        stopped = caller.post(f"/v1/sessions/{session_id}/stop")
        assert (stopped.status_code, stopped.json()) == (200, caller.get(f"/v1/sessions/{session_id}").json())


def test_a_path_goes_with_the_other_filters_and_the_cursor(caller: Caller) -> None:
    human = {"id": "someone", "kind": "human"}
    ids = [stopped_walk(caller, "ab", tag="error" if n % 2 else "success", actor=human) for n in range(5)]
    seal_all(caller.service.runtime)
    add_tag(caller, ids[0], "odd")
    (path,) = ask(caller, "paths")["data"]
    query = f"path={path['path_id']}"
    assert on_path(caller, f"{query}&outcome=error") == [ids[3], ids[1]]
    assert on_path(caller, f"{query}&tag=odd&actor.kind=human&status=sealed&workflow=checkout") == [ids[0]]
    for other in ("actor.kind=model", "status=recording", "workflow=elsewhere", "until=3000d", "tag=even"):
        assert on_path(caller, f"{query}&{other}") == []
    seen: list[str] = []
    page = caller.get(f"/v1/sessions?{query}&limit=2").json()
    while True:
        seen += [session["id"] for session in page["data"]]
        if not page["has_more"]:
            break
        page = caller.get(f"/v1/sessions?{query}&limit=2&cursor={page['next_cursor']}").json()
    assert seen == ids[::-1]


def test_an_outcome_that_comes_after_sealing_counts_on_the_path(caller: Caller) -> None:
    late, _ = sealed_walks(caller, "ab", "ab")
    (path,) = ask(caller, "paths")["data"]
    assert path["outcomes"]["error"] == 0
    add_tag(caller, late, "error")
    (path,) = ask(caller, "paths")["data"]
    assert path["outcomes"]["error"] == 0.5
    assert on_path(caller, f"path={path['path_id']}&outcome=error") == [late]


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
