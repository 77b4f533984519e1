"""Hostile ids: cases 26, 27, 30 to 32, 36. Contract §1 (404): missing and foreign get equal answers."""

from typing import Any

import pytest

from tests.support.factories import Caller, event, frame
from tests.support.hostile_cases import BODY_ROUTES, Refused, case, judge, nothing_stored
from tests.support.http_graph_sessions import sealed_walks
from tests.support.route_addresses import fill, make_webhook, other, required

MISSING = "ses_01k00000000000000000000000"
MALFORMED_IDS = [
    "%00",
    f"{MISSING}%00",
    f"{MISSING}%0A",
    "%ff",
    "%C0%AF",
    "..%2f",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "%25%30%30",
    "%F0%9F%98%80",
    "'%20OR%20'1'='1",
    "a" * 5_000,
    MISSING.upper(),
    "ses-1",
]
RESOURCES = {
    "session",
    "frame",
    "export",
    "workflow",
    "webhook",
    "delivery",
    "key",
    "erasure",
    "replay",
    "recovery",
    "file",
    "manifest",
    "route",
}


@pytest.mark.parametrize(
    ("method", "path", "body", "resource"),
    [
        case(26, "GET", "/v1/sessions/{id}", None, "session", name="read"),
        case(26, "DELETE", "/v1/sessions/{id}", None, "session", name="delete"),
        case(26, "POST", "/v1/sessions/{id}/stop", None, "session", name="stop"),
        case(26, "POST", "/v1/sessions/{id}/tags", {"name": "seen"}, "session", name="tag"),
        case(26, "POST", "/v1/sessions/{id}/events", {"events": [event(1)]}, "session", name="events"),
        case(26, "POST", "/v1/sessions/{id}/frames", {"frames": [frame(1)]}, "session", name="frames"),
        case(26, "GET", "/v1/sessions/{id}/events/stream", None, "session", name="stream"),
        case(26, "GET", "/v1/sessions/{id}/frames/frm_mine/image", None, "session", name="image"),
        case(26, "GET", "/v1/sessions/{id}/frames/frm_mine/dom", None, "session", name="dom"),
    ],
)
@pytest.mark.parametrize("who", ["other workspace", "other mode"])
def test_a_foreign_session_is_not_there(
    caller: Caller, who: str, method: str, path: str, body: Any, resource: str
) -> None:
    owned = caller.make_session()
    caller.add_frames(owned, frame(1, id="frm_mine"))
    stranger = other(caller, who)
    with nothing_stored(caller.service.runtime):
        hidden, missing = (
            stranger.request(method, path.format(id=session_id), json=body) for session_id in (owned, MISSING)
        )
        judge(hidden, Refused(404, "not_found", extra={"resource": resource}))
    assert hidden.json() | {"request_id": ""} == missing.json() | {"request_id": ""}


@pytest.mark.parametrize(
    "who", [case(27, "other workspace", name="workspace"), case(27, "other mode", name="mode")]
)
def test_leaving_out_a_foreign_session_does_nothing(caller: Caller, who: str) -> None:
    owned, stranger = caller.make_session(), other(caller, who)
    stranger.make_session()

    def leave_out(session_id: str) -> Any:
        wanted = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
        made = stranger.post("/v1/exports", wanted | {"filter": {"exclude_session_ids": [session_id]}}).json()
        shown = stranger.get(f"/v1/exports/{made['id']}").json()
        return {name: value for name, value in shown.items() if name not in ("id", "created_at", "filter")}

    assert leave_out(owned) == leave_out(MISSING)
    assert caller.get(f"/v1/sessions/{owned}").json()["status"] == "recording"


@pytest.mark.parametrize(
    "who", [case(29, "other workspace", name="workspace"), case(29, "other mode", name="mode")]
)
def test_nothing_is_similar_to_a_foreign_session(caller: Caller, who: str) -> None:
    owned, _ = sealed_walks(caller, "abc", "abc")
    stranger = other(caller, who)
    sealed_walks(stranger, "abc")
    with nothing_stored(caller.service.runtime):
        hidden, missing = (
            stranger.post("/v1/memory/similar", {"session_id": session_id}) for session_id in (owned, MISSING)
        )
        judge(hidden, Refused(404, "not_found", extra={"resource": "session"}))
    assert hidden.json() | {"request_id": ""} == missing.json() | {"request_id": ""}


@pytest.mark.parametrize(
    "who", [case(30, "other workspace", name="workspace"), case(30, "other mode", name="mode")]
)
def test_stopping_a_foreign_session_is_that_items_not_found(caller: Caller, who: str) -> None:
    owned, stranger = caller.make_session(), other(caller, who)
    with nothing_stored(caller.service.runtime):
        answer = stranger.post("/v1/sessions:batch_stop", {"ids": [owned, MISSING]})
    stopped, missing = answer.json()["data"]
    assert (answer.status_code, stopped["result"], stopped["error"]["code"]) == (200, "error", "not_found")
    assert stopped | {"id": ""} == missing | {"id": ""}


@pytest.mark.parametrize(
    ("method", "path", "resource"),
    [
        case(31, "GET", "/v1/webhooks/{webhook}", "webhook", name="read"),
        case(31, "DELETE", "/v1/webhooks/{webhook}", "webhook", name="delete"),
        case(31, "POST", "/v1/webhooks/{webhook}/secret", "webhook", name="rotate"),
        case(31, "POST", "/v1/webhooks/{webhook}/test", "webhook", name="test"),
        case(31, "GET", "/v1/webhooks/{webhook}/deliveries", "webhook", name="deliveries"),
        case(31, "GET", "/v1/webhooks/{webhook}/deliveries/{delivery}", "webhook", name="delivery"),
        case(
            31, "POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "webhook", name="redeliver"
        ),
        case(32, "GET", "/v1/webhooks/{own}/deliveries/{delivery}", "delivery", name="delivery"),
        case(32, "POST", "/v1/webhooks/{own}/deliveries/{delivery}/redeliver", "delivery", name="redeliver"),
    ],
)
def test_a_foreign_webhook_or_delivery_is_not_there(
    caller: Caller, method: str, path: str, resource: str
) -> None:
    webhook_id, delivery_id = make_webhook(caller)
    # Case 32 asks about a webhook of one's own, and a delivery of another one of one's own.
    stranger = caller if "{own}" in path else caller.service.make_caller()
    own_webhook = make_webhook(stranger)[0]
    address = path.format(webhook=webhook_id, delivery=delivery_id, own=own_webhook)
    with nothing_stored(caller.service.runtime):
        judge(stranger.request(method, address), Refused(404, "not_found", extra={"resource": resource}))


@pytest.mark.parametrize(
    "malformed", [case(36, malformed_id, name=malformed_id[:20]) for malformed_id in MALFORMED_IDS]
)
def test_a_malformed_id_is_not_found_anywhere(caller: Caller, malformed: str) -> None:
    paths = caller.service.app.openapi()["paths"]
    bodies = {(route.method, route.path): route for route in BODY_ROUTES.values()}
    bodies["PATCH", "/v1/workflows/{workflow}"] = BODY_ROUTES["workflow"]
    tried = 0
    with nothing_stored(caller.service.runtime):
        for path, methods in paths.items():
            for method in methods if "{" in path and path.startswith("/v1/") else ():
                route = bodies.get((method.upper(), path))
                sent = {} if route is None else {"content": route.template % route.good}
                headers = {"Content-Type": "application/json"} if sent else {}
                address = fill(path, malformed)
                params = required(path)
                answer = caller.request(method.upper(), address, params=params, headers=headers, **sent)
                problem = judge(answer, Refused(404, "not_found"))
                assert problem["resource"] in RESOURCES
                tried += 1
    assert tried > 20
