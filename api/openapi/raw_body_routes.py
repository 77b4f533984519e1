"""Bodies and answers of the routes that read their bodies without FastAPI, for OpenAPI."""

from typing import Any

import msgspec

from recorder import limits
from recorder.models.event import EventItem
from recorder.models.frame import FrameItem

REF = "#/components/schemas/{name}"
_, ITEM_SCHEMAS = msgspec.json.schema_components([EventItem, FrameItem], ref_template=REF)

_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_BATCH_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": limits.IDEMPOTENCY_KEY_PATTERN},
    "description": "Batch id, unique in the session: a batch sent again is stored once.",
}


def _describe_raw_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _describe_raw_json_body(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _describe_raw_array(item: str, most: int) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": {"$ref": REF.format(name=item)}}


_EVENT = {
    "allOf": [{"$ref": REF.format(name="EventItem")}, {"required": ["id"]}],
    "description": "The item with the members that were sent, and its id.",
}

_SESSION_ID = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}

EVENT_BATCH: dict[str, Any] = {
    "parameters": [_SESSION_ID, _BATCH_KEY],
    "requestBody": {
        "required": True,
        **_describe_raw_json_body(
            "A batch", _describe_raw_object(events=_describe_raw_array("EventItem", limits.EVENTS_PER_BATCH))
        ),
    },
}
EVENTS_ACCEPTED = _describe_raw_json_body(
    "The batch is durable",
    _describe_raw_object(
        accepted=_COUNT, duplicates=_COUNT, first_id=_TEXT, last_id=_TEXT, event_count=_COUNT
    ),
)
EVENT_PAGE = {
    "description": "A page of events, or all of them in a streamed format",
    "content": {
        "application/json": {
            "schema": _describe_raw_object(
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

_FRAMES = _describe_raw_array("FrameItem", limits.FRAMES_PER_BATCH)
FRAME_BATCH: dict[str, Any] = {
    "parameters": [_BATCH_KEY],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _describe_raw_object(frames=_FRAMES)},
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
FRAMES_ACCEPTED = _describe_raw_json_body(
    "The batch is durable",
    _describe_raw_object(
        accepted=_COUNT,
        duplicates=_COUNT,
        data={
            "type": "array",
            "items": _describe_raw_object(id=_TEXT, t_ms=_COUNT, sha256=_TEXT, bytes=_COUNT),
        },
        frame_count=_COUNT,
    ),
)
DOM = {
    "description": "The snapshot as it was sent, or as an HTML document that is safe to show",
    "content": {
        "application/json": {"schema": {"type": "object"}},
        "text/html": {"schema": {"type": "string"}},
    },
}
IMAGE = {
    "description": "The picture",
    "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in limits.IMAGE_TYPES},
}
