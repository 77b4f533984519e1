"""Addresses of the interface as OpenAPI shows them, and objects for some of them."""

import re
from typing import Any

from tests.support.factories import Caller, Service


def operations(service: Service, method: str = "get") -> dict[str, list[dict[str, Any]]]:
    """Return the query parameters of every operation below /v1, by path."""
    return {
        path: [item for item in methods[method].get("parameters", []) if item["in"] == "query"]
        for path, methods in service.app.openapi()["paths"].items()
        if path.startswith("/v1/") and method in methods
    }


def with_parameter(service: Service, name: str) -> list[str]:
    """Return the paths that take a query parameter, their ids filled in."""
    addresses = operations(service)
    return [fill(path) for path, taken in addresses.items() if name in {item["name"] for item in taken}]


def required(path: str) -> dict[str, str]:
    """Return the query parameters that a path requires."""
    if path.endswith("/diff") and path.startswith("/v1/exports/"):
        return {"against": "exp_unknown"}
    other_side = {"against_until": "30d"} if path == "/v1/memory/diff" else {}
    return {"workflow": "checkout", **other_side} if path.startswith("/v1/memory/") else {}


def fill(path: str, value: str = "unknown") -> str:
    """Return a path with a value for every id."""
    return re.sub(r"\{\w+\}", value, path)


def other(caller: Caller, who: str) -> Caller:
    """Return the client that must not see the caller's objects."""
    if who == "other mode":
        return caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    return caller.service.make_caller()


def make_webhook(caller: Caller) -> tuple[str, str]:
    """Return a webhook and one of its deliveries."""
    hook = {"url": "http://127.0.0.1:9/hook", "events": ["session.sealed"]}
    webhook_id = caller.post("/v1/webhooks", hook).json()["id"]
    answer = caller.post(f"/v1/webhooks/{webhook_id}/test")
    assert answer.status_code == 202, answer.text
    return webhook_id, answer.json()["id"]
