"""What the hot routes take and give, for OpenAPI: they read their bodies without FastAPI's help."""

from collections.abc import Callable
from typing import Any

import msgspec

from api.openapi import examples
from recorder import limits
from recorder.models.event import EventItem
from recorder.models.frame import FrameItem

_REF = "#/components/schemas/{name}"
_, ITEM_SCHEMAS = msgspec.json.schema_components([EventItem, FrameItem], ref_template=_REF)

_GATE_ANSWERS = (400, 401, 403, 413, 422, 429, 500, 503)
_BODY_ANSWERS = (408, 415)

_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_BATCH_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": limits.BATCH_KEY_CHARACTERS},
    "description": "Batch id, unique in the session: a batch sent again is stored once.",
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _array(item: str, most: int) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": {"$ref": _REF.format(name=item)}}


_EVENT = {
    "allOf": [{"$ref": _REF.format(name="EventItem")}, {"required": ["id"]}],
    "description": "The item as it was sent, and its id.",
}

_SESSION_ID = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}

EVENT_BATCH: dict[str, Any] = {
    "parameters": [_SESSION_ID, _BATCH_KEY],
    "requestBody": {
        "required": True,
        **_json("A batch", _object(events=_array("EventItem", limits.EVENTS_PER_BATCH))),
    },
}
EVENTS_ACCEPTED = _json(
    "Durable",
    _object(accepted=_COUNT, duplicates=_COUNT, first_id=_TEXT, last_id=_TEXT, event_count=_COUNT),
)
EVENT_PAGE = {
    "description": "A page of events, or all of them in a streamed format",
    "content": {
        "application/json": {
            "schema": _object(
                data={"type": "array", "items": _EVENT},
                next_cursor={"type": ["string", "null"]},
                has_more={"type": "boolean"},
            )
        },
        "application/x-ndjson": {"schema": {"type": "string"}},
        "application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}},
    },
}

EVENT_STREAM = {
    "description": "Messages `{id, event, data}`, for as long as the client stays",
    "content": {"text/event-stream": {"schema": _TEXT}},
}

_FRAMES = _array("FrameItem", limits.FRAMES_PER_BATCH)
FRAME_BATCH: dict[str, Any] = {
    "parameters": [_BATCH_KEY],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _object(frames=_FRAMES)},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["frames"],
                    "properties": {"frames": _FRAMES},
                    "additionalProperties": {"type": "string", "format": "binary"},
                },
                "encoding": {"frames": {"contentType": "application/json"}},
            },
        },
    },
}
FRAMES_ACCEPTED = _json(
    "Durable",
    _object(
        accepted=_COUNT,
        duplicates=_COUNT,
        data={"type": "array", "items": _object(id=_TEXT, t_ms=_COUNT, sha256=_TEXT, bytes=_COUNT)},
        frame_count=_COUNT,
    ),
)
IMAGE = {
    "description": "The picture",
    "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in limits.IMAGE_TYPES},
}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add to FastAPI's document what only we know: item schemas, problems, the key, what the gate does."""
    from api.errors import ProblemDocument, problem_responses
    from api.gate import idempotency, versions
    from api.openapi import document as limit_headers

    components = document.setdefault("components", {})
    problems = ProblemDocument.model_json_schema(ref_template=_REF.replace("{name}", "{model}"))
    nested = problems.pop("$defs", {})
    components.setdefault("schemas", {}).update({**ITEM_SCHEMAS, **nested, "ProblemDocument": problems})
    components["securitySchemes"] = {"api_key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"api_key": []}]
    idempotency.describe(document)
    versions.describe(document)
    for path, methods in document["paths"].items():
        if path.startswith("/v1/"):
            for method, operation in methods.items():
                _add_gate_answers(method, operation, problem_responses)
    limit_headers.describe(document)
    examples.describe(document)
    return document


def _add_gate_answers(
    method: str,
    operation: dict[str, Any],
    problem_responses: Callable[..., dict[int | str, dict[str, Any]]],
) -> None:
    """What any address may answer before its route, or the strict reader of its body, has its say."""
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):  # FastAPI's own form, which never leaves
        del responses["422"]
    statuses = _GATE_ANSWERS if method in ("get", "delete") else _GATE_ANSWERS + _BODY_ANSWERS
    for status, answer in problem_responses(*statuses).items():
        responses.setdefault(str(status), answer)
