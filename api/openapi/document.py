"""Parts of the OpenAPI document that FastAPI does not know: problems, headers, keys, releases, examples."""

from typing import Any

from api.errors import ProblemDocument, problem_responses
from api.gate.versions import DEPRECATIONS, RELEASES
from api.openapi.examples import add_openapi_examples
from api.openapi.raw_body_routes import ITEM_SCHEMAS, REF
from recorder import limits
from recorder.webhooks.catalogue import EVENT_TYPES

_Document = dict[str, Any]

_GATE_ANSWERS = (400, 401, 403, 413, 422, 429, 500, 503)
_BODY_ANSWERS = (408, 415)
#: FastAPI's own form of errors, which is never sent.
_NEVER_SENT = ("HTTPValidationError", "ValidationError")

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": limits.IDEMPOTENCY_KEY_PATTERN},
    "description": "A request sent again with the same key and body is carried out once.",
}
#: Errors of the operation itself, which are answered again to a repeated request.
_KEPT_ERRORS = ("404", "409")
_REPLAYED_HEADER = {
    "description": "`true` where the answer is that of an earlier request with this key.",
    "schema": {"type": "string", "const": "true"},
}
_SERVICE_VERSION = {
    "name": "Service-Version",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": list(RELEASES)},
    "description": "The release that the request is written for; it changes nothing yet.",
}
_NUMBER = {"type": "integer", "minimum": 0}
_HEADERS: dict[str, dict[str, Any]] = {
    "X-RateLimit-Limit": {"description": "Size of the bucket.", "schema": _NUMBER},
    "X-RateLimit-Remaining": {"description": "Requests that it still holds.", "schema": _NUMBER},
    "X-RateLimit-Reset": {"description": "Unix second by which it is full again.", "schema": _NUMBER},
    "X-Scope": {
        "description": "The limit that the headers describe: the one with the smallest part left.",
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
                "per_address_connections",
                "per_process_connections",
            ]
        },
    },
    "X-Request-Id": {
        "description": "Id of this request, also the `request_id` of an error.",
        "schema": {"type": "string", "pattern": "^req_[0-9a-z]{26}$"},
    },
    "Service-Version": {
        "description": "Release of the service.",
        "schema": {"type": "string", "enum": list(RELEASES)},
    },
    "X-Client-Request-Id": {
        "description": "The `X-Request-Id` of the request, where it sent one.",
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds to wait before the next try; an hour where an operator must act first.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {
        "description": "The scheme of the header `Authorization`.",
        "schema": {"type": "string", "const": "Bearer"},
    },
    "Accept-Ranges": {"description": "The unit of ranges.", "schema": {"type": "string", "const": "bytes"}},
    "Content-Range": {
        "description": "Position and size of the part, or the size alone after a 416.",
        "schema": {"type": "string", "pattern": r"^bytes (\d+-\d+|\*)/\d+$"},
    },
}
#: Headers of some answers alone: the statuses that carry them.
_HEADER_STATUSES = {
    "Retry-After": ("409", "429", "503"),
    "WWW-Authenticate": ("401",),
    "Accept-Ranges": ("206", "416"),
    "Content-Range": ("206", "416"),
}


def complete_openapi_document(document: _Document) -> _Document:
    """Add to FastAPI's document item schemas, problems, headers and examples, and return it."""
    components = document.setdefault("components", {})
    problems = ProblemDocument.model_json_schema(ref_template=REF.replace("{name}", "{model}"))
    nested = problems.pop("$defs", {})
    components.setdefault("schemas", {}).update({**ITEM_SCHEMAS, **nested, "ProblemDocument": problems})
    components["securitySchemes"] = {"api_key": {"type": "http", "scheme": "bearer"}}
    components["headers"] = _HEADERS
    document["security"] = [{"api_key": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "post":
                _document_idempotency_key(operation)
            if path.startswith("/v1/"):
                operation.setdefault("parameters", []).append(_SERVICE_VERSION)
                _document_gate_answers(method, operation)
            for status, answer in operation["responses"].items():
                answer.setdefault("headers", {}).update(_refer_to_headers(status))
    _list_event_types(components["schemas"])
    for name in _NEVER_SENT:
        components["schemas"].pop(name, None)
    _mark_deprecated_operations(document)
    add_openapi_examples(document)
    return document


def _list_event_types(schemas: _Document) -> None:
    """Add to the bodies of webhooks the event types that they take: the catalogue is above the models."""
    for name in ("WebhookCreate", "WebhookUpdate"):
        events = schemas[name]["properties"]["events"]
        for option in events.get("anyOf", [events]):
            if option["type"] == "array":
                option["items"] = {"type": "string", "enum": sorted(EVENT_TYPES)}


def _document_idempotency_key(operation: _Document) -> None:
    """Add the header Idempotency-Key to a POST, and the answers that it may cause."""
    parameters = operation.setdefault("parameters", [])
    if all(parameter["name"] != _IDEMPOTENCY_KEY["name"] for parameter in parameters):
        parameters.append(_IDEMPOTENCY_KEY)
    for status, answer in problem_responses(409, 422).items():
        operation["responses"].setdefault(str(status), answer)
    for status, answer in operation["responses"].items():
        if status.startswith("2") or status in _KEPT_ERRORS:
            answer.setdefault("headers", {})["Idempotent-Replayed"] = _REPLAYED_HEADER


def _document_gate_answers(method: str, operation: _Document) -> None:
    """Add the errors that any address may answer before its route runs."""
    responses = operation["responses"]
    if _NEVER_SENT[0] in str(responses.get("422")):
        del responses["422"]
    statuses = _GATE_ANSWERS if method in ("get", "delete") else _GATE_ANSWERS + _BODY_ANSWERS
    for status, answer in problem_responses(*statuses).items():
        responses.setdefault(str(status), answer)


def _refer_to_headers(status: str) -> dict[str, dict[str, str]]:
    """Return references to the response headers that answers of a status have."""
    names = [name for name in _HEADERS if status in _HEADER_STATUSES.get(name, (status,))]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _mark_deprecated_operations(document: _Document) -> None:
    for (method, path), deprecation in DEPRECATIONS.items():
        operation = document["paths"].get(path.replace(":path}", "}"), {}).get(method.lower())
        if operation is not None:
            operation["deprecated"] = True
            operation["x-sunset"] = deprecation.sunset.isoformat()
