"""`/v1/workflows`: settings before the first session and after it, what they change. Spec §2.8, §4.2."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from sqlmodel import col, select

from recorder import limits
from recorder.models.operations import AuditRow
from tests.support.factories import Caller, assert_problem, event, footprint
from tests.support.recorded_sessions import execute, outbox_types
from tests.support.sealing import seal_all

DEFAULT_RULES = {
    "error_tags": ["error", "failed", "failure"],
    "success_tags": ["completed", "done", "success"],
    "error_events": ["error"],
    "success_events": ["success"],
}
PATTERN = {"name": "order", "pattern": "ORD-[0-9]+", "replacement": ""}
LONG_AGO = "2024-02-29T10:00:00.000Z"


def patch(caller: Caller, workflow: str, **body: Any) -> Any:
    """Send a PATCH of a workflow."""
    return caller.request("PATCH", f"/v1/workflows/{workflow}", json=body)


def get(caller: Caller, workflow: str) -> dict[str, Any]:
    """Return a workflow as it is read."""
    answer = caller.get(f"/v1/workflows/{workflow}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def stopped(caller: Caller, *items: dict[str, Any], tag: str | None = None, **body: Any) -> dict[str, Any]:
    """Return a session with these events and a tag at its end, as its stop answers it."""
    session_id = caller.make_session(started_at=LONG_AGO, **body)
    caller.add_events(session_id, *(items or (event(1),)))
    if tag is not None:
        caller.post(f"/v1/sessions/{session_id}/tags", {"name": tag})
    answer: dict[str, Any] = caller.post(f"/v1/sessions/{session_id}/stop").json()
    return answer


def test_its_first_session_makes_a_workflow(caller: Caller) -> None:
    assert_problem(caller.get("/v1/workflows/checkout"), 404, "not_found")
    session = caller.get(f"/v1/sessions/{caller.make_session()}").json()
    assert get(caller, "checkout") == {
        "workflow": "checkout",
        "memory_graph": True,
        "tags": [],
        "masking": {"builtins": [], "patterns": []},
        "outcome_rules": DEFAULT_RULES,
        "session_count": 1,
        "last_session_at": session["created_at"],
        "graph": {"version": 0, "nodes": 0, "edges": 0, "paths": 0},
        "created_at": session["created_at"],
        "updated_at": session["created_at"],
    }


def test_settings_may_come_before_the_first_session(caller: Caller) -> None:
    wanted = {
        "memory_graph": False,
        "tags": ["finance", "q3 review"],
        "masking": {"builtins": ["email"], "patterns": [PATTERN]},
        "outcome_rules": {"error_tags": ["rejected"], "success_events": []},
    }
    made = patch(caller, "pay_supplier", **wanted).json()
    rules = {**DEFAULT_RULES, "error_tags": ["rejected"], "success_events": []}
    assert {name: made[name] for name in wanted} == {**wanted, "outcome_rules": rules}
    assert (made["session_count"], made["last_session_at"]) == (0, None)
    caller.make_session(workflow="pay_supplier")
    shown = get(caller, "pay_supplier")
    assert shown.pop("session_count") == 1 and shown.pop("last_session_at") is not None
    assert shown == {name: made[name] for name in shown}


def test_a_patch_changes_what_it_names_and_nothing_else(caller: Caller) -> None:
    before = patch(
        caller, "merge", tags=["a"], masking={"builtins": ["card"]}, outcome_rules={"error_tags": ["x"]}
    ).json()
    after = patch(
        caller, "merge", masking={"patterns": [PATTERN]}, outcome_rules={"success_tags": ["y"]}
    ).json()
    assert after["masking"] == {"builtins": ["card"], "patterns": [PATTERN]}
    assert after["outcome_rules"] == {**DEFAULT_RULES, "error_tags": ["x"], "success_tags": ["y"]}
    same = ("workflow", "memory_graph", "tags", "created_at")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["updated_at"] >= before["updated_at"]


def test_null_changes_no_rules_and_the_lists_bring_the_defaults_back(caller: Caller) -> None:
    changed = {"error_tags": ["x"], "success_events": []}
    patch(caller, "rules", outcome_rules=changed)
    for nothing in (None, dict.fromkeys(DEFAULT_RULES)):
        shown = patch(caller, "rules", outcome_rules=nothing).json()["outcome_rules"]
        assert shown == {**DEFAULT_RULES, **changed}
    assert patch(caller, "rules", outcome_rules=DEFAULT_RULES).json()["outcome_rules"] == DEFAULT_RULES


def test_a_patch_that_changes_nothing_leaves_no_trace(caller: Caller) -> None:
    first = patch(caller, "still", tags=["a"], memory_graph=True).json()
    before = footprint(caller.service.runtime)
    assert patch(caller, "still", tags=["a"], memory_graph=True).json() == first
    assert patch(caller, "still").json() == first
    assert footprint(caller.service.runtime) == before


WRONG: dict[str, list[dict[str, Any]]] = {
    "/memory_graph": [{"memory_graph": "yes"}],
    "/tags": [
        {"tags": "a"},
        {"tags": ["a", "a"]},
        {"tags": [f"t{n}" for n in range(limits.WORKFLOW_TAGS + 1)]},
    ],
    "/tags/0": [{"tags": [tag]} for tag in ("", "x" * 129, "a\u200bb", 1)],
    "/masking": [{"masking": []}],
    "/masking/builtins/0": [{"masking": {"builtins": ["phone"]}}],
    "/masking/patterns/0/pattern": [{"masking": {"patterns": [{**PATTERN, "pattern": "("}]}}],
    "/outcome_rules/error_tags": [
        {"outcome_rules": {"error_tags": ["done"]}},
        {"outcome_rules": {"error_tags": [f"t{n}" for n in range(limits.OUTCOME_NAMES + 1)]}},
    ],
    "/outcome_rules/error_events": [{"outcome_rules": {"error_events": ["success"]}}],
    "/outcome_rules/error_events/0": [{"outcome_rules": {"error_events": ["Not A Type"]}}],
    "/session_count": [{"session_count": 3}],
    "/outcome_rules/tags": [{"outcome_rules": {"tags": []}}],
}


@pytest.mark.parametrize("pointer", WRONG)
def test_a_wrong_setting_is_named_and_changes_nothing(caller: Caller, pointer: str) -> None:
    before = footprint(caller.service.runtime)
    code = "unknown_field" if pointer in ("/session_count", "/outcome_rules/tags") else "invalid_value"
    for body in WRONG[pointer]:
        problem = assert_problem(patch(caller, "wrong", **body), 422, "validation_failed")
        assert [(item["pointer"], item["code"]) for item in problem["errors"]] == [(pointer, code)]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("slug", ["X", "Pay", "pay-me", "a", "a" * 65, "päy", "ab%0A", "pay%20me"])
def test_what_is_no_slug_is_not_there(caller: Caller, slug: str) -> None:
    for answer in (caller.get(f"/v1/workflows/{slug}"), patch(caller, slug, tags=["a"])):
        problem = assert_problem(answer, 404, "not_found")
        assert problem["resource"] == "workflow"


def list_in_pages(caller: Caller) -> list[dict[str, Any]]:
    """Return all workflows, read two at a time."""
    seen, cursor = [], ""
    while True:
        page = caller.get(f"/v1/workflows?limit=2{cursor}").json()
        seen += page["data"]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    return seen


def test_workflows_are_listed_in_pages_newest_first(caller: Caller) -> None:
    names = [f"flow_{n}" for n in range(5)]
    for name in names[:3]:
        caller.make_session(workflow=name)
    for name in names[3:]:
        patch(caller, name)
    seen = list_in_pages(caller)
    assert seen == [get(caller, workflow["workflow"]) for workflow in seen]
    assert [item["created_at"] for item in seen] == sorted(
        (item["created_at"] for item in seen), reverse=True
    )
    assert sorted(item["workflow"] for item in seen) == names


def test_pages_hold_each_workflow_of_one_moment_once(caller: Caller) -> None:
    names = [f"flow_{n}" for n in range(5)]
    for name in names:
        patch(caller, name)
    moment = "SELECT min(created_at) FROM workflows WHERE workspace_id = :one"
    statement = f"UPDATE workflows SET created_at = ({moment}) WHERE workspace_id = :one"
    execute(caller.service.runtime, statement, one=caller.key.workspace_id)
    assert [item["workflow"] for item in list_in_pages(caller)] == names[::-1]


def test_workspaces_and_modes_have_workflows_of_their_own(caller: Caller) -> None:
    patch(caller, "mine", tags=["a"])
    stranger = caller.service.make_caller()
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    for other in (stranger, tester):
        assert_problem(other.get("/v1/workflows/mine"), 404, "not_found")
        assert other.get("/v1/workflows").json()["data"] == []
        assert patch(other, "mine").json()["tags"] == []
    assert get(caller, "mine")["tags"] == ["a"]


def test_deleted_sessions_are_not_counted(caller: Caller) -> None:
    first, _ = caller.make_session(), caller.make_session()
    caller.delete(f"/v1/sessions/{first}")
    assert get(caller, "checkout")["session_count"] == 1


def test_own_rules_decide_the_outcome_at_the_stop(caller: Caller) -> None:
    patch(caller, "own_rules", outcome_rules={"error_tags": ["rejected"], "success_events": ["payment.done"]})
    flow = {"workflow": "own_rules"}
    outcomes = [
        stopped(caller, tag="rejected", **flow)["outcome"],
        stopped(caller, tag="failed", **flow)["outcome"],
        stopped(caller, event(5, "payment.done"), **flow)["outcome"],
        stopped(caller, event(5, "success"), **flow)["outcome"],
    ]
    assert outcomes == ["error", "abandoned", "success", "abandoned"]


def test_new_rules_hold_for_late_tags_too(caller: Caller) -> None:
    session = stopped(caller, workflow="later_rules")
    patch(caller, "later_rules", outcome_rules={"error_tags": ["rejected"]})
    address = f"/v1/sessions/{session['id']}"
    assert caller.get(address).json()["outcome"] == "abandoned"
    caller.post(f"{address}/tags", {"name": "rejected"})
    assert caller.get(address).json()["outcome"] == "error"
    assert "session.error" in outbox_types(caller.service.runtime, session["id"])


def test_new_rules_leave_stopped_sessions_as_they_are(caller: Caller) -> None:
    session = stopped(caller, tag="failed", workflow="kept_rules")
    patch(caller, "kept_rules", outcome_rules={"error_tags": []})
    assert caller.get(f"/v1/sessions/{session['id']}").json()["outcome"] == session["outcome"] == "error"


def test_a_masking_rule_holds_from_the_next_request_on(caller: Caller) -> None:
    session_id = caller.make_session(workflow="masked")
    caller.add_events(session_id, event(1, title="mail ada@example.com"))
    patch(caller, "masked", masking={"builtins": ["email"]})
    caller.add_events(session_id, event(2, title="mail ada@example.com"))
    titles = [item["title"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]]
    assert titles[0] == "mail ada@example.com" and "ada@" not in titles[1]


def test_the_size_of_the_graph_is_that_of_what_is_in_it(caller: Caller) -> None:
    clicks = [event(n, "click", url=f"https://a.example/step/{n}/{'abc'[n]}") for n in range(3)]
    flow = {"workflow": "sized"}
    first, other = stopped(caller, *clicks, **flow), stopped(caller, *clicks[:1], **flow)
    seal_all(caller.service.runtime)
    paths = caller.get("/v1/memory/paths?workflow=sized").json()["data"]
    ways = [path["node_ids"] for path in paths]
    graph = get(caller, "sized")["graph"]
    assert graph == {
        "version": paths[0]["graph_version"],
        "nodes": len({node for way in ways for node in way}),
        "edges": len({pair for way in ways for pair in pairwise(way)}),
        "paths": len(paths),
    }
    assert graph["nodes"] == 3 and graph["edges"] == 2
    caller.delete(f"/v1/sessions/{first['id']}")
    smaller = get(caller, "sized")["graph"]
    assert (smaller["version"], smaller["nodes"], smaller["edges"]) == (graph["version"] + 1, 1, 0)
    caller.delete(f"/v1/sessions/{other['id']}")
    gone = get(caller, "sized")["graph"]
    assert gone == {"version": graph["version"] + 2, "nodes": 0, "edges": 0, "paths": 0}


def test_a_paused_graph_takes_no_sessions_in_until_it_is_resumed(caller: Caller) -> None:
    patch(caller, "paused", memory_graph=False)
    stopped(caller, workflow="paused")
    seal_all(caller.service.runtime)
    assert get(caller, "paused")["graph"]["version"] == 0
    patch(caller, "paused", memory_graph=True)
    stopped(caller, workflow="paused")
    seal_all(caller.service.runtime)
    (path,) = caller.get("/v1/memory/paths?workflow=paused").json()["data"]
    assert path["session_count"] == 1
    assert [item["status"] for item in caller.get("/v1/sessions?workflow=paused").json()["data"]] == [
        "sealed"
    ] * 2


def test_changes_are_audited_with_what_they_were(caller: Caller) -> None:
    patch(caller, "audited", tags=["a"])
    patch(caller, "audited", memory_graph=False, masking={"patterns": [PATTERN]})
    with caller.service.runtime.database.transaction(write=False) as db:
        statement = select(AuditRow).where(
            AuditRow.workspace_id == caller.key.workspace_id, AuditRow.resource_id == "audited"
        )
        rows = list(db.exec(statement.order_by(col(AuditRow.number))))
    assert [row.action for row in rows] == ["workflow.create", "workflow.update"]
    assert rows[0].details["tags"] == {"from": None, "to": ["a"]}
    assert rows[1].details["memory_graph"] == {"from": True, "to": False}
    assert sorted(rows[1].details) == ["masking", "memory_graph"]
    assert PATTERN["pattern"] not in rows[1].model_dump_json()


def test_a_workspace_has_a_number_of_workflows_in_both_modes(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller.get("/v1/limits").json()["workspace"]["workflows"] == 10_000
    monkeypatch.setattr(limits, "WORKFLOWS_PER_WORKSPACE", 3)
    tests = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    stranger = caller.service.make_caller()
    caller.make_session(workflow="first")
    assert patch(caller, "second").status_code == 200
    tests.make_session(workflow="first")
    for who in (caller, tests):
        refused = who.post("/v1/sessions", {"workflow": "third"})
        assert_problem(refused, 422, "limit_reached")
        assert "at most 3 workflows" in refused.json()["detail"]
        assert_problem(patch(who, "third", tags=["a"]), 422, "limit_reached")
        assert who.get("/v1/workflows/third").status_code == 404
    caller.make_session(workflow="first")
    assert patch(caller, "second", tags=["a"]).status_code == 200
    assert get(caller, "first")["session_count"] == 2
    assert stranger.post("/v1/sessions", {"workflow": "third"}).status_code == 201


def test_first_sessions_at_once_make_no_workflow_beyond_the_limit(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKFLOWS_PER_WORKSPACE", 4)
    names = [f"flow_{number % 8}" for number in range(16)]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda name: caller.post("/v1/sessions", {"workflow": name}), names))
    assert {answer.status_code for answer in answers} == {201, 422}
    shown = caller.get("/v1/workflows").json()["data"]
    assert len(shown) == 4 and sum(item["session_count"] for item in shown) == 8
