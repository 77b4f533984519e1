"""Every route that takes text: what it stores, streams or sends is masked, or is not recorded. Contract §3.

The places are generated from the OpenAPI document. An e-mail address goes into each; then all that is stored
and all that can be read is searched for it. Without masking the same search finds every one of them.
"""

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect

from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, Service, event, frame
from tests.support.masking import set_masking
from tests.support.sealing import seal_all
from tests.support.stored_content import found_in, stored_texts

JSON = "application/json"
SESSION = "/v1/sessions/{session_id}"
_FREE = object()

#: Routes that record, each with a good body.
RECORDED: dict[str, dict[str, Any]] = {
    "POST /v1/sessions": {"workflow": "coverage", "actor": {"id": "x", "kind": "human"}, "start": True},
    f"POST {SESSION}/events": {"events": [event()]},
    f"POST {SESSION}/frames": {"frames": [frame(dom=snapshot(["p"]))]},
    f"POST {SESSION}/tags": {"name": "x"},
}
#: Routes whose text is not recorded, and why it stays as it is.
NOT_RECORDED = {
    "POST /v1/sessions:batch_stop": "ids of sessions, looked up and never stored",
    "POST /v1/memory/similar": "the id of a session, looked up and never stored",
    "POST /v1/exports": "what a user asks for: a filter must find what it names",
    "POST /v1/keys": "an administrator's own label, read back to tell keys apart",
    "POST /v1/webhooks": "an administrator's address, which must be called as it is",
    "PATCH /v1/webhooks/{webhook_id}": "the same",
    "POST /v1/replays": "ids and names to look up; inputs are kept encrypted until the end, and never shown",
    "POST /v1/recoveries": "ids and a name to look up; inputs are kept encrypted until the end, never shown",
    "POST /v1/replays/{replay_id}/decision": "a selector, which must match as it is",
    "PATCH /v1/workspaces/current": "an administrator's settings; patterns must match what they name",
    "POST /v1/privacy/erasure": "whose data to erase: searched as it is, kept encrypted until the end",
    "PATCH /v1/workflows/{workflow}": "settings of a workflow; rules and patterns must match what they name",
}
#: Members that only take forms in which no text can hide: ids, types, times, base64.
SHAPED = {
    "POST /v1/sessions": {"workflow", "kind", "started_at"},
    f"POST {SESSION}/events": {"id", "type", "frame_id", "parent_id"},
    f"POST {SESSION}/frames": {"id", "content_type", "data", "part"},
    f"POST {SESSION}/tags": {"event_id", "frame_id"},
}
# Kept as digests, masking or not.
HASHED = {"idempotency_key"}


def routes_with_text(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every operation that takes a JSON body, with its schema."""
    return {
        f"{method.upper()} {path}": operation["requestBody"]["content"][JSON]["schema"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if JSON in operation.get("requestBody", {}).get("content", {})
    }


def places(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every string that a schema has room for; in a free object a key and a value."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from places(choice, document)
    if schema.get("type") == "string":
        yield ()
    if schema.get("type") == "array":
        yield from ((0, *rest) for rest in places(schema["items"], document))
    for name, member in schema.get("properties", {}).items():
        yield from ((name, *rest) for rest in places(member, document))
    if schema.get("type") == "object" and not schema.get("properties"):
        yield (_FREE,)


def with_text(body: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return a body with this text at a place."""
    if not path:
        return text
    step, *rest = path
    if step is _FREE:
        return {**(body if isinstance(body, dict) else {}), f"key {text}": f"value {text}"}
    if step == 0:
        first = body[0] if isinstance(body, list) and body else None
        return [with_text(first, tuple(rest), text)]
    members = dict(body) if isinstance(body, dict) else {}
    return {**members, step: with_text(members.get(step), tuple(rest), text)}


@dataclass
class Sent:
    """Requests and answers of one run."""

    #: Addresses at places that took them, each with its place.
    accepted: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)


def send_texts(caller: Caller, session_id: str, run: str) -> Sent:
    """Send every route an address at every place that takes text."""
    document = caller.service.app.openapi()
    schemas = routes_with_text(document)
    sent = Sent()
    for route, base in RECORDED.items():
        method, path = route.split(" ")
        for number, item in enumerate(dict.fromkeys(places(schemas[route], document))):
            address = f"{run}.{path.rpartition('/')[2]}.{number}@example.com"
            headers = {} if item[-1] in HASHED else {"Idempotency-Key": f"{run}.key.{number}@example.com"}
            body = with_text(copy.deepcopy(base), item, address)
            answer = caller.request(method, path.format(session_id=session_id), json=body, headers=headers)
            sent.answers.append(answer.text)
            expected = (415, 422) if item[-1] in SHAPED[route] else (201, 202)
            assert answer.status_code in expected, (route, item, answer.text)
            if answer.status_code < 300 and item[-1] not in HASHED:
                sent.accepted[address] = f"{route} {item}"
    return sent


def read_everything(caller: Caller, session_id: str, *, is_sealed: bool) -> Iterator[str]:
    """Return the answers of every address that shows this workspace or this session."""
    frame_id = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"][0]["id"]
    known = {"session_id": session_id, "frame_id": frame_id, "workflow": "coverage"}
    for path, methods in caller.service.app.openapi()["paths"].items():
        in_path = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        if "get" not in methods or not path.startswith("/v1/") or not in_path <= known.keys():
            continue
        if path.endswith("/stream") and not is_sealed:  # it would not end
            continue
        names = {parameter["name"] for parameter in methods["get"].get("parameters", [])}
        given = {"from": "start", "limit": "500", "include": "events,tags,frames_summary"}
        query = {name: value for name, value in given.items() if name in names}
        query |= {"workflow": "coverage"} if path.startswith("/v1/memory/") else {}
        query |= {"threshold": "1"} if "threshold" in names else {}
        query |= {"against_until": "30d", "min_change": "0"} if "against_until" in names else {}
        answer = caller.request("GET", path.format(**known), params=query)
        assert answer.status_code in (200, 404), (path, answer.text)
        yield answer.text


def follow(caller: Caller, session_id: str) -> Iterator[str]:
    """Return the messages of a WebSocket for a sealed session, from start to end."""
    headers = {"Authorization": f"Bearer {caller.key.key}"}
    path = f"/v1/sessions/{session_id}/events/ws?from=start"
    with (
        caller.service.client.websocket_connect(path, headers=headers) as stream,
        suppress(WebSocketDisconnect),
    ):
        while True:
            yield stream.receive_text()


def test_every_route_that_takes_text_is_told_apart(service: Service) -> None:
    routes = set(routes_with_text(service.app.openapi()))
    assert routes == {*RECORDED, *NOT_RECORDED}
    assert all(NOT_RECORDED.values())


@pytest.mark.parametrize("run", ["masked", "plain"])
def test_no_recorded_text_is_stored_or_told_unmasked(service: Service, run: str) -> None:
    caller = service.make_caller()
    set_masking(caller, {"builtins": ["email"] if run == "masked" else []})
    session_id = caller.make_session(workflow="coverage")
    sent = send_texts(caller, session_id, run)
    hot = list(read_everything(caller, session_id, is_sealed=False))
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(service.runtime)
    sealed = read_everything(caller, session_id, is_sealed=True)
    streamed = list(follow(caller, session_id))
    readable = found_in([*sent.answers, *hot, *sealed, *streamed], expression(run))
    stored = found_in(stored_texts(service.runtime), expression(run))
    assert len(sent.accepted) >= 29
    if run == "masked":
        assert [sent.accepted.get(address, address) for address in sorted(readable | stored)] == []
    else:  # the search sees every store: what is sent in the clear is found, but for keys, kept as digests
        assert stored == set(sent.accepted)
        assert {address for address in sent.accepted if ".frames." not in address} <= readable
        assert {address for address in sent.accepted if ".events." in address} <= found_in(
            streamed, expression(run)
        )


def expression(run: str) -> str:
    """Return the form of the addresses of a run."""
    return rf"{run}\.[a-z]+\.[0-9]+@example\.com"
