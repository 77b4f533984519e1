"""`/v1/workspaces/current`: settings of a tenant, and what its operator sets. Spec §2.10; contract §7."""

from typing import Any

import pytest
from sqlmodel import col, select

from recorder import limits
from recorder.access.workspaces import set_workspace
from recorder.models.operations import AuditRow
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import Caller, assert_problem, event, footprint

PATTERN = {"name": "order", "pattern": "ORD-[0-9]+", "replacement": ""}


def patch(caller: Caller, **body: Any) -> Any:
    """Send a PATCH of the caller's workspace."""
    return caller.request("PATCH", "/v1/workspaces/current", json=body)


def audited(caller: Caller, action: str) -> list[AuditRow]:
    """Return the entries of an action in the workspace's audit log."""
    with caller.service.runtime.database.transaction(write=False) as db:
        statement = select(AuditRow).where(
            AuditRow.workspace_id == caller.key.workspace_id, AuditRow.action == action
        )
        return list(db.exec(statement.order_by(col(AuditRow.number))))


def test_a_new_workspace_has_the_defaults_of_the_specification(caller: Caller) -> None:
    shown = caller.get("/v1/workspaces/current").json()
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
    assert shown.pop("created_at").endswith("Z")
    assert shown == {
        "id": caller.key.workspace_id,
        "name": row.name,
        "region": "us",
        "status": "active",
        "tier": "unlimited",
        "retention": {"frames_days": 90, "events_days": 548, "audit_days": 548},
        "masking": {"builtins": [], "patterns": []},
        "live_replay": {"allow_hosts": []},
    }


def test_a_patch_merges_at_every_level(caller: Caller) -> None:
    patch(caller, retention={"frames_days": 1, "events_days": 3650}, masking={"builtins": ["card"]})
    patch(caller, live_replay={"allow_hosts": ["Shop.Example.com", "shop.example.com", "erp", "ERP:8443"]})
    shown = patch(caller, retention={"frames_days": 7}, masking={"patterns": [PATTERN]}).json()
    assert shown["retention"] == {"frames_days": 7, "events_days": 3650, "audit_days": 548}
    assert shown["masking"] == {"builtins": ["card"], "patterns": [PATTERN]}
    assert shown["live_replay"] == {"allow_hosts": ["shop.example.com", "erp", "erp:8443"]}
    assert shown == caller.get("/v1/workspaces/current").json()


def test_the_body_of_the_specification_is_taken(caller: Caller) -> None:
    answer = patch(caller, retention={"frames_days": 30, "events_days": 365})
    assert (answer.status_code, answer.json()["retention"]["events_days"]) == (200, 365)


def test_a_patch_that_changes_nothing_leaves_no_trace(caller: Caller) -> None:
    before = footprint(caller.service.runtime)
    for body in ({}, {"retention": {}}, {"live_replay": {}}, {"retention": {"frames_days": 90}}):
        assert patch(caller, **body).status_code == 200
    assert footprint(caller.service.runtime) == before


NO_HOSTS = [
    "https://shop.example",
    "shop.example:0",
    "shop.example:65536",
    "shop.example:https",
    "shop.example:",
    "127.0.0.1:80",
    "shop.example/x",
    "ada@shop.example",
    "shöp.example",
    "*.example",
    "-a.example",
    "a-.example",
    "a..example",
    ".example",
    "example.",
    "127.0.0.1",
    "2130706433",
    "0x7f.1",
    "::1",
    "[::1]",
]
LONG = ".".join(["x" * 63] * 4)
WRONG: dict[str, list[dict[str, Any]]] = {
    "/retention/frames_days": [{"retention": {"frames_days": days}} for days in (0, 3651, "7", 1.5, True)],
    "/retention/events_days": [{"retention": {"events_days": days}} for days in (0, 3651)],
    "/retention/audit_days": [{"retention": {"audit_days": days}} for days in (0, 3651)],
    "/retention": [{"retention": [1]}],
    "/masking/builtins/0": [{"masking": {"builtins": ["phone"]}}],
    "/live_replay/allow_hosts": [
        {"live_replay": {"allow_hosts": "shop.example"}},
        {"live_replay": {"allow_hosts": [f"h{n}.example" for n in range(limits.LIVE_HOSTS + 1)]}},
    ],
    "/live_replay/allow_hosts/0": [
        {"live_replay": {"allow_hosts": [host]}} for host in (*NO_HOSTS, "", "a b", "a\n", "x" * 64, LONG, 7)
    ],
}


@pytest.mark.parametrize("pointer", WRONG)
def test_a_wrong_setting_is_named_and_changes_nothing(caller: Caller, pointer: str) -> None:
    before = footprint(caller.service.runtime)
    for body in WRONG[pointer]:
        problem = assert_problem(patch(caller, **body), 422, "validation_failed")
        assert [(item["pointer"], item["code"]) for item in problem["errors"]] == [(pointer, "invalid_value")]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("name", ["id", "name", "region", "status", "tier", "created_at", "quota"])
def test_what_the_operator_decides_cannot_be_patched(caller: Caller, name: str) -> None:
    problem = assert_problem(patch(caller, **{name: "eu"}), 422, "validation_failed")
    assert [(item["pointer"], item["code"]) for item in problem["errors"]] == [(f"/{name}", "unknown_field")]


def test_settings_need_admin(caller: Caller) -> None:
    writer = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write")
    assert_problem(writer.get("/v1/workspaces/current"), 403, "insufficient_scope")
    assert_problem(patch(writer, retention={"frames_days": 1}), 403, "insufficient_scope")


def test_a_test_key_reads_settings_and_changes_none(caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    assert tester.get("/v1/workspaces/current").json() == caller.get("/v1/workspaces/current").json()
    assert_problem(patch(tester, retention={"frames_days": 1}), 403, "insufficient_scope")
    assert caller.get("/v1/workspaces/current").json()["retention"]["frames_days"] == 90


def test_workspaces_have_settings_of_their_own(caller: Caller) -> None:
    stranger = caller.service.make_caller()
    patch(caller, retention={"frames_days": 1})
    assert stranger.get("/v1/workspaces/current").json()["retention"]["frames_days"] == 90


def test_masking_holds_from_the_next_request_on(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1, title="ada@example.com"))
    patch(caller, masking={"builtins": ["email"]})
    caller.add_events(session_id, event(2, title="ada@example.com"))
    patch(caller, masking={"builtins": []})
    caller.add_events(session_id, event(3, title="ada@example.com"))
    titles = [item["title"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]]
    assert [title == "ada@example.com" for title in titles] == [True, False, True]


def test_changes_are_audited_with_what_they_were(caller: Caller) -> None:
    patch(caller, retention={"frames_days": 7}, masking={"patterns": [PATTERN]})
    (entry,) = audited(caller, "workspace.update")
    assert (entry.actor_id, entry.resource_id) == (caller.key.key_id, caller.key.workspace_id)
    assert sorted(entry.details) == ["masking", "retention.frames_days"]
    assert entry.details["retention.frames_days"] == {"from": 90, "to": 7}
    assert PATTERN["pattern"] not in entry.model_dump_json()


@pytest.mark.parametrize("status", ["suspended", "expired"])
def test_a_workspace_that_is_not_active_is_refused_everywhere(caller: Caller, status: Any) -> None:
    runtime = caller.service.runtime
    fresh = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="read")
    with runtime.database.transaction(write=True) as db:
        set_workspace(db, caller.key.workspace_id, status=status)
    for path in ("/v1/sessions", "/v1/workspaces/current", "/v1/quota", "/v1/nothing"):
        problem = assert_problem(fresh.get(path), 403, "workspace_disabled")
        assert status in problem["detail"]
    with runtime.database.transaction(write=True) as db:
        set_workspace(db, caller.key.workspace_id, status="active")
    again = caller.service.make_caller(workspace_id=caller.key.workspace_id)
    assert again.get("/v1/quota").status_code == 200


def test_another_tier_shows_at_once(caller: Caller) -> None:
    with caller.service.runtime.database.transaction(write=True) as db:
        set_workspace(db, caller.key.workspace_id, tier="trial")
    assert caller.get("/v1/workspaces/current").json()["tier"] == "trial"
    assert caller.get("/v1/quota").json()["captured_minutes_limit"] == 1_000
