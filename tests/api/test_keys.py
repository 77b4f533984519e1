"""`/v1/keys`: made once, listed without their value, ended at once. Spec §2.3, §5; contract §1 (keys)."""

import time
from datetime import timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlmodel import col, select

from api.dependencies import get_db
from api.gate import authentication
from recorder import clock, limits
from recorder.access.keys import NewKey
from recorder.models.operations import AuditRow
from recorder.models.workspace import KeyRow
from tests.support.factories import Caller, Service, assert_problem, footprint
from tests.support.hostile_cases import nothing_stored

KEY = {"label": "capture client", "scope": "write"}
CREATED = ["created_at", "expires_at", "id", "key", "label", "mode", "scope"]
LISTED = ["created_at", "expires_at", "id", "label", "last4", "mode", "scope"]


def holder(service: Service, made: dict[str, Any], workspace_id: str) -> Caller:
    """Return the caller that was given a key by the interface."""
    return Caller(service, NewKey(workspace_id, made["id"], made["key"]))


def make_key(caller: Caller, **members: Any) -> Caller:
    """Return a key that this caller creates."""
    answer = caller.post("/v1/keys", KEY | members)
    assert answer.status_code == 201, answer.text
    return holder(caller.service, answer.json(), caller.key.workspace_id)


def later(**time_: float) -> str:
    """Return a time in the future."""
    return clock.to_iso(clock.now() + timedelta(**time_))


def test_a_key_is_shown_once_and_opens(caller: Caller) -> None:
    answer = caller.post("/v1/keys", KEY)
    made = answer.json()
    assert (answer.status_code, sorted(made), answer.headers["cache-control"]) == (201, CREATED, "no-store")
    assert made["key"].startswith("nsk_local_")
    assert holder(caller.service, made, caller.key.workspace_id).get("/v1/sessions").status_code == 200
    assert made["key"] not in caller.get("/v1/keys").text


def test_a_key_has_what_was_asked_for(caller: Caller) -> None:
    expires_at = later(days=1)
    made = caller.post("/v1/keys", {**KEY, "mode": "test", "expires_at": expires_at}).json()
    wanted = {**KEY, "mode": "test", "expires_at": expires_at}
    assert {name: made[name] for name in wanted} == wanted
    assert made["key"].startswith("nsk_test_")


@pytest.mark.parametrize("mode", ["live", "test"])
def test_a_key_is_of_its_makers_mode_by_default(service: Service, mode: Any) -> None:
    assert service.make_caller(mode=mode).post("/v1/keys", KEY).json()["mode"] == mode


def test_the_order_of_the_words_of_a_scope_does_not_matter(service: Service) -> None:
    caller = service.make_caller(scope="admin replay:live")
    assert caller.post("/v1/keys", KEY | {"scope": "replay:live read"}).json()["scope"] == "read replay:live"


BAD_KEYS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no label": ({"label": None}, "validation_failed", "/label", "invalid_value"),
    "empty label": ({"label": ""}, "validation_failed", "/label", "invalid_value"),
    "label of 129 letters": ({"label": "n" * 129}, "validation_failed", "/label", "invalid_value"),
    "label with a line end": ({"label": "a\r\nb"}, "validation_failed", "/label", "invalid_string"),
    "label with an escape code": ({"label": "\x1b[31m"}, "validation_failed", "/label", "invalid_string"),
    "no scope": ({"scope": None}, "validation_failed", "/scope", "invalid_value"),
    "empty scope": ({"scope": ""}, "validation_failed", "/scope", "invalid_value"),
    "unknown scope": ({"scope": "owner"}, "validation_failed", "/scope", "invalid_value"),
    "scope in capitals": ({"scope": "Read"}, "validation_failed", "/scope", "invalid_value"),
    "two levels": ({"scope": "read write"}, "validation_failed", "/scope", "invalid_value"),
    "level twice": ({"scope": "read read"}, "validation_failed", "/scope", "invalid_value"),
    "replay alone": ({"scope": "replay:live"}, "validation_failed", "/scope", "invalid_value"),
    "two spaces": ({"scope": "read  replay:live"}, "validation_failed", "/scope", "invalid_value"),
    "scope with a tab": ({"scope": "read\treplay:live"}, "validation_failed", "/scope", "invalid_value"),
    "unknown mode": ({"mode": "local"}, "validation_failed", "/mode", "invalid_value"),
    "past end": ({"expires_at": "2020-01-01T00:00:00Z"}, "invalid_time", "/expires_at", "invalid_time"),
    "end without zone": (
        {"expires_at": "2999-01-01T00:00:00"},
        "invalid_time",
        "/expires_at",
        "invalid_time",
    ),
    "end in seconds": ({"expires_at": 4_000_000_000}, "invalid_time", "/expires_at", "invalid_time"),
    "its own value": ({"key": "nsk_local_mine"}, "validation_failed", "/key", "unknown_field"),
    "another workspace": ({"workspace_id": "wsp_1"}, "validation_failed", "/workspace_id", "unknown_field"),
}


@pytest.mark.parametrize("case", BAD_KEYS)
def test_a_bad_key_is_refused(caller: Caller, case: str) -> None:
    members, code, pointer, item = BAD_KEYS[case]
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.post("/v1/keys", KEY | members), 422, code)
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [(pointer, item)]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize(
    ("held", "mode", "wanted"),
    [
        ("admin", "live", {"scope": "admin replay:live"}),
        ("admin", "live", {"scope": "read replay:live"}),
        ("admin", "test", {"mode": "live"}),
        ("admin replay:live", "test", {"mode": "live", "scope": "read"}),
    ],
)
def test_a_key_grants_only_what_it_holds(
    service: Service, held: str, mode: Any, wanted: dict[str, Any]
) -> None:
    caller = service.make_caller(scope=held, mode=mode)
    with nothing_stored(service.runtime):
        assert_problem(caller.post("/v1/keys", KEY | wanted), 403, "insufficient_scope")


@pytest.mark.parametrize("scope", ["read", "write", "admin", "admin replay:live", "read replay:live"])
def test_the_first_scope_grants_every_other(service: Service, scope: str) -> None:
    first = service.make_caller(scope="admin replay:live")
    assert make_key(first, scope=scope).get("/v1/sessions").status_code == 200


def test_keys_are_listed_newest_first_in_pages(caller: Caller) -> None:
    made = [make_key(caller, label=f"key {n}").key.key_id for n in range(4)]
    first = caller.get("/v1/keys?limit=3").json()
    second = caller.get(f"/v1/keys?limit=3&cursor={first['next_cursor']}").json()
    assert [key["id"] for key in first["data"]] == made[:0:-1]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)
    # The last ones are the caller's own and the workspace's first.
    assert [key["id"] for key in second["data"]][:2] == [made[0], caller.key.key_id]
    assert {tuple(sorted(key)) for key in first["data"]} == {tuple(LISTED)}


def test_a_test_key_administers_test_keys_alone(service: Service, caller: Caller) -> None:
    tester = make_key(caller, mode="test", scope="admin")
    listed = tester.get("/v1/keys").json()["data"]
    assert [key["id"] for key in listed] == [tester.key.key_id]
    assert_problem(tester.delete(f"/v1/keys/{caller.key.key_id}"), 404, "not_found")
    assert tester.key.key_id in caller.get("/v1/keys").text
    assert caller.delete(f"/v1/keys/{tester.key.key_id}").status_code == 204
    assert_problem(tester.get("/v1/keys"), 401, "invalid_api_key")


def test_a_revoked_key_is_refused_at_once(caller: Caller) -> None:
    client = make_key(caller)
    assert client.get("/v1/sessions").status_code == 200
    assert caller.delete(f"/v1/keys/{client.key.key_id}").status_code == 204
    assert_problem(client.get("/v1/sessions"), 401, "invalid_api_key")
    assert client.key.key_id not in caller.get("/v1/keys").text
    problem = assert_problem(caller.delete(f"/v1/keys/{client.key.key_id}"), 404, "not_found")
    assert problem["resource"] == "key"


def test_a_key_may_end_itself(caller: Caller) -> None:
    admin = make_key(caller, scope="admin")
    assert admin.delete(f"/v1/keys/{admin.key.key_id}").status_code == 204
    assert_problem(admin.get("/v1/keys"), 401, "invalid_api_key")


def test_keys_of_another_workspace_are_not_there(service: Service, caller: Caller) -> None:
    stranger = service.make_caller()
    assert caller.key.key_id not in stranger.get("/v1/keys").text
    before = footprint(service.runtime)
    assert_problem(stranger.delete(f"/v1/keys/{caller.key.key_id}"), 404, "not_found")
    assert footprint(service.runtime) == before


def stored_keys(service: Service, key_id: str) -> list[KeyRow]:
    """Return the row of a key."""
    with service.runtime.database.transaction(write=False) as db:
        return list(db.exec(select(KeyRow).where(KeyRow.id == key_id)))


def test_the_value_of_a_key_is_stored_nowhere(service: Service, caller: Caller) -> None:
    key = make_key(caller).key
    (row,) = stored_keys(service, key.key_id)
    assert key.key[-4:] == row.last4
    assert key.key[10:-6] not in row.model_dump_json() and row.key_hash != ""


def test_making_and_ending_keys_is_audited(service: Service, caller: Caller) -> None:
    key_id = make_key(caller, scope="read").key.key_id
    caller.delete(f"/v1/keys/{key_id}")
    with service.runtime.database.transaction(write=False) as db:
        rows = list(
            db.exec(select(AuditRow).where(AuditRow.resource_id == key_id).order_by(col(AuditRow.number)))
        )
    assert [(row.action, row.actor_id) for row in rows] == [
        ("key.create", caller.key.key_id),
        ("key.revoke", caller.key.key_id),
    ]
    assert rows[0].details == {**KEY, "scope": "read", "mode": "live", "expires_at": None}


def test_a_repeated_answer_holds_no_key(caller: Caller) -> None:
    first, again = (caller.post("/v1/keys", KEY, key="once") for _ in range(2))
    assert first.json()["key"] is not None
    assert (again.status_code, again.json()) == (201, {**first.json(), "key": None})


def test_other_processes_follow_within_the_time_they_remember(
    second_process: Service, caller: Caller
) -> None:
    cache: authentication.CallerCache = second_process.app.state.caller_cache
    assert cache.cached_s <= 5.0
    cache.cached_s = 0.5
    client = make_key(caller)
    elsewhere = Caller(second_process, client.key)
    assert elsewhere.get("/v1/sessions").status_code == 200
    caller.delete(f"/v1/keys/{client.key.key_id}")
    time.sleep(0.5)
    assert_problem(elsewhere.get("/v1/sessions"), 401, "invalid_api_key")


def test_what_is_forgotten_is_forgotten_after_the_commit(service: Service) -> None:
    waiting = [(route, route.dependant) for route in service.app.routes if isinstance(route, APIRoute)]
    waiting += [
        (route, route.dependant)
        for router in service.app.routes
        for route in getattr(getattr(router, "original_router", None), "routes", [])
        if isinstance(route, APIRoute)
    ]
    forgetful = []
    for route, dependant in waiting:
        calls = [dependency.call for dependency in dependant.dependencies]
        if authentication._get_caller_invalidation in calls:
            forgetful.append(route.path)
            assert calls.index(authentication._get_caller_invalidation) < calls.index(get_db), route.path
    assert "/v1/keys/{key_id}" in forgetful


def count_keys(caller: Caller) -> int:
    """Return the number of keys of a caller's workspace."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return len(db.exec(select(KeyRow.id).filter_by(workspace_id=caller.key.workspace_id)).all())


def test_valid_keys_of_a_workspace_are_limited(
    service: Service, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEYS_PER_WORKSPACE", count_keys(caller) + 1)
    make_key(caller)
    # Test keys have places of their own.
    assert make_key(caller, mode="test").get("/v1/sessions").status_code == 200
    before = footprint(service.runtime)
    answer = caller.post("/v1/keys", KEY)
    assert_problem(answer, 422, "limit_reached")
    assert answer.json()["detail"] == (
        f"A workspace has at most {limits.KEYS_PER_WORKSPACE} valid keys of live mode; "
        "revoke one that no program uses."
    )
    assert footprint(service.runtime) == before
    # Other workspaces have places of their own.
    make_key(service.make_caller())


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_key_that_ended_gives_its_place_to_a_new_one(
    service: Service, caller: Caller, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(limits, "KEYS_PER_WORKSPACE", count_keys(caller) + 2)
    ended, valid = make_key(caller), make_key(caller)
    if end == "revoked":
        caller.delete(f"/v1/keys/{ended.key.key_id}")
    else:
        with service.runtime.database.transaction(write=True) as db:
            db.get_one(KeyRow, ended.key.key_id).expires_at = clock.now()
    make_key(caller)
    assert stored_keys(service, ended.key.key_id) == []
    assert valid.get("/v1/sessions").status_code == 200
    assert ended.get("/v1/sessions").status_code == 401
