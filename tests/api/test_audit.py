"""`GET /v1/audit`: pages and NDJSON, filters, and what a key tried that it may not. Contract §7 (audit)."""

import hashlib
import json
from typing import Any

import pytest

from recorder import hashing
from recorder.audit.log import Origin, record_audit_entry
from tests.support.factories import Caller, Service, assert_problem
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute

NDJSON = "application/x-ndjson"
AUDIT = "/v1/audit"
MEMBERS = [
    *("id", "at", "actor", "action", "resource", "outcome", "request_id", "ip", "details"),
    *("prev_hash", "hash"),
]


def write(caller: Caller, *entries: tuple[str, str], mode: str | None = "live", actor: str = "key_a") -> None:
    """Store entries of `(action, resource id)`, as operations would record them."""
    runtime = caller.service.runtime
    origin = Origin(caller.key.workspace_id, "key", actor, "req_1", "127.0.0.1", mode)
    for action, resource_id in entries:
        with runtime.database.transaction(write=True) as db:
            kind = action.partition(".")[0]
            details = {"label": "Zoë", "n": 1}
            record_audit_entry(
                db, origin, action, resource_type=kind, resource_id=resource_id, details=details
            )


def listed(caller: Caller, query: str = "") -> list[tuple[str, str]]:
    """Return `(action, resource id)` of the entries that a query finds."""
    answer = caller.get(AUDIT + query)
    assert answer.status_code == 200, answer.text
    return [(entry["action"], entry["resource"]["id"]) for entry in answer.json()["data"]]


def test_an_entry_has_exactly_these_members(caller: Caller) -> None:
    write(caller, ("key.create", "key_1"))
    body = caller.get(AUDIT).json()
    assert (body["next_cursor"], body["has_more"]) == (None, False)
    [entry] = body["data"]
    assert list(entry) == (
        [
            "id",
            "at",
            "actor",
            "action",
            "resource",
            "outcome",
            "request_id",
            "ip",
            "details",
            "prev_hash",
            "hash",
        ]
    )
    assert entry["id"].startswith("aud_") and entry["at"].endswith("Z")
    assert entry["actor"] == {"type": "key", "id": "key_a"}
    assert entry["resource"] == {"type": "key", "id": "key_1"}
    assert (entry["action"], entry["outcome"], entry["ip"]) == ("key.create", "success", "127.0.0.1")
    assert entry["details"] == {"label": "Zoë", "n": 1}


def test_the_chain_can_be_checked_from_what_is_sent(caller: Caller) -> None:
    write(caller, *[("key.create", f"key_{number}") for number in range(5)])
    last = hashlib.sha256(caller.key.workspace_id.encode()).hexdigest()
    for line in caller.get(AUDIT, Accept=NDJSON).text.splitlines():
        entry = json.loads(line)
        stored = entry.pop("hash")
        assert entry["prev_hash"] == last
        canonical = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        last = hashlib.sha256((last + canonical).encode()).hexdigest()
        assert (stored, last) == (last, hashing.compute_sha256((entry["prev_hash"] + canonical).encode()))


def test_pages_run_oldest_first_and_miss_nothing(caller: Caller) -> None:
    expected = [("key.create", f"key_{number}") for number in range(7)]
    write(caller, *expected)
    collected, cursor = [], ""
    while cursor is not None:
        body = caller.get(f"{AUDIT}?limit=3{cursor}").json()
        collected += [(entry["action"], entry["resource"]["id"]) for entry in body["data"]]
        assert body["has_more"] is (body["next_cursor"] is not None)
        cursor = body["next_cursor"] and f"&cursor={body['next_cursor']}"
    assert collected == expected


def test_filters_find_by_action_actor_resource_and_time(caller: Caller) -> None:
    write(caller, ("key.create", "key_1"), ("webhook.create", "whk_1"))
    write(caller, ("key.revoke", "key_1"), actor="key_b")
    create, hook, revoke = ("key.create", "key_1"), ("webhook.create", "whk_1"), ("key.revoke", "key_1")
    entries = caller.get(AUDIT).json()["data"]
    for query, expected in {
        "?action=key.create": [create],
        "?action=key": [],
        "?actor=key_b": [revoke],
        "?actor=key": [create, hook, revoke],
        "?actor=operator": [],
        "?resource=key": [create, revoke],
        "?resource=whk_1": [hook],
        "?resource=key&actor=key_a": [create],
        "?since=1h": [create, hook, revoke],
        "?until=1h": [],
        f"?since={entries[1]['at']}&until={entries[2]['at']}": [
            item
            for item, entry in zip((create, hook, revoke), entries, strict=True)
            if entries[1]["at"] <= entry["at"] < entries[2]["at"]
        ],
    }.items():
        assert listed(caller, query) == expected, query


def test_a_name_that_is_a_type_and_an_id_finds_both(caller: Caller) -> None:
    write(caller, ("export.create", "exp_1"), ("workflow.create", "export"), ("hold.add", "key"))
    write(caller, ("key.create", "key_1"), actor="operator")
    assert listed(caller, "?resource=export") == [("export.create", "exp_1"), ("workflow.create", "export")]
    assert listed(caller, "?resource=key") == [("hold.add", "key"), ("key.create", "key_1")]
    assert listed(caller, "?actor=operator") == [("key.create", "key_1")]


@pytest.mark.parametrize("name", ["action", "actor", "resource"])
def test_a_look_up_walks_an_index_of_its_own(caller: Caller, name: str) -> None:
    database = caller.service.runtime.database
    write(caller, ("key.create", "key_1"))
    with noted_statements() as noted:
        listed(caller, f"?{name}=nothing")
    [query] = [(statement, given) for statement, given in noted if "FROM audit_entries" in statement]
    plan = plan_of(database, *query)
    assert f"ix_audit_entries_{name}" in plan and "TEMP B-TREE" not in plan, plan


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?since=soon", "invalid_time"),
        ("?since=1h&until=2h", "invalid_range"),
        ("?limit=0", "validation_failed"),
        ("?action=", "validation_failed"),
        ("?actor=%00", "validation_failed"),
        ("?resource=a%0A", "validation_failed"),
        ("?outcome=refused", "validation_failed"),
    ],
)
def test_a_query_that_cannot_be_is_refused(caller: Caller, query: str, code: str) -> None:
    assert_problem(caller.get(AUDIT + query), 422, code)


def test_a_cursor_serves_its_own_filters_alone(caller: Caller) -> None:
    write(caller, *[("key.create", f"key_{number}") for number in range(3)])
    cursor = caller.get(f"{AUDIT}?limit=1").json()["next_cursor"]
    assert_problem(caller.get(f"{AUDIT}?limit=1&actor=key_a&cursor={cursor}"), 400, "invalid_cursor")


def test_ndjson_holds_all_that_the_filters_find(caller: Caller) -> None:
    with caller.service.runtime.database.transaction(write=True) as db:
        origin = Origin(caller.key.workspace_id, "system", "retention")
        for number in range(1_203):
            action = "session.delete" if number % 3 else "session.purge"
            record_audit_entry(db, origin, action, resource_type="session", resource_id=f"ses_{number}")
    answer = caller.get(f"{AUDIT}?limit=5", Accept=f"{NDJSON}, */*;q=0.1")
    assert (answer.status_code, answer.headers["content-type"]) == (200, NDJSON)
    entries = [json.loads(line) for line in answer.text.splitlines()]
    assert [entry["resource"]["id"] for entry in entries] == [f"ses_{number}" for number in range(1_203)]
    purged = caller.get(f"{AUDIT}?action=session.purge", Accept=NDJSON).text.splitlines()
    assert len(purged) == 401
    assert caller.get(f"{AUDIT}?action=key.create", Accept=NDJSON).text == ""


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("application/json", 200),
        ("application/*;q=0.5", 200),
        ("text/html, */*;q=0.1", 200),
        ("application/x-ndjson;q=0, application/json", 200),
        ("text/csv", 406),
        ("application/xml, text/html", 406),
        ("*/*;q=0", 406),
    ],
)
def test_the_formats_are_json_and_ndjson(caller: Caller, accept: str, status: int) -> None:
    answer = caller.get(AUDIT, Accept=accept)
    assert answer.status_code == status
    if status == 406:
        assert_problem(answer, 406, "not_acceptable")
    else:
        assert answer.json()["data"] == []


def test_a_workspace_sees_its_own_log_alone(service: Service, caller: Caller) -> None:
    write(caller, ("key.create", "key_1"))
    assert listed(service.make_caller()) == []
    assert service.make_caller().get(AUDIT, Accept=NDJSON).text == ""


def test_a_test_key_sees_what_test_keys_did(service: Service, caller: Caller) -> None:
    write(caller, ("key.create", "key_1"))
    write(caller, ("webhook.create", "whk_t"), mode="test")
    write(caller, ("workspace.update", "wsp_1"), mode=None)
    test = service.make_caller(workspace_id=caller.key.workspace_id, mode="test")
    assert listed(test) == [("webhook.create", "whk_t")]
    assert len(test.get(AUDIT, Accept=NDJSON).text.splitlines()) == 1
    assert len(listed(caller)) == 3


def refusals(caller: Caller) -> list[dict[str, Any]]:
    """Return the entries about refused requests."""
    entries = caller.get(AUDIT).json()["data"]
    return [entry for entry in entries if entry["outcome"] == "refused"]


def test_what_a_key_may_not_is_recorded_once_a_minute(service: Service, caller: Caller) -> None:
    reader = service.make_caller(workspace_id=caller.key.workspace_id, scope="read")
    for _ in range(3):
        answer = reader.get(AUDIT)
        assert_problem(answer, 403, "insufficient_scope")
    reader.post("/v1/sessions", {"workflow": "checkout"})
    recorded = refusals(caller)
    assert [(entry["action"], entry["resource"]["id"]) for entry in recorded] == [
        ("endpoint.call", "GET /v1/audit"),
        ("endpoint.call", "POST /v1/sessions"),
    ]
    assert recorded[0]["actor"] == {"type": "key", "id": reader.key.key_id}
    assert recorded[0]["details"] == {"needed": "admin", "held": "read"}
    assert recorded[0]["request_id"].startswith("req_")


def test_the_keys_of_a_workspace_do_not_fill_its_log_with_refusals(service: Service, caller: Caller) -> None:
    workspace_id = caller.key.workspace_id
    readers = [service.make_caller(workspace_id=workspace_id, scope="read") for _ in range(27)]
    for reader in readers:
        for address in ("/v1/sessions", "/v1/exports", "/v1/replays", "/v1/webhooks"):
            assert reader.post(address, {}).status_code == 403
    entries = caller.get(f"{AUDIT}?limit=200").json()["data"]
    assert len([entry for entry in entries if entry["outcome"] == "refused"]) == 100
    other = service.make_caller()
    reader = service.make_caller(workspace_id=other.key.workspace_id, scope="read")
    assert reader.get(AUDIT).status_code == 403
    assert len(refusals(other)) == 1


def test_who_has_no_key_leaves_no_entry(service: Service, caller: Caller) -> None:
    assert service.client.get(AUDIT).status_code == 401
    assert listed(caller) == []


def test_reading_changes_nothing(caller: Caller) -> None:
    write(caller, ("key.create", "key_1"))
    for _ in range(2):
        caller.get(AUDIT)
        caller.get(AUDIT, Accept=NDJSON)
    assert len(listed(caller)) == 1


def test_an_entry_that_was_changed_is_still_given_as_it_stands(caller: Caller) -> None:
    write(caller, ("key.create", "key_1"))
    statement = "UPDATE audit_entries SET resource_id = 'key_x' WHERE workspace_id = :workspace"
    execute(caller.service.runtime, statement, workspace=caller.key.workspace_id)
    assert listed(caller) == [("key.create", "key_x")]
