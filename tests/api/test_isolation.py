"""Objects of another workspace or mode are answered exactly as missing ones.

Contract §1 (404), §2. Requests are made from OpenAPI: every operation, every part of it that names something,
each with an id of another tenant and with one that does not exist. The two answers are compared byte
for byte, but for what differs from one request to the next.
"""

import re
from typing import Any

import pytest
from starlette.testclient import WebSocketDenialResponse

from api.gate.endpoints import ENDPOINTS
from recorder.ids import new_id
from tests.support.factories import Caller, Service, event, footprint, frame
from tests.support.openapi_requests import Field, Request, fill, find_fields, operations
from tests.support.workspace_contents import TenantContents, make_tenant_contents

SCOPES = ("read", "write", "admin", "write replay:live")
STRANGERS = ("another workspace", "another workspace, test mode", "test mode of the same workspace")
_MISSING = {
    "session_id": "ses",
    "frame_id": "frm",
    "event_id": "evt",
    "export_id": "exp",
    "webhook_id": "whk",
    "delivery_id": "dlv",
    "key_id": "key",
    "erasure_id": "era",
    "replay_id": "rpl",
    "recovery_id": "rcv",
    "path_id": "pth",
}
_VARYING = {
    "x-request-id",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-scope",
    "date",
}
_GENERATED = re.compile(
    r"\b[a-z]{3}_[0-9a-z]{26}\b|\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z|(?<=\"(?:event|frame)_count\":)\d+"
    r"|(?<=[?&]sig=)[0-9a-f]+|nsk_\w+|whsec_[\w+/=]+"
)


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    """Return the service's own description of itself."""
    described: dict[str, Any] = service.app.openapi()
    return described


@pytest.fixture(scope="module")
def owner(service: Service) -> TenantContents:
    """Return the tenant whose objects the others request."""
    return make_tenant_contents(service, "owner")


@pytest.fixture(scope="module")
def places(service: Service, owner: TenantContents) -> dict[str, TenantContents]:
    """Return the other tenants, each with objects of its own."""
    elsewhere = make_tenant_contents(service, "other")
    elsewhere_id, here_id = elsewhere.admin.key.workspace_id, owner.admin.key.workspace_id
    return {
        STRANGERS[0]: elsewhere,
        STRANGERS[1]: make_tenant_contents(service, "tests", "test", elsewhere_id),
        STRANGERS[2]: make_tenant_contents(service, "trial", "test", here_id),
    }


@pytest.fixture(scope="module")
def lists(document: dict[str, Any], places: dict[str, TenantContents]) -> dict[tuple[str, str], str]:
    """Return every list as each tenant sees it, before any foreign id is requested."""
    paths = [
        path
        for method, path, operation in operations(document)
        if method == "GET" and any(item["name"] == "cursor" for item in operation.get("parameters", []))
    ]
    requests = {
        (who, path): (tenant.admin, fill("GET", path, tenant.ids))
        for path in paths
        for who, tenant in places.items()
    }
    return {
        case: admin.request("GET", request.address, params={**request.query, "limit": "500"}).text
        for case, (admin, request) in requests.items()
    }


@pytest.fixture(scope="module")
def strangers(
    places: dict[str, TenantContents], lists: dict[tuple[str, str], str]
) -> dict[str, TenantContents]:
    """Return the other tenants, without rate limits."""
    return places


def send(caller: Caller, request: Request) -> Any:
    """Return the answer to a request."""
    options = {} if request.body is None else {"json": request.body}
    return caller.request(request.method, request.address, params=request.query, **options)


def mask_values(answer: Any, value: str) -> tuple[int, list[tuple[str, str]], str]:
    """Return an answer without the members that differ between two requests, and the requested value."""
    headers = sorted((name, text) for name, text in answer.headers.items() if name not in _VARYING)
    text = _GENERATED.sub("*", answer.text.replace(value, "*"))
    kept = [pair for pair in headers if pair[0] != "content-length" or answer.status_code >= 400]
    return answer.status_code, kept, text


def missing_like(field: Field, location: TenantContents) -> str:
    """Return an id of the same form that does not exist."""
    if field.kind == "workflow":
        return "nobodys_work"
    if field.kind == "cursor":
        return "bm9ib2R5cyBjdXJzb3I"
    return new_id(_MISSING[field.kind])


def foreign_like(field: Field, owner: TenantContents) -> str:
    """Return the owner's id, or the cursor of the owner's own list."""
    if field.kind != "cursor":
        return owner.ids[field.kind]
    request = fill(field.method, field.path, owner.ids)
    answer = owner.admin.request("GET", request.address, params={**request.query, "limit": "1"})
    cursor: str | None = answer.json()["next_cursor"]
    assert cursor is not None, f"{field} has no second page"
    return cursor


def fresh_ids(field: Field, location: TenantContents) -> dict[str, str]:
    """Return a session of its own for each body, so that no request meets an earlier one's changes."""
    if field.where != "body" or "{session_id}" not in field.path:
        return {}
    return {"session_id": location.admin.make_session()}


def test_every_field_that_names_something_is_found(document: dict[str, Any]) -> None:
    fields = find_fields(document)
    assert len(fields) >= 50
    assert {field.kind for field in fields} >= {*_MISSING, "workflow", "cursor"}
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} - {
        (method, path.replace("{path}", "{path:path}")) for method, path, _ in operations(document)
    } == {("GET", "/v1/sessions/{session_id}/events/ws")}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("who", STRANGERS)
def test_a_foreign_id_answers_like_a_missing_one(
    document: dict[str, Any],
    owner: TenantContents,
    strangers: dict[str, TenantContents],
    who: str,
    scope: str,
) -> None:
    outsider = strangers[who]
    service, key = owner.admin.service, outsider.admin.key
    mode: Any = "live" if who == STRANGERS[0] else "test"
    stranger = service.make_caller(mode=mode, workspace_id=key.workspace_id, scope=scope)
    leaks = []
    for field in find_fields(document):
        answers = []
        for value in (foreign_like(field, owner), missing_like(field, owner)):
            ids = outsider.ids | fresh_ids(field, outsider)
            request = fill(field.method, field.path, ids, field, value)
            answers.append(mask_values(send(stranger, request), value))
        if answers[0] != answers[1]:
            leaks.append((str(field), *answers))
    assert leaks == []


def test_an_id_in_the_path_of_somebody_else_is_never_answered(
    document: dict[str, Any], owner: TenantContents, strangers: dict[str, TenantContents]
) -> None:
    statuses = {
        (str(field), who): send(
            stranger.admin, fill(field.method, field.path, stranger.ids, field, owner.ids[field.kind])
        ).status_code
        for field in find_fields(document)
        for who, stranger in strangers.items()
        if field.where == "path" and field.kind != "workflow"
    }
    assert {case: status for case, status in statuses.items() if status != 404} == {}


def test_what_strangers_send_changes_nothing_of_the_owners(
    document: dict[str, Any], owner: TenantContents, strangers: dict[str, TenantContents]
) -> None:
    service = owner.admin.service
    before = footprint(service.runtime)["sessions"]
    for field in find_fields(document):
        if field.where == "path" and field.kind != "workflow":
            for stranger in strangers.values():
                send(
                    stranger.admin, fill(field.method, field.path, stranger.ids, field, owner.ids[field.kind])
                )
    assert footprint(service.runtime)["sessions"] == before


@pytest.mark.parametrize("who", STRANGERS)
def test_a_foreign_socket_is_refused_like_a_missing_one(
    owner: TenantContents, strangers: dict[str, TenantContents], who: str
) -> None:
    answers = []
    for session_id in (owner.ids["session_id"], new_id("ses")):
        headers = {"Authorization": f"Bearer {strangers[who].admin.key.key}"}
        address = f"/v1/sessions/{session_id}/events/ws"
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            owner.admin.service.client.websocket_connect(address, headers=headers),
        ):
            pass
        answers.append(mask_values(refused.value, session_id))
    assert answers[0] == answers[1] and answers[0][0] == 404


def test_ones_own_ids_are_answered(document: dict[str, Any], service: Service) -> None:
    # Send each request as its owner: only then do equal answers to strangers prove the isolation.
    tenant = make_tenant_contents(service, "mine")
    order = {"GET": 0, "POST": 1, "PATCH": 2, "DELETE": 3}
    ordered = sorted(operations(document), key=lambda item: (order[item[0]], -item[1].count("/"), item[1]))
    statuses = {}
    for method, path, _ in ordered:
        request = fill(method, path, tenant.ids)
        statuses[f"{method} {path}"] = (
            200 if path.endswith("/stream") else send(tenant.admin, request).status_code
        )
    assert {name: status for name, status in statuses.items() if status >= 400} == {}


def test_an_idempotency_key_of_somebody_else_says_nothing(
    owner: TenantContents, strangers: dict[str, TenantContents]
) -> None:
    body = {"workflow": "shared"}
    first = owner.admin.post("/v1/sessions", body, key="same-key")
    for stranger in strangers.values():
        answer = stranger.admin.post("/v1/sessions", body, key="same-key")
        assert answer.status_code == 201 and "Idempotent-Replayed" not in answer.headers
        assert answer.json()["id"] != first.json()["id"]


def test_lists_show_ones_own_alone(owner: TenantContents, lists: dict[tuple[str, str], str]) -> None:
    assert len({path for _, path in lists}) >= 9
    secrets = [value for kind, value in owner.ids.items() if kind != "file"]
    shown = {case: [value for value in secrets if value in text] for case, text in lists.items()}
    assert {case: values for case, values in shown.items() if values} == {}


@pytest.fixture
def owned(caller: Caller) -> str:
    """Return a session with an event, a frame and a tag."""
    session_id = caller.make_session(workflow="owned")
    caller.add_events(session_id, event(1, id="evt_mine"))
    caller.add_frames(session_id, frame(1, id="frm_mine"))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "mine"})
    return session_id


def test_a_deleted_session_answers_like_a_missing_one(
    document: dict[str, Any], caller: Caller, owned: str
) -> None:
    assert caller.delete(f"/v1/sessions/{owned}").status_code == 204
    before = footprint(caller.service.runtime)["sessions"]
    ids = {"session_id": owned, "frame_id": "frm_mine", "workflow": "owned"}
    for method, path, _ in operations(document):
        if "{session_id}" in path:
            missing = new_id("ses")
            gone = mask_values(send(caller, fill(method, path, ids)), owned)
            never = mask_values(send(caller, fill(method, path, {**ids, "session_id": missing})), missing)
            assert gone == never and gone[0] == 404, (method, path)
    assert footprint(caller.service.runtime)["sessions"] == before


def test_a_batch_stop_leaves_foreign_sessions_alone(caller: Caller, owned: str) -> None:
    stranger = caller.service.make_caller()
    before = footprint(caller.service.runtime)["sessions"]
    missing = new_id("ses")
    items = stranger.post("/v1/sessions:batch_stop", {"ids": [owned, missing, "nonsense"]}).json()["data"]
    assert [item.pop("id") for item in items] == [owned, missing, "nonsense"]
    assert items[0] == items[1] == items[2]
    assert (items[0]["result"], items[0]["error"]["code"]) == ("error", "not_found")
    assert footprint(caller.service.runtime)["sessions"] == before


def test_two_sessions_may_use_the_same_ids(caller: Caller, owned: str) -> None:
    other = caller.make_session()
    assert caller.add_events(other, event(2, id="evt_mine"), key="batch-1").json()["accepted"] == 1
    assert caller.add_frames(other, frame(2, 7, id="frm_mine"), key="batch-1").json()["accepted"] == 1
    assert caller.get(f"/v1/sessions/{owned}/frames/frm_mine").json()["t_ms"] == 1
    assert caller.get(f"/v1/sessions/{other}/frames/frm_mine").json()["t_ms"] == 2


def test_modes_of_a_workspace_count_apart(caller: Caller, owned: str) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    tester.make_session(workflow="owned")
    assert len(tester.get("/v1/sessions?workflow=owned").json()["data"]) == 1
    assert len(caller.get("/v1/sessions?workflow=owned").json()["data"]) == 1
