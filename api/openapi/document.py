"""The headers of the limits in OpenAPI: every answer has four, a refusal a fifth. Spec §8.1."""

from typing import Any

_NUMBER = {"type": "integer", "minimum": 0}
_HEADERS: dict[str, dict[str, Any]] = {
    "X-RateLimit-Limit": {"description": "Size of the bucket.", "schema": _NUMBER},
    "X-RateLimit-Remaining": {"description": "Requests that it still holds.", "schema": _NUMBER},
    "X-RateLimit-Reset": {"description": "Unix second by which it is full again.", "schema": _NUMBER},
    "X-Scope": {
        "description": "Whose bucket it is: the one of which the smallest part is left.",
        "schema": {
            "enum": [
                "per_key",
                "per_workspace",
                "per_address",
                "per_webhook",
                "per_key_bytes",
                "per_workspace_bytes",
                "per_key_concurrency",
                "per_workspace_concurrency",
                "per_process_concurrency",
            ]
        },
    },
    "Retry-After": {
        "description": "Seconds to wait before the next try; only where waiting helps.",
        "schema": {"type": "integer", "minimum": 1},
    },
}
_WITH_WAIT = ("409", "429", "503")


def describe(document: dict[str, Any]) -> None:
    """Let every answer show its headers."""
    document["components"]["headers"] = _HEADERS
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                answer.setdefault("headers", {}).update(_references(status))


def _references(status: str) -> dict[str, dict[str, str]]:
    names = [name for name in _HEADERS if name != "Retry-After" or status in _WITH_WAIT]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
