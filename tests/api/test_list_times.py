"""Lists have a limited time of the database: what takes longer is refused. Contract §1 (lists)."""

from inspect import iscoroutinefunction, signature
from typing import Any

import pytest
from fastapi import Response
from fastapi.routing import APIRoute
from sqlalchemy import text

from api.dependencies import get_pager
from api.gate.endpoints import ENDPOINTS
from recorder import limits
from recorder.recording import session_list
from tests.support.factories import Caller, Service, assert_problem
from tests.support.query_plans import noted_statements

#: It would count for a quarter of an hour.
ENDLESS = text(
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000000000) "
    "SELECT count(*) FROM n"
)


def list_page_routes(service: Service) -> list[APIRoute]:
    """Return the routes that take a cursor."""
    routes = [
        route
        for router in service.app.routes
        for route in getattr(getattr(router, "original_router", None), "routes", [])
        if isinstance(route, APIRoute)
    ]
    return [
        route
        for route in routes
        if get_pager in {dependency.call for dependency in route.dependant.dependencies}
    ]


def routes_with_pages(service: Service) -> set[tuple[str, str]]:
    """Method and path of the routes that take a cursor."""
    return {(method, route.path) for route in list_page_routes(service) for method in route.methods}


def test_pages_are_serialized_in_the_worker_threads_of_their_routes(service: Service) -> None:
    """In the event loop an answer of 4 MiB would delay all requests of the process."""
    others = {"/v1/exports/{export_id}/diff"}
    for route in list_page_routes(service):
        if route.path not in others:
            assert signature(route.endpoint).return_annotation is Response, route.path
            assert not iscoroutinefunction(route.endpoint), route.path


def test_the_lists_of_the_table_are_the_routes_with_pages(service: Service) -> None:
    lists = {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS if endpoint.is_list}
    # Outliers are computed from a graph, differences from two plans: both have sizes of their own.
    others = {("GET", "/v1/memory/outliers"), ("GET", "/v1/exports/{export_id}/diff")}
    assert routes_with_pages(service) == lists | others
    assert len(lists) > 10


def test_a_list_that_takes_too_long_is_refused(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    caller.make_session()
    lists = session_list.list_sessions

    def read_for_long(db: Any, *given: Any, **named: Any) -> Any:
        db.connection().execute(ENDLESS)
        return lists(db, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(limits, "LIST_SECONDS", 0.2)
        patched.setattr(session_list, "list_sessions", read_for_long)
        answer = caller.get("/v1/sessions?status=sealed")
    assert_problem(answer, 422, "limit_reached")
    assert "after 0.2 s" in answer.json()["detail"] and "`since` and `until`" in answer.json()["detail"]
    assert "retry-after" not in answer.headers
    assert len(caller.get("/v1/sessions").json()["data"]) == 1


def test_a_list_whose_time_is_over_sends_no_further_statement(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIST_SECONDS", 0.0)
    with noted_statements() as noted:
        assert_problem(caller.get("/v1/sessions"), 422, "limit_reached")
    assert [statement for statement, _ in noted if "FROM sessions" in statement] == []


def test_other_reads_have_no_such_limit(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = caller.make_session()
    monkeypatch.setattr(limits, "LIST_SECONDS", 0.0)
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200
    assert caller.get("/v1/workspaces/current").status_code == 200
