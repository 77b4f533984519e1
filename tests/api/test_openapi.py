"""The service describes itself: every route, body and error is in OpenAPI. Contract §9 (docs)."""

from typing import Any

import pytest
from fastapi.routing import APIRoute

from recorder import limits
from tests.support.factories import Service

METHODS = {"get", "post", "delete", "patch", "put"}


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One engine is enough: nothing here depends on it."""
    return f"sqlite:///{tmp_path_factory.mktemp('database') / 'recorder.db'}"


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    """Answer of `/openapi.json` without a key."""
    answer = service.client.get("/openapi.json")
    assert answer.status_code == 200
    described: dict[str, Any] = answer.json()
    return described


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Every described operation by path and method."""
    return {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def routes(router: Any) -> list[APIRoute]:
    """The application's own routes, also those of routers inside routers."""
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
            assert {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Scope"} <= set(
                answer["headers"]
            ), (address, status)
        assert "Retry-After" in operation["responses"].get("429", {"headers": "Retry-After"})["headers"]


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
