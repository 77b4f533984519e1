"""Scopes: the table of addresses, the routes and the matrix of contract §1 agree."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route, WebSocketRoute

from api.gate.endpoints import ENDPOINTS, Endpoint, find_endpoint
from recorder.access.keys import LEVELS, Level
from tests.support.factories import Caller, Service, assert_problem
from tests.support.hostile_cases import nothing_stored

#: The matrix, in the words of the contract; the first line that fits an address holds.
MATRIX: tuple[tuple[Level, str, str], ...] = (
    ("admin", "GET|POST|DELETE", r"/v1/keys.*"),
    ("admin", "POST|PATCH|DELETE", r"/v1/webhooks.*"),
    ("admin", "GET", r"/v1/webhooks/[^/]+/deliveries.*"),
    ("admin", "GET|PATCH", r"/v1/workspaces/current"),
    ("admin", "GET|POST", r"/v1/privacy/erasure.*"),
    ("admin", "GET", r"/v1/audit"),
    ("write", "GET", r"/v1/webhooks.*"),
    ("write", "POST|DELETE", r"/v1/sessions.*"),
    ("write", "POST", r"/v1/exports.*"),
    ("write", "POST", r"/v1/(replays|recoveries).*"),
    ("write", "PATCH", r"/v1/workflows/[^/]+"),
    ("read", "POST", r"/v1/memory/similar"),
    ("read", "GET", r"/v1/(sessions|memory|workflows|exports|replays|recoveries|limits|quota|event_types).*"),
)


def needed(endpoint: Endpoint) -> Level:
    """Return the scope that the matrix requires."""
    return next(
        level
        for level, methods, path in MATRIX
        if re.fullmatch(methods, endpoint.method) and re.fullmatch(path, endpoint.path)
    )


def served(router: Any) -> Iterator[tuple[str, str]]:
    """Yield the method and path of every route below /v1, also of routers inside routers."""
    for route in router.routes:
        if isinstance(route, WebSocketRoute):
            yield "GET", route.path
        elif isinstance(route, APIRoute | Route):
            yield from ((method, route.path) for method in route.methods or ())
        elif hasattr(route, "original_router"):
            yield from served(route.original_router)


def path_of(endpoint: Endpoint) -> str:
    """Return an address of an endpoint; its ids name nothing."""
    return re.sub(r"\{\w+(:path)?\}", "unknown", endpoint.path)


def name_of(endpoint: Endpoint) -> str:
    """Return the name of a test case."""
    return f"{endpoint.method} {endpoint.path}"


def test_every_route_stands_in_the_table_and_every_line_leads_to_a_route(service: Service) -> None:
    routes = {(method, path) for method, path in served(service.app) if path.startswith("/v1/")}
    assert routes == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_the_table_says_what_the_matrix_says(endpoint: Endpoint) -> None:
    assert endpoint.scope == needed(endpoint)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_an_address_leads_to_its_line(endpoint: Endpoint) -> None:
    assert find_endpoint(endpoint.method, path_of(endpoint)) is endpoint
    assert find_endpoint("TRACE", path_of(endpoint)) is None
    assert find_endpoint(endpoint.method, path_of(endpoint) + "/") is (
        endpoint if endpoint.path.endswith(":path}") else None
    )


@pytest.mark.parametrize("endpoint", [item for item in ENDPOINTS if not item.path.endswith("}")], ids=name_of)
def test_what_stands_behind_an_address_opens_no_way_around_the_table(
    service: Service, keys: dict[str, Caller], endpoint: Endpoint
) -> None:
    for tail in ("%0A", "%0D", "%0D%0A", "%00", "/", "//", "%2F", ";", "%20", ".json"):
        answer = keys["read"].request(endpoint.method, path_of(endpoint) + tail)
        problem = assert_problem(answer, 404, "not_found")
        assert problem["resource"] == "route", tail


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, Caller]:
    """Return a key of each scope, with and without live replays."""
    return {
        f"{level}{extra}": service.make_caller(scope=f"{level}{extra}")
        for level in LEVELS
        for extra in ("", " replay:live")
    }


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_a_key_below_the_scope_of_an_address_is_refused_there_and_no_other(
    service: Service, keys: dict[str, Caller], endpoint: Endpoint
) -> None:
    for scope, caller in keys.items():
        is_enough = LEVELS.index(scope.split(" ")[0]) >= LEVELS.index(needed(endpoint))  # type: ignore[arg-type]
        if is_enough:
            answer = caller.request(endpoint.method, path_of(endpoint))
            assert answer.status_code != 403, (scope, answer.text)
        else:
            with nothing_stored(service.runtime):
                answer = caller.request(endpoint.method, path_of(endpoint))
            assert_problem(answer, 403, "insufficient_scope")


@pytest.mark.parametrize("scope", ["read", "write", "write replay:live"])
def test_only_an_administrator_deletes_for_good(service: Service, scope: str) -> None:
    admin = service.make_caller()
    caller = service.make_caller(scope=scope, workspace_id=admin.key.workspace_id)
    session_id = admin.make_session()
    with nothing_stored(service.runtime):
        answer = caller.delete(f"/v1/sessions/{session_id}?hard=true")
    assert_problem(answer, 403, "insufficient_scope")
    assert admin.delete(f"/v1/sessions/{session_id}?hard=true").status_code != 403
