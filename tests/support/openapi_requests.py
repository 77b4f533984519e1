"""Ids in requests, read from OpenAPI, and requests with these ids filled in.

Every string of a path, a query or a body is either an id of a kind or known to be none; one in neither list
fails the test, and so does a route without a body here.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.factories import event, frame

#: Parameters and members that name something, by the kind of the thing.
IDS = {
    "session_id": "session_id",
    "ids": "session_id",
    "exclude_session_ids": "session_id",
    "frame_id": "frame_id",
    "event_id": "event_id",
    "parent_id": "event_id",
    "export_id": "export_id",
    "against": "export_id",
    "webhook_id": "webhook_id",
    "delivery_id": "delivery_id",
    "key_id": "key_id",
    "erasure_id": "erasure_id",
    "replay_id": "replay_id",
    "recovery_id": "recovery_id",
    "workflow": "workflow",
    "actor": "key_id",
    "resource": "session_id",
    "cursor": "cursor",
}
#: Members that hold something else; whole pointers where the name alone would be an id.
# fmt: off
PLAIN = {
    "description", "url", "events/*", "tags/*", "name", "label", "scope", "subject", "mode", "expires_at",
    "started_at", "idempotency_key", "status", "outcome", "actor/id", "actor/kind", "actor.kind", "kind",
    "format", "tag", "since", "until", "limit", "include", "hard", "from", "action", "min_frequency",
    "exp", "kid", "sig", "path", "title", "type", "data", "part", "content_type", "state_key", "key",
    "value", "value/*", "files/*", "secret_ref", "storage_state_ref", "role", "near", "text", "selectors/*",
    "selectors/*/*", "span_id", "trace_id", "window", "page", "builtins/*", "pattern", "replacement",
    "error_events/*",
    "error_tags/*", "success_events/*", "success_tags/*", "allow_hosts/*", "account", "bucket",
    "container", "prefix", "rank", "region", "role_arn", "service_account", "threshold", "failure_tag",
    "min_change", "split/by", "against_since", "against_until", "against_actor.kind", "from_t_ms",
    "to_t_ms", "sandbox", "cause", "on_divergence", "heal", "speed", "selector", "anchor/tag", "until/tag",
}
# fmt: on
#: Members whose name means something else elsewhere.
MEMBERS = {
    "against/session_id": "session_id",
    "against/path_id": "path_id",
    "filter/path": "path_id",
    "filter/subpath": "path_id",
}
#: Ids of clients' own making: another session's is no id of this one.
OWN = {"events/*/id": "event_id", "frames/*/id": "frame_id"}
#: Parameters whose name means something else elsewhere.
QUERIES = {("/v1/sessions", "path"): "path_id", ("/v1/sessions", "subpath"): "path_id"}
_HOSTED = {"kind": "signed_url"}


@dataclass(frozen=True)
class Field:
    """One id-bearing part of an operation."""

    method: str
    path: str
    where: str
    #: Name of the parameter, or pointer of the member with `*` for an index.
    pointer: str
    kind: str

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.where} {self.pointer}"


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of every operation of the interface."""
    for path, methods in document["paths"].items():
        if path.startswith("/v1/"):
            for method, operation in methods.items():
                yield method.upper(), path, operation


def find_fields(document: dict[str, Any]) -> list[Field]:
    """Return every id-bearing field of every operation.

    Raises:
        AssertionError: if a field is neither among the ids nor among the others.
    """
    samples = []
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", []):
            if parameter["in"] in ("path", "query"):
                kind = QUERIES.get((path, parameter["name"])) or kind_of(parameter["name"])
                if kind is not None:
                    samples.append(Field(method, path, parameter["in"], parameter["name"], kind))
        for pointer in _strings(document, _body_schema(operation)):
            kind = kind_of(pointer)
            if kind is not None:
                samples.append(Field(method, path, "body", pointer, kind))
    return samples


def kind_of(pointer: str) -> str | None:
    """Return the kind of thing that a field names; None for one that names nothing."""
    if pointer in OWN:
        return OWN[pointer]
    if pointer in MEMBERS:
        return MEMBERS[pointer]
    words = [word for word in pointer.split("/") if word != "*"]
    if {"/".join(pointer.split("/")[-n:]) for n in (1, 2, 3)} & PLAIN:
        return None
    assert words[-1] in IDS, f"Say in tests/support/openapi_requests.py whether `{pointer}` names something."
    return IDS[words[-1]]


def _body_schema(operation: dict[str, Any]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    return schema


def _strings(document: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return the pointers of all members that may hold a string."""
    names: set[str] = set()

    def walk(part: dict[str, Any], pointer: tuple[str, ...], seen: tuple[str, ...]) -> None:
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name not in seen:
                walk(document["components"]["schemas"][name], pointer, (*seen, name))
            return
        for choice in ("anyOf", "oneOf", "allOf"):
            for option in part.get(choice, []):
                walk(option, pointer, seen)
        if part.get("type") == "string" or "string" in (part.get("type") or ()):
            names.add("/".join(pointer))
        for name, member in part.get("properties", {}).items():
            walk(member, (*pointer, name), seen)
        if "items" in part:
            walk(part["items"], (*pointer, "*"), seen)

    walk(schema, (), ())
    return sorted(names)


def make_body(method: str, path: str, ids: dict[str, str]) -> Any:
    """Return a body that the operation takes; None where it takes none.

    Raises:
        KeyError: if the body of a route is unknown.
    """
    if method in ("GET", "DELETE") or path in _BODILESS:
        return None
    return copy.deepcopy(
        {
            "/v1/sessions": {"workflow": ids["workflow"]},
            "/v1/sessions:batch_stop": {"ids": []},
            "/v1/sessions/{session_id}/events": {"events": [event(1)]},
            "/v1/sessions/{session_id}/frames": {"frames": [frame(1)]},
            "/v1/sessions/{session_id}/tags": {"name": "seen", "t_ms": 1},
            "/v1/memory/similar": {"session_id": ids.get("sealed_id")},
            "/v1/exports": {"workflow": [ids["workflow"]], "format": "parquet", "destination": _HOSTED},
            "/v1/workflows/{workflow}": {"tags": ["finance"]},
            "/v1/replays": {"session_id": ids.get("sealed_id"), "sandbox": "dry"},
            "/v1/replays/{replay_id}/decision": {"step": 1, "action": "act"},
            "/v1/recoveries": {
                "session_id": ids.get("sealed_id"),
                "sandbox": "dry",
                "failure_tag": "stuck",
            },
            "/v1/webhooks": {"url": "http://127.0.0.1:9/", "events": ["session.created"]},
            "/v1/webhooks/{webhook_id}": {"description": "moved"},
            "/v1/keys": {"label": "robot", "scope": "read"},
            "/v1/privacy/erasure": {"subject": "nowhere", "scope": "all"},
            "/v1/workspaces/current": {"retention": {"frames_days": 30}},
        }[path]
    )


_BODILESS = {
    "/v1/sessions/{session_id}/start",
    "/v1/sessions/{session_id}/stop",
    "/v1/exports/{export_id}/cancel",
    "/v1/replays/{replay_id}/cancel",
    "/v1/recoveries/{recovery_id}/cancel",
    "/v1/webhooks/{webhook_id}/secret",
    "/v1/webhooks/{webhook_id}/test",
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
}
#: Queries without which an operation answers nothing.
_NEEDED = {
    **{f"/v1/memory/{what}": {"workflow": "workflow"} for what in ("paths", "recovery_points", "graph")},
    "/v1/memory/outliers": {"workflow": "workflow", "threshold": "all"},
    "/v1/memory/diff": {"workflow": "workflow", "against_until": "moment"},
    "/v1/exports/{export_id}/diff": {"against": "empty_id"},
}
#: Addresses that take what is in another state than the rest.
_OTHERS = {
    "/v1/exports/{export_id}/cancel": {"export_id": "queued_id"},
    "/v1/replays/{replay_id}/decision": {"replay_id": "awaiting_id"},
}
_GIVEN = {"moment": "30d", "all": "1"}


@dataclass(frozen=True)
class Request:
    """An operation with all its parts filled in."""

    method: str
    address: str
    query: dict[str, str]
    body: Any


def fill(method: str, path: str, ids: dict[str, str], field: Field | None = None, value: str = "") -> Request:
    """Return a request about these ids; one field may hold another value.

    Raises:
        KeyError: if an id of the path is of no known kind.
    """
    named = ids | {name: ids[other] for name, other in _OTHERS.get(path, {}).items() if other in ids}
    if field is not None and field.where == "path":
        named[field.kind] = value
    # A file's path is no id: whose file it is says the export.
    address = re.sub(r"\{(\w+)(?::path)?\}", lambda match: named[_PATHS.get(match[1], match[1])], path)
    query = {name: {**ids, **_GIVEN}[kind] for name, kind in _NEEDED.get(path, {}).items()}
    body = make_body(method, path, ids)
    if field is not None and field.where == "query":
        query[field.pointer] = value
    if field is not None and field.where == "body":
        _put(body, field.pointer.split("/"), value)
    return Request(method, address, query, body)


_PATHS = {"path": "file"}


def _put(body: Any, pointer: list[str], value: str) -> None:
    """Set a member of a body, making what is missing on the way to it."""
    name, *rest = pointer
    if name == "*":
        if not rest:
            body[:] = [value]
            return
        _put(body[0], rest, value)
    elif not rest:
        body[name] = value
    else:
        _put(body.setdefault(name, [] if rest[0] == "*" else {}), rest, value)
