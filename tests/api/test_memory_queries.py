"""Rules of all queries of `/v1/memory`: unknown workflows, values out of range. Spec §4.2."""

import pytest

from tests.support.factories import Caller, assert_problem
from tests.support.http_graph_sessions import ask

QUERIES = ("paths", "outliers", "recovery_points", "graph", "diff")


@pytest.mark.parametrize("what", QUERIES)
def test_an_unknown_workflow_is_not_found_and_a_foreign_one_alike(caller: Caller, what: str) -> None:
    caller.make_session()
    other = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    more = "&against_since=2d" if what == "diff" else ""
    for who, workflow in ((caller, "nobodys_work"), (other, "checkout")):
        answer = who.get(f"/v1/memory/{what}?workflow={workflow}{more}")
        problem = assert_problem(answer, 404, "not_found")
        assert problem["resource"] == "workflow" and "GET /v1/workflows" in problem["detail"]
        assert workflow not in answer.text
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
    diff = ask(caller, "diff", "&against_since=2d")
    assert (diff["paths"], diff["selected"]["session_count"], diff["selected"]["outcomes"]) == (
        [],
        0,
        None,
    )
