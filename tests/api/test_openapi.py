"""The service describes itself: every route, body and error is in OpenAPI. Contract §9 (docs)."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from recorder import limits
from tests.support.factories import Service
from tests.support.project_texts import PAGES, table

METHODS = {"get", "post", "delete", "patch", "put"}


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of one engine: nothing here depends on it."""
    return f"sqlite:///{tmp_path_factory.mktemp('database') / 'recorder.db'}"


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    """Answer of `/openapi.json` without a key."""
    answer = service.client.get("/openapi.json")
    assert answer.status_code == 200
    described: dict[str, Any] = answer.json()
    return described


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return every described operation by path and method."""
    return {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def routes(router: Any) -> list[APIRoute]:
    """Return the application's own routes, also those of routers inside routers."""
    violations = []
    for route in router.routes:
        if isinstance(route, APIRoute):
            violations.append(route)
        elif hasattr(route, "routes") or hasattr(route, "original_router"):
            violations.extend(routes(getattr(route, "original_router", route)))
    return violations


def test_every_route_is_described(service: Service, document: dict[str, Any]) -> None:
    served = {(route.path_format, method) for route in routes(service.app) for method in route.methods}
    described = {(path, method.upper()) for path, method in operations(document)}
    hot = {f"/v1/sessions/{{session_id}}/{kind}" for kind in ("events", "frames")}
    assert {(path, "POST") for path in hot} <= served
    assert {path for path, _ in served - described} <= {"/docs", "/docs/oauth2-redirect", "/openapi.json"}


def test_every_operation_has_words_and_its_errors(document: dict[str, Any]) -> None:
    for (path, method), operation in operations(document).items():
        assert operation["summary"] and operation.get("description"), (path, method)
        if path.startswith("/v1/"):
            problems = operation["responses"]["401"]["content"]
            assert list(problems) == ["application/problem+json"], (path, method)
            assert "404" in operation["responses"] or "{" not in path, (path, method)


def test_every_answer_shows_the_headers_of_its_limits(document: dict[str, Any]) -> None:
    for address, operation in operations(document).items():
        for status, answer in operation["responses"].items():
            assert {
                *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Scope"),
                *("X-Request-Id", "Service-Version"),
            } <= set(answer["headers"]), (address, status)
        assert "Retry-After" in operation["responses"].get("429", {"headers": "Retry-After"})["headers"]


#: Headers of HTTP itself, and those that only browsers read.
PLAIN_HEADERS = {"content-length", "content-type", "cache-control", "connection"}


def test_the_headers_of_answers_are_described(service: Service, document: dict[str, Any]) -> None:
    caller = service.make_caller(scope="admin replay:live")
    other, session = {"X-Request-Id": "mine-1"}, {"workflow": "checkout"}
    missing = "/v1/sessions/ses_00000000000000000000000000"
    for path, answer in (
        ("/v1/limits", caller.get("/v1/limits", **other)),
        ("/v1/limits", service.client.get("/v1/limits")),
        ("/v1/sessions", caller.post("/v1/sessions", session, key="k-1")),
        ("/v1/sessions", caller.post("/v1/sessions", session, key="k-1")),
        ("/v1/sessions", caller.post("/v1/sessions", {})),
        ("/v1/sessions/{session_id}/start", caller.post(f"{missing}/start", key="k-1")),
        ("/v1/sessions/{session_id}/start", caller.post(f"{missing}/start", key="k-1")),
    ):
        operation = document["paths"][path][answer.request.method.lower()]
        described = {name.lower() for name in operation["responses"][str(answer.status_code)]["headers"]}
        assert set(answer.headers) - PLAIN_HEADERS <= described, (path, answer.status_code)
    assert answer.headers["Idempotent-Replayed"] == "true"
    statuses = document["paths"]["/v1/exports/{export_id}/files/{path}"]["get"]["responses"]
    assert all(
        {"Content-Range", "Accept-Ranges"} <= set(statuses[name]["headers"]) for name in ("206", "416")
    )


def refused_bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the method and path of an operation, and a body of wrong text that the service refuses."""
    url = "http://127.0.0.1:9/hook"
    yield "post", "/v1/webhooks", {"url": url, "events": ["*"]}
    for scope in ("", "all", "read write", "replay:live", "write  replay:live"):
        yield "post", "/v1/keys", {"label": "robot", "scope": scope}
    for key in ("", "a b", "é", "x" * 256):
        yield "post", "/v1/sessions", {"workflow": "checkout", "idempotency_key": key}


def test_described_texts_are_those_that_the_service_takes(service: Service, document: dict[str, Any]) -> None:
    caller = service.make_caller(scope="admin replay:live")
    bodies = dict(json_bodies(document))
    for method, path, body in refused_bodies():
        assert caller.post(path, body).status_code == 422, body
        assert not make_validator(document, bodies[f"{method} {path}"]["schema"]).is_valid(body), body
    for scope in ("read", "write replay:live", "replay:live admin"):
        body = {"label": "robot", "scope": scope}
        assert caller.post("/v1/keys", body).status_code == 201, body
        assert make_validator(document, bodies["post /v1/keys"]["schema"]).is_valid(body), body
    events = {item["type"] for item in caller.get("/v1/event_types").json()["data"]} - {"webhook.test"}
    changed = document["components"]["schemas"]["WebhookUpdate"]
    assert make_validator(document, changed).is_valid({"events": sorted(events)})
    assert not make_validator(document, changed).is_valid({"events": ["*"]})


def test_the_ids_that_clients_choose_are_described(service: Service, document: dict[str, Any]) -> None:
    caller = service.make_caller()
    address = f"/v1/sessions/{caller.make_session()}/events"
    schema = dict(json_bodies(document))["post /v1/sessions/{session_id}/events"]["schema"]
    for id, is_valid in (("evt_A1", True), ("frm_1", False), ("evt_", False), (f"evt_{'a' * 41}", False)):
        body = {"events": [{"t_ms": 1, "type": "click", "id": id}]}
        assert caller.post(address, body).status_code == (202 if is_valid else 422), id
        assert make_validator(document, schema).is_valid(body) is is_valid, id
    frames = document["components"]["schemas"]["FrameItem"]
    for id, is_valid in (("frm_A1", True), ("evt_1", False)):
        body = {"t_ms": 1, "content_type": "image/png", "data": "", "id": id}
        assert make_validator(document, frames).is_valid(body) is is_valid, id
    assert not make_validator(document, frames).is_valid({"t_ms": 1, "content_type": "image/gif"})


def test_every_body_and_parameter_is_described(document: dict[str, Any]) -> None:
    bodiless = ("/start", "/stop", "/cancel", "/secret", "/test", "/redeliver")
    for (path, method), operation in operations(document).items():
        named = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert {part[1:-1] for part in path.split("/") if part.startswith("{")} <= {
            name.removesuffix(":path") for name in named
        }, path
        if method == "post" and not path.endswith(bodiless):
            assert operation["requestBody"]["content"], path


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own_references = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own_references + [
                reference for member in value.values() for reference in references(member)
            ]
        if isinstance(value, list):
            return [reference for member in value for reference in references(member)]
        return []

    there = {
        f"#/components/{kind}/{name}" for kind, named in document["components"].items() for name in named
    }
    assert set(references(document)) <= there


def test_the_hot_bodies_tell_their_limits(document: dict[str, Any]) -> None:
    events = document["paths"]["/v1/sessions/{session_id}/events"]["post"]
    batch = events["requestBody"]["content"]["application/json"]["schema"]["properties"]["events"]
    assert (batch["minItems"], batch["maxItems"]) == (1, limits.EVENTS_PER_BATCH)
    frames = document["paths"]["/v1/sessions/{session_id}/frames"]["post"]["requestBody"]["content"]
    assert set(frames) == {"application/json", "multipart/form-data"}
    item = document["components"]["schemas"]["EventItem"]
    assert item["required"] == ["t_ms", "type"] and item["additionalProperties"] is False


def json_bodies(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the description of each JSON body, with the operation that takes it."""
    for (path, method), operation in operations(document).items():
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            yield f"{method} {path}", content["application/json"]


def make_validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    """Return a validator of a schema of the document."""
    return Draft202012Validator({**schema, "components": document["components"]})


def test_examples_are_what_their_schemas_take(document: dict[str, Any]) -> None:
    examples = [(name, body) for name, body in json_bodies(document) if "example" in body]
    assert len(examples) > 8
    for name, body in examples:
        errors = [
            error.message for error in make_validator(document, body["schema"]).iter_errors(body["example"])
        ]
        assert not errors, name


def test_optional_members_of_requests_may_be_null(document: dict[str, Any]) -> None:
    checked: set[str] = set()

    def check(part: Any, pointer: str) -> None:
        if isinstance(part, list):
            for option in part:
                check(option, pointer)
        if not isinstance(part, dict):
            return
        reference = part.get("$ref", "").rpartition("/")[2]
        if reference and reference not in checked:
            checked.add(reference)
            check(document["components"]["schemas"][reference], reference)
        for name, member in part.get("properties", {}).items():
            if name not in part.get("required", []):
                assert make_validator(document, member).is_valid(None), f"{pointer}: {name}"
            check(member, f"{pointer}/{name}")
        for keyword in ("items", "additionalProperties", "anyOf", "oneOf", "allOf"):
            check(part.get(keyword), pointer)

    for name, body in json_bodies(document):
        check(body["schema"], name)
    assert {"SessionCreate", "ReplayPolicyBody", "RetentionUpdate", "EventItem"} <= checked


def test_an_export_takes_one_workflow_or_several(document: dict[str, Any]) -> None:
    body = document["paths"]["/v1/exports"]["post"]["requestBody"]["content"]["application/json"]
    validator = make_validator(document, body["schema"])
    given = {"format": "jsonl", "destination": {"kind": "signed_url", "expires_in": None}}
    for workflow, is_valid in (
        ("checkout", True),
        (["checkout"], True),
        ([], False),
        ("No", False),
        (7, False),
    ):
        assert validator.is_valid({**given, "workflow": workflow}) is is_valid, workflow


def test_the_codes_of_errors_are_listed(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    rows = table(
        PAGES["docs/interface.md"],
        "lists the names that are allowed. The offending value is never repeated.\n",
    )
    shown = {code for row in rows for code in re.findall(r"`(\w+)`", row[1])}
    code = schemas["ProblemDocument"]["properties"]["code"]
    assert set(code["examples"]) == shown and "enum" not in code
    assert not {"HTTPValidationError", "ValidationError"} & schemas.keys()


def test_every_operation_asks_for_the_key(document: dict[str, Any]) -> None:
    assert document["security"] == [{"api_key": []}]
    assert document["components"]["securitySchemes"]["api_key"]["scheme"] == "bearer"


def test_the_pages_need_no_network(service: Service) -> None:
    page = service.client.get("/docs")
    assert page.status_code == 200
    assert "http://" not in page.text and "https://" not in page.text


def test_health_needs_no_key_and_names_what_fails(service: Service) -> None:
    assert service.client.get("/healthz").json() == {"status": "ok"}
    assert service.client.get("/readyz").json()["parts"] == {"database": "ok", "blobs": "ok", "lake": "ok"}
