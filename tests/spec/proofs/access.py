"""Spec §5 and §7: keys, what they may do, and the errors with their codes."""

import pytest
from starlette.testclient import WebSocketDenialResponse

from recorder.models.workspace import WorkspaceRow
from tests.support.completed_work import LONG_AGO
from tests.support.factories import Caller, assert_problem, event
from tests.support.specification_checks import Rows

ROWS = Rows()


@ROWS.row("5 bearer: streams")
def check_bearer_streams(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events"
    client = caller.service.client
    assert_problem(client.get(f"{address}/stream"), 401, "missing_authorization")
    with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(f"{address}/ws"):
        pass
    assert_problem(refused.value, 401, "missing_authorization")


@ROWS.row("5 prefix nsk_test_")
def check_prefix_nsk_test(caller: Caller) -> None:
    made = caller.post("/v1/keys", {"label": "t", "scope": "read", "mode": "test"}).json()
    assert (made["mode"], made["key"][:9]) == ("test", "nsk_test_")
    session_id = caller.make_session()
    tester = {"Authorization": f"Bearer {made['key']}"}
    answer = caller.service.client.get(f"/v1/sessions/{session_id}", headers=tester)
    assert_problem(answer, 404, "not_found")


@ROWS.row("5 prefix nsk_local_")
def check_prefix_nsk_local(caller: Caller) -> None:
    made = caller.post("/v1/keys", {"label": "l", "scope": "read"}).json()
    assert (made["mode"], made["key"][:10]) == ("live", "nsk_local_")


@ROWS.row("5 admin: hard delete")
def check_admin_hard_delete(caller: Caller) -> None:
    writer = caller.service.make_caller(scope="write", workspace_id=caller.key.workspace_id)
    answer = writer.request("DELETE", f"/v1/sessions/{caller.make_session()}?hard=true")
    assert_problem(answer, 403, "insufficient_scope")


@ROWS.row("5 admin: keys")
def check_admin_keys(caller: Caller) -> None:
    body = {"label": "robot", "scope": "read"}
    for scope, status in (("read", 403), ("write", 403), ("admin", 201)):
        key = caller.service.make_caller(scope=scope, workspace_id=caller.key.workspace_id)
        assert key.post("/v1/keys", body).status_code == status


@ROWS.row("7 request_id")
def check_request_id(caller: Caller) -> None:
    answers = [
        (caller.post_raw("/v1/sessions", b"{"), 400, "invalid_json"),
        (caller.service.client.get("/v1/sessions"), 401, "missing_authorization"),
        (caller.get("/v1/sessions/ses_unknown"), 404, "not_found"),
        (caller.request("PUT", "/v1/sessions"), 405, "method_not_allowed"),
        (caller.post_raw("/v1/sessions", b"{}", content_type="text/plain"), 415, "unsupported_media_type"),
        (caller.post("/v1/sessions", {}), 422, "validation_failed"),
    ]
    ids = [assert_problem(*item)["request_id"] for item in answers]
    assert len(set(ids)) == len(ids) and all(item.startswith("req_") for item in ids)


@ROWS.row("7 missing_authorization")
def check_missing_authorization(caller: Caller) -> None:
    answer = caller.service.client.get("/v1/sessions")
    assert_problem(answer, 401, "missing_authorization")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@ROWS.row("7 invalid_api_key")
def check_invalid_api_key(caller: Caller) -> None:
    made = caller.post("/v1/keys", {"label": "robot", "scope": "read"}).json()
    caller.delete(f"/v1/keys/{made['id']}")
    for value in (f"Bearer {made['key']}", f"Bearer {caller.key.key}x", "Bearer ", f"Basic {caller.key.key}"):
        answer = caller.service.client.get("/v1/sessions", headers={"Authorization": value})
        assert_problem(answer, 401, "invalid_api_key")


@ROWS.row("7 insufficient_scope")
def check_insufficient_scope(caller: Caller) -> None:
    reader = caller.service.make_caller(scope="read")
    assert_problem(reader.post("/v1/sessions", {"workflow": "checkout"}), 403, "insufficient_scope")


@ROWS.row("7 workspace_disabled")
def check_workspace_disabled(caller: Caller) -> None:
    for status in ("suspended", "expired"):
        disabled = caller.service.make_caller()
        with caller.service.runtime.database.transaction(write=True) as db:
            row = db.get_one(WorkspaceRow, disabled.key.workspace_id)
            row.status = status
            db.add(row)
        assert_problem(disabled.get("/v1/sessions"), 403, "workspace_disabled")


@ROWS.row("7 quota_exceeded")
def check_quota_exceeded(caller: Caller) -> None:
    trial = caller.service.make_caller(tier="trial")
    session_id = trial.make_session(started_at=LONG_AGO)
    trial.add_events(session_id, event(1_000 * 60_000))
    assert_problem(trial.add_events(session_id, event(1)), 429, "quota_exceeded")
    assert trial.post(f"/v1/sessions/{session_id}/stop").status_code == 200


@ROWS.row("7 rate limit")
def check_rate_limit(caller: Caller) -> None:
    limited = caller.service.make_caller(tier="default")
    body = {"workflow": "none", "format": "parquet", "destination": {"kind": "signed_url"}}
    answer = [limited.post("/v1/exports", body) for _ in range(6)][-1]
    assert_problem(answer, 429, "rate_limited")
    assert int(answer.headers["Retry-After"]) >= 1 and int(answer.headers["X-RateLimit-Reset"]) > 0
