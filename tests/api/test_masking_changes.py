"""Policies of workflows are loaded when needed, shared, and in force in time. Contract §3 (masking)."""

import time
from typing import Any

import pytest
from httpx2 import Response

from recorder import limits
from recorder.errors import Unavailable
from recorder.masking.policies import list_masking_replacements
from tests.support.factories import Caller, Service, assert_problem, event, frame
from tests.support.masking import ADA, EVERYTHING, read_events, set_masking, shown
from tests.support.query_plans import noted_statements
from tests.support.statements import before_each_statement

BILLING = "billing"
STAFF = {"name": "staff", "pattern": "emp-[0-9]+"}
#: How the statement that reads a workflow's policy begins.
LOADS = "SELECT workflows.masking"


def count_loads(noted: list[tuple[str, Any]]) -> int:
    """Return the number of statements that read a policy."""
    return sum(" ".join(statement.split()).startswith(LOADS) for statement, _ in noted)


def titles(caller: Caller, session_id: str) -> list[str]:
    """Return the titles of a session's events, without the digits of tokens."""
    return [shown(item["title"]) for item in read_events(caller, session_id)]


def test_requests_and_keys_share_one_load_of_a_policy(service: Service, caller: Caller) -> None:
    set_masking(caller, EVERYTHING, workflow=BILLING)
    other = service.make_caller(workspace_id=caller.key.workspace_id)
    with noted_statements() as noted:
        session_id = caller.make_session(workflow=BILLING, metadata={"mail": ADA})
        for t_ms, who in enumerate((caller, other, caller)):
            who.add_events(session_id, event(t_ms, title=ADA))
        other.add_frames(session_id, frame(url=ADA))
        other.post(f"/v1/sessions/{session_id}/tags", {"name": ADA})
    assert count_loads(noted) == 1
    assert titles(caller, session_id) == ["‹email›"] * 3


def test_a_key_is_looked_up_without_the_policies_of_workflows(service: Service, caller: Caller) -> None:
    for number in range(5):
        set_masking(caller, EVERYTHING, workflow=f"flow_{number}")
    stranger = service.make_caller(workspace_id=caller.key.workspace_id)
    with noted_statements() as noted:
        assert stranger.get("/v1/limits").status_code == 200
    assert count_loads(noted) == 0
    known = service.app.state.caller_cache.get(f"Bearer {stranger.key.key}".encode())
    assert known.masking is not None and known.masking.workspace is None


def test_workspaces_that_mask_nothing_look_nothing_up(service: Service, caller: Caller) -> None:
    session_id = caller.make_session(workflow=BILLING)
    caller.add_events(session_id, event(0, title=ADA))
    with noted_statements() as noted:
        caller.add_events(session_id, event(1, title=ADA))
    assert count_loads(noted) == 0 and titles(caller, session_id) == [ADA] * 2


@pytest.mark.parametrize("what", ["events", "frames", "tags", "session"])
def test_what_cannot_be_masked_is_refused(caller: Caller, what: str) -> None:
    set_masking(caller, EVERYTHING, workflow=BILLING)
    session_id = caller.make_session(workflow="other")
    caller.request("PATCH", f"/v1/workflows/{BILLING}", json={"masking": {"builtins": ["email"]}})
    address = f"/v1/sessions/{session_id}"

    def fail(statement: str) -> None:
        if " ".join(statement.split()).startswith(LOADS):
            raise Unavailable("The database")

    def send() -> Any:
        return {
            "events": lambda: caller.add_events(session_id, event(0, title=ADA)),
            "frames": lambda: caller.add_frames(session_id, frame(url=ADA)),
            "tags": lambda: caller.post(f"{address}/tags", {"name": ADA}),
            "session": lambda: caller.post("/v1/sessions", {"workflow": BILLING, "metadata": {"a": ADA}}),
        }[what]()

    before = caller.get("/v1/sessions").json()["data"]
    with before_each_statement(fail):
        assert_problem(send(), 503, "unavailable")
    assert caller.get("/v1/sessions").json()["data"] == before
    assert caller.get(f"{address}/tags").json()["data"] == []
    assert send().status_code in (201, 202)


def test_each_change_of_a_policy_holds_from_the_next_request_on(caller: Caller) -> None:
    session_id = caller.make_session(workflow=BILLING)
    policies: list[dict[str, Any]] = [{}, EVERYTHING, {"builtins": ["card"]}, EVERYTHING, {}]
    for t_ms, policy in enumerate(policies):
        set_masking(caller, policy, workflow=BILLING)
        caller.add_events(session_id, event(t_ms, title=ADA))
    assert titles(caller, session_id) == [ADA, "‹email›", ADA, "‹email›", ADA]


def test_other_processes_follow_within_the_time_they_remember(
    second_process: Service, caller: Caller
) -> None:
    cache = second_process.app.state.caller_cache
    assert cache.cached_s <= 5.0
    cache.cached_s = 0.5
    elsewhere = Caller(second_process, caller.key)
    session_id = elsewhere.make_session(workflow=BILLING)
    for t_ms, policy in enumerate([{"builtins": ["card"]}, EVERYTHING, {}]):
        set_masking(caller, policy, workflow=BILLING)
        time.sleep(0.5)
        elsewhere.add_events(session_id, event(t_ms, title=ADA))
    assert titles(caller, session_id) == [ADA, "‹email›", ADA]


def test_a_request_with_an_older_caller_keeps_nothing_for_later_ones(
    service: Service, caller: Caller
) -> None:
    set_masking(caller, {"builtins": ["card"]}, workflow=BILLING)
    session_id = caller.make_session(workflow=BILLING)
    bearer = f"Bearer {caller.key.key}".encode()
    older = service.app.state.caller_cache.get(bearer)
    set_masking(caller, EVERYTHING, workflow=BILLING)
    assert service.client.portal is not None
    masking = service.app.state.masking
    first = service.client.portal.call(masking.policy_of_session, older, session_id)
    caller.add_events(session_id, event(0, title=ADA))
    assert first is not None and titles(caller, session_id) == ["‹email›"]


@pytest.mark.parametrize("path", ["/v1/workspaces/current", "/v1/workflows/checkout"])
def test_a_workspace_has_a_bounded_number_of_replacements(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(limits, "MASKING_REPLACEMENTS", 2)

    def change(*replacements: str) -> Response:
        patterns = [
            {**STAFF, "name": f"rule_{number}", "replacement": each}
            for number, each in enumerate(replacements)
        ]
        return caller.request("PATCH", path, json={"masking": {"patterns": patterns}})

    assert change("[a]", "[b]").status_code == 200
    refused = change("[a]", "[c]")
    assert_problem(refused, 422, "limit_reached")
    assert "at most 2 different replacements in the masking policies" in refused.json()["detail"]
    assert caller.get(path).json()["masking"]["patterns"][1]["replacement"] == "[b]"
    # One that a policy has had may come back.
    assert [change(each).status_code for each in ("[b]", "[a]")] == [200, 200]
    with caller.service.runtime.database.transaction(write=False) as db:
        assert list_masking_replacements(db, caller.key.workspace_id) == {"[a]", "[b]"}
    set_masking(caller.service.make_caller(), {"patterns": [{**STAFF, "replacement": "[c]"}]})
