"""Requests refused for their key, address, method, query or size. Contract §1 (order of checks, queries)."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine
from sqlmodel import select

from recorder import clock
from recorder.access.keys import is_well_formed_key
from recorder.models.workspace import KeyRow, WorkspaceRow
from tests.support.factories import Caller, Service, assert_problem, footprint

SOME_ID = "ses_01k00000000000000000000000"


def changed_key(key: str) -> str:
    """Return the key with one character of its random part replaced."""
    return key[:20] + ("a" if key[20] != "a" else "b") + key[21:]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param([], "missing_authorization", id="none"),
        pytest.param([("Authorization", "Basic {key}")], "invalid_api_key", id="Basic"),
        pytest.param([("Authorization", "{key}")], "invalid_api_key", id="no scheme"),
        pytest.param([("Authorization", "Bearer")], "invalid_api_key", id="no key"),
        pytest.param([("Authorization", "Bearer  {key}")], "invalid_api_key", id="two spaces"),
        pytest.param([("Authorization", "Bearer {key}x")], "invalid_api_key", id="one letter more"),
        pytest.param([("Authorization", "Bearer {changed}")], "invalid_api_key", id="bad checksum"),
        pytest.param([("Authorization", "Bearer {key}, Bearer {key}")], "invalid_api_key", id="list of two"),
        pytest.param([("Authorization", "Bearer {key}")] * 2, "invalid_api_key", id="two headers"),
        pytest.param([("X-Api-Key", "{key}")], "missing_authorization", id="other header"),
        pytest.param([("authorization", "bearer {key}")], None, id="small letters"),
    ],
)
def test_only_one_bearer_key_opens(caller: Caller, headers: list[tuple[str, str]], code: str | None) -> None:
    key = caller.key.key
    sent = [(name, value.format(key=key, changed=changed_key(key))) for name, value in headers]
    answer = caller.service.client.get("/v1/sessions", headers=sent)
    if code is None:
        assert answer.status_code == 200
    else:
        assert_problem(answer, 401, code)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_in_the_query_opens_nothing(caller: Caller) -> None:
    answer = caller.service.client.get(f"/v1/sessions?api_key={caller.key.key}")
    assert_problem(answer, 401, "missing_authorization")


def test_a_mistyped_key_costs_no_look_up(caller: Caller) -> None:
    statements: list[str] = []

    def note(_: Any, __: Any, statement: str, *more: Any) -> None:
        statements.append(statement)

    assert not is_well_formed_key(changed_key(caller.key.key))
    sqlalchemy_event.listen(Engine, "before_cursor_execute", note)
    try:
        headers = {"Authorization": f"Bearer {changed_key(caller.key.key)}"}
        assert caller.service.client.get("/v1/sessions", headers=headers).status_code == 401
    finally:
        sqlalchemy_event.remove(Engine, "before_cursor_execute", note)
    assert statements == []


@pytest.mark.parametrize("member", ["expires_at", "revoked_at"])
def test_an_expired_or_revoked_key_opens_nothing(service: Service, member: str) -> None:
    caller = service.make_caller()
    with service.runtime.database.transaction(write=True) as db:
        row = db.exec(select(KeyRow).where(KeyRow.id == caller.key.key_id)).one()
        setattr(row, member, clock.now() - timedelta(seconds=1))
        db.add(row)
    assert_problem(caller.get("/v1/sessions"), 401, "invalid_api_key")


@pytest.mark.parametrize("status", ["suspended", "expired"])
def test_a_disabled_workspace_opens_nothing(service: Service, status: str) -> None:
    caller = service.make_caller()
    with service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
        row.status = status
        db.add(row)
    assert_problem(caller.get("/v1/sessions"), 403, "workspace_disabled")


def test_the_key_is_looked_at_before_size_and_body(service: Service) -> None:
    before = footprint(service.runtime)
    for content in (b"{", b"x" * 2_000_000):
        answer = service.client.post("/v1/sessions", content=content)
        assert_problem(answer, 401, "missing_authorization")
    assert footprint(service.runtime) == before


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "chunked"])
def test_a_body_over_its_cap_is_refused(caller: Caller, is_announced: bool) -> None:
    before = footprint(caller.service.runtime)
    chunks = [b'{"workflow":"' + b"a" * 600_000, b"a" * 600_000 + b'"}']
    content = b"".join(chunks) if is_announced else iter(chunks)
    assert_problem(caller.post_raw("/v1/sessions", content), 413, "payload_too_large")
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize(
    ("query", "code", "item"),
    [
        pytest.param("nobody_knows=1", "validation_failed", "unknown_parameter", id="unknown"),
        pytest.param("actor_kind=human", "validation_failed", "unknown_parameter", id="actor_kind"),
        pytest.param("since=1h&since=2h", "validation_failed", "repeated_parameter", id="since twice"),
        pytest.param("limit=1&limit=1", "validation_failed", "repeated_parameter", id="limit twice"),
        pytest.param("limit=0", "validation_failed", "invalid_value", id="limit 0"),
        pytest.param("limit=501", "validation_failed", "invalid_value", id="limit 501"),
        pytest.param("limit=1e3", "validation_failed", "invalid_value", id="limit 1e3"),
        pytest.param(
            "limit=" + "9" * 5_000, "validation_failed", "invalid_value", id="limit of 5,000 digits"
        ),
        pytest.param("limit=", "validation_failed", "invalid_value", id="limit empty"),
        pytest.param("status=open", "validation_failed", "invalid_value", id="status"),
        pytest.param("outcome=failed", "validation_failed", "invalid_value", id="outcome"),
        pytest.param("actor.kind=robot", "validation_failed", "invalid_value", id="actor.kind"),
        pytest.param("workflow=AB", "validation_failed", "invalid_value", id="workflow"),
        pytest.param("workflow=ab%0A", "validation_failed", "invalid_value", id="workflow with a line end"),
        pytest.param("tag=", "validation_failed", "invalid_value", id="tag empty"),
        pytest.param("tag=%00", "validation_failed", "invalid_string", id="tag with NUL"),
        pytest.param("since=abc", "invalid_time", "invalid_time", id="since no time"),
        pytest.param("since=null", "invalid_time", "invalid_time", id="since null"),
        pytest.param("since=-1d", "invalid_time", "invalid_time", id="since negative"),
        pytest.param("since=99999999999d", "invalid_time", "invalid_time", id="since out of range"),
        pytest.param("since=999999999w", "invalid_time", "invalid_time", id="since before all time"),
        pytest.param("since=2026-02-30T00:00:00Z", "invalid_time", "invalid_time", id="no such day"),
        pytest.param("until=2026-01-01", "invalid_time", "invalid_time", id="until a day"),
        pytest.param("until=2026-01-01T00:00:00", "invalid_time", "invalid_time", id="until without zone"),
        pytest.param("since=1h&until=2h", "invalid_range", "invalid_range", id="since above until"),
    ],
)
def test_a_bad_query_is_refused(caller: Caller, query: str, code: str, item: str) -> None:
    problem = assert_problem(caller.get(f"/v1/sessions?{query}"), 422, code)
    assert {(error["in"], error["code"]) for error in problem["errors"]} == {("query", item)}


@pytest.mark.parametrize("include", ["", "nobody", "events,nobody", "events,", "events tags"])
def test_an_unknown_include_is_refused(caller: Caller, include: str) -> None:
    session_id = caller.make_session()
    assert_problem(caller.get(f"/v1/sessions/{session_id}?include={include}"), 422, "validation_failed")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("GET", "/v1/sessions:batch_stop", 405, "method_not_allowed"),
        ("PATCH", f"/v1/sessions/{SOME_ID}", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/sessions/", 404, "not_found"),
        ("POST", f"/v1/sessions/{SOME_ID}/tags/", 404, "not_found"),
        ("GET", "/v2/sessions", 404, "not_found"),
    ],
)
def test_an_unknown_address_or_method_is_a_problem_too(
    caller: Caller, method: str, path: str, status: int, code: str
) -> None:
    assert_problem(caller.request(method, path), status, code)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/sessions", "GET, HEAD, POST"),
        (f"/v1/sessions/{SOME_ID}", "DELETE, GET, HEAD"),
        (f"/v1/sessions/{SOME_ID}/frames", "GET, HEAD, POST"),
        (f"/v1/sessions/{SOME_ID}/stop", "POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(caller: Caller, path: str, allowed: str) -> None:
    assert caller.request("PUT", path).headers["allow"] == allowed


def test_request_ids_are_ours_and_sane_ones_are_echoed(caller: Caller) -> None:
    answer = caller.get("/v1/sessions", **{"X-Request-Id": "trace-1"})
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-client-request-id"] == "trace-1"
    for insane in ("a b", "x" * 129, "\x1b[31m"):
        assert "x-client-request-id" not in caller.get("/v1/sessions", **{"X-Request-Id": insane}).headers


def test_a_slash_at_the_end_of_an_address_is_named(caller: Caller) -> None:
    details = {
        path: assert_problem(caller.get(path), 404, "not_found")["detail"]
        for path in ("/v1/sessions/", "/v1/nothing/", "/v1/nothing")
    }
    assert details["/v1/sessions/"] == "No such address; remove the slash at its end."
    assert details["/v1/nothing/"] == details["/v1/nothing"] == "No such address; see /docs."
