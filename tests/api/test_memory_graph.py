"""`GET /v1/memory/graph` and `/diff`: the graph in its formats, and two selections compared. Spec §4.2."""

from tests.support.factories import Caller, assert_problem
from tests.support.http_graph_sessions import ask, sealed_walks


def test_two_periods_are_compared(caller: Caller) -> None:
    sealed_walks(caller, *["abc"] * 3, started_at="2024-01-10T00:00:00Z")
    sealed_walks(caller, "abc", "xyz", started_at="2024-02-10T00:00:00Z", tag="error")
    query = "&since=2024-02-01T00:00:00Z&against_until=2024-02-01T00:00:00Z"
    diff = ask(caller, "diff", query)
    assert (diff["selected"]["session_count"], diff["against"]["session_count"]) == (2, 3)
    assert (diff["selected"]["outcomes"]["error"], diff["against"]["outcomes"]["error"]) == (1, 0)
    assert {path["change"] for path in diff["paths"]} == {"appeared", "changed"}
    assert len(diff["nodes"]) == 6 and {edge["change"] for edge in diff["edges"]} >= {"appeared", "changed"}
    assert len(ask(caller, "diff", f"{query}&limit=1")["nodes"]) == 1
    assert ask(caller, "diff", f"{query}&min_change=1")["paths"] == []


def test_two_kinds_of_actors_are_compared(caller: Caller) -> None:
    sealed_walks(caller, "abc", actor={"id": "someone", "kind": "human"})
    sealed_walks(caller, "abd", actor={"id": "robot", "kind": "model"})
    diff = ask(caller, "diff", "&actor.kind=model&against_actor.kind=human")
    assert (diff["selected"]["actor_kind"], diff["against"]["actor_kind"]) == ("model", "human")
    assert sorted(node["change"] for node in diff["nodes"]) == ["appeared", "disappeared"]


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
