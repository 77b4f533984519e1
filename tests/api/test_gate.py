"""Checks of every request, in order: key, workspace, scope, rate, version, size. Contract §1."""

import random
import re
from typing import Any

import pytest
from starlette.testclient import WebSocketDenialResponse

from api.gate.endpoints import ENDPOINTS, Endpoint
from recorder import __version__, limits
from recorder.access.keys import _compute_key_checksum
from recorder.access.rate_tiers import STRANGERS
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import JSON, Caller, Service, assert_problem
from tests.support.hostile_cases import counted_statements, nothing_stored
from tests.support.limiter_clock import stopped_clock

EXPORTS_PER_MINUTE = 5


def path_of(endpoint: Endpoint) -> str:
    """Return an address of an endpoint; its ids name nothing."""
    return re.sub(r"\{\w+(:path)?\}", "unknown", endpoint.path)


def set_status(service: Service, workspace_id: str, status: str) -> None:
    """Suspend a workspace, or make it active again."""
    with service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, workspace_id)
        row.status = status
        db.add(row)
    service.client.portal.call(service.app.state.caller_cache.forget_workspace, workspace_id)  # type: ignore[union-attr]


def test_checks_come_in_their_order(service: Service) -> None:
    reader = service.make_caller(scope="read", tier="default")
    hasty, writer = (
        service.make_caller(scope="write", workspace_id=reader.key.workspace_id) for _ in range(2)
    )
    headers = {"Content-Type": "text/plain", "Service-Version": "1999.1.0"}
    content = b"{" * (limits.BODY_BYTES + 1)

    def refused(caller: Caller, status: int, code: str) -> None:
        answer = caller.request("POST", "/v1/exports", content=content, headers=headers)
        assert_problem(answer, status, code)

    def refused_without_key() -> None:
        answer = service.client.post("/v1/exports", content=content, headers=headers)
        assert_problem(answer, 401, "missing_authorization")

    with nothing_stored(service.runtime):
        refused_without_key()
        for _ in range(EXPORTS_PER_MINUTE):
            refused(hasty, 400, "unsupported_version")
        set_status(service, reader.key.workspace_id, "suspended")
        refused(reader, 403, "workspace_disabled")
        set_status(service, reader.key.workspace_id, "active")
        refused(reader, 403, "insufficient_scope")
        refused(hasty, 429, "rate_limited")
        refused(writer, 400, "unsupported_version")
        headers["Service-Version"] = __version__
        refused(writer, 413, "payload_too_large")
        content = b"{"
        refused(writer, 415, "unsupported_media_type")
        headers["Content-Type"] = JSON
        refused(writer, 400, "invalid_json")
        content = b"{}"
        refused(writer, 422, "validation_failed")


@pytest.mark.parametrize("status", ["suspended", "expired"])
def test_a_workspace_that_is_not_active_opens_no_address(service: Service, status: str) -> None:
    caller = service.make_caller()
    set_status(service, caller.key.workspace_id, status)
    for endpoint in (*ENDPOINTS, Endpoint("GET", "/v1/nothing", "read", "other")):
        answer = caller.request(endpoint.method, path_of(endpoint))
        assert_problem(answer, 403, "workspace_disabled")
    set_status(service, caller.key.workspace_id, "active")
    assert caller.get("/v1/sessions").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/sessions/unknown/nothing", 404, "not_found"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("DELETE", "/v1/limits", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/sessions", 405, "method_not_allowed"),
    ],
)
def test_an_address_that_is_not_there_asks_for_the_key_first(
    service: Service, caller: Caller, method: str, path: str, status: int, code: str
) -> None:
    assert_problem(service.client.request(method, path), 401, "missing_authorization")
    answer = caller.request(method, path)
    assert_problem(answer, status, code)
    assert int(answer.headers["x-ratelimit-remaining"]) < int(answer.headers["x-ratelimit-limit"])


def test_no_cap_lies_below_what_the_gate_lets_pass_unread() -> None:
    assert min(endpoint.body_bytes for endpoint in ENDPOINTS) >= limits.BODY_BYTES >= 10**6


def test_nothing_outside_v1_asks_for_a_key(service: Service) -> None:
    statuses = [service.client.get(path).status_code for path in ("/healthz", "/openapi.json", "/v1", "/")]
    assert statuses == [200, 200, 404, 200]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/sessions", 200),
        ("GET", "/v1/sessions?limit=0", 422),
        ("GET", "/v1/sessions/unknown", 404),
        ("PUT", "/v1/sessions", 405),
        ("GET", "/healthz", 200),
    ],
)
def test_every_answer_tells_request_and_release(caller: Caller, method: str, path: str, status: int) -> None:
    answer = caller.request(method, path)
    assert (answer.status_code, answer.headers["service-version"]) == (status, __version__)
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/json;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("APPLICATION/X-NDJSON; charset=utf-8", "application/x-ndjson"),
        ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream"),
        ("text/html", None),
        ("text/*", None),
        ("application/json;q=0", None),
        ("nonsense", None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/sessions/{id}/events", "/v1/audit"])
def test_accept_chooses_where_there_is_a_choice(
    caller: Caller, path: str, accept: str, given: str | None
) -> None:
    if given is not None and "arrow" in given and "audit" in path:
        given = None
    answer = caller.get(path.format(id=caller.make_session()), Accept=accept)
    if given is None:
        assert_problem(answer, 406, "not_acceptable")
    else:
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, given)


def handshake(service: Service, path: str, **headers: str) -> Any:
    """Return the refusal of a handshake, as an answer."""
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        service.client.websocket_connect(path, headers=headers),
    ):
        pass
    return refused.value


def test_a_handshake_passes_the_same_gate(service: Service) -> None:
    path = "/v1/sessions/unknown/events/ws"
    reader = service.make_caller(scope="read")
    key = {"Authorization": f"Bearer {reader.key.key}"}
    assert_problem(handshake(service, path), 401, "missing_authorization")
    assert_problem(handshake(service, path, Authorization="Basic x"), 401, "invalid_api_key")
    versioned = handshake(service, path, **key, **{"Service-Version": "0.1.0"})
    assert_problem(versioned, 400, "unsupported_version")
    assert "x-ratelimit-remaining" in versioned.headers
    assert_problem(handshake(service, "/v1/sessions", **key), 404, "not_found")
    set_status(service, reader.key.workspace_id, "suspended")
    assert_problem(handshake(service, path, **key), 403, "workspace_disabled")


def test_a_server_that_cannot_answer_a_handshake_closes_with_the_status(service: Service) -> None:
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "websocket",
        "path": "/v1/sessions/unknown/events/ws",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("192.0.2.7", 1),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    service.client.portal.call(service.app, scope, receive, send)  # type: ignore[union-attr]
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]
    assert sent[-1]["code"] == 4401


def unknown_key() -> str:
    """Return a well-formed key that does not exist."""
    body = "nsk_local_" + "".join(random.choices("abc", k=43))
    return body + _compute_key_checksum(body)


def test_guesses_beyond_the_limit_of_their_address_are_not_looked_up(
    service: Service, caller: Caller
) -> None:
    newcomer = service.make_caller()
    assert caller.get("/v1/sessions").status_code == 200
    with stopped_clock(service), counted_statements() as statements:
        statuses = [
            service.client.get(
                "/v1/sessions", headers={"Authorization": f"Bearer {unknown_key()}"}
            ).status_code
            for _ in range(STRANGERS.burst + 20)
        ]
        looked_up = sum("FROM keys" in statement for statement in statements)
        # Who was known before is not held up by them; who is new comes again later.
        assert caller.get("/v1/sessions").status_code == 200
        answer = newcomer.get("/v1/sessions")
    assert statuses.count(429) >= 20 and set(statuses) == {401, 429}
    assert looked_up == STRANGERS.burst
    assert_problem(answer, 429, "rate_limited")
    assert answer.headers["x-scope"] == "per_address"
