"""Schemas of a dataset's rows, for each kind of file of each format. Contract §5."""

from typing import Any

import pyarrow as pa

from recorder.datasets.formats import FileKind, FormatName
from recorder.hashing import compute_sha256

_STRING = pa.string()
_INT = pa.int32()
_LONG = pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])


def _make_required_schema_field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


# The rows have `workflow` beside the folder's name, since some readers ignore hive folders.
EVENTS = pa.schema(
    [
        _make_required_schema_field("workspace", _STRING),
        _make_required_schema_field("workflow", _STRING),
        _make_required_schema_field("date", _STRING),  # of sealing
        _make_required_schema_field("session_id", _STRING),
        _make_required_schema_field("event_id", _STRING),
        _make_required_schema_field("seq", _INT),
        _make_required_schema_field("t_ms", _LONG),
        _make_required_schema_field("ts", _TIME),
        _make_required_schema_field("type", _STRING),
        pa.field("frame_id", _STRING),  # as the client sent it
        # The frame that the client named, else the last one at or before the event.
        pa.field("bound_frame_id", _STRING),
        pa.field("frame_seq", _INT),
        _make_required_schema_field("is_action", pa.bool_()),
        _make_required_schema_field("payload", _STRING),
        pa.field("outcome", _STRING),
        pa.field("actor_kind", _STRING),
        _make_required_schema_field("split", _STRING),  # train, validation or test
    ]
)
FRAMES = pa.schema(
    [
        _make_required_schema_field("workspace", _STRING),
        _make_required_schema_field("workflow", _STRING),
        _make_required_schema_field("session_id", _STRING),
        _make_required_schema_field("frame_id", _STRING),
        _make_required_schema_field("seq", _INT),
        _make_required_schema_field("t_ms", _LONG),
        _make_required_schema_field("ts", _TIME),
        _make_required_schema_field("width", _INT),
        _make_required_schema_field("height", _INT),
        _make_required_schema_field("content_type", _STRING),
        _make_required_schema_field("sha256", _STRING),
        pa.field("dhash", pa.uint64()),
        _make_required_schema_field("is_keyframe", pa.bool_()),
        _make_required_schema_field("n_events", _INT),
        _make_required_schema_field("has_action", pa.bool_()),
        _make_required_schema_field("split", _STRING),
        pa.field("image", IMAGE),  # null once the bytes have expired
    ]
)
# JSON has no instants, and its readers lose digits of large numbers.
_IN_JSON = {"ts": _STRING, "dhash": _STRING}


def _list_json_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the fields of a row that JSON can hold, with their types in JSON."""
    return [
        field.with_type(_IN_JSON.get(field.name, field.type)) for field in schema if field.name != "image"
    ]


# A sample's members by their endings; of the three pictures it has the one of its `content_type`, or none
# once the bytes have expired.
_SAMPLES = pa.schema(
    [
        _make_required_schema_field("__key__", _STRING),  # session and position within it
        pa.field("jpg", pa.binary()),
        pa.field("png", pa.binary()),
        pa.field("webp", pa.binary()),
        # The frame; `image` is the name of the picture's file, null where there is none.
        _make_required_schema_field(
            "json", pa.struct([*_list_json_fields(FRAMES), pa.field("image", _STRING)])
        ),
        _make_required_schema_field(
            "events.json",
            pa.list_(_make_required_schema_field("item", pa.struct(_list_json_fields(EVENTS)))),
        ),
    ]
)
_ARROW: dict[FileKind, pa.Schema] = {"events": EVENTS, "frames": FRAMES}
SCHEMAS: dict[FormatName, dict[FileKind, pa.Schema]] = {
    "parquet": _ARROW,
    "arrow": _ARROW,
    "jsonl": {kind: pa.schema(_list_json_fields(schema)) for kind, schema in _ARROW.items()},
    "webdataset": {"samples": _SAMPLES},
}


def describe_dataset_schema(kind: FileKind, format: FormatName) -> list[dict[str, Any]]:
    """Return the fields of a kind of file for the manifest; a struct, or a list of structs, has `fields`."""
    return [_describe_schema_field(field) for field in SCHEMAS[format][kind]]


def fingerprint_dataset_schema(kind: FileKind, format: FormatName) -> str:
    """Return a digest that changes whenever the columns of a kind of file do."""
    return "sha256:" + compute_sha256(describe_dataset_schema(kind, format))


def _describe_schema_field(field: pa.Field) -> dict[str, Any]:
    inner, name = field.type, "struct"
    if pa.types.is_list(inner):
        inner, name = inner.value_type, "list<struct>"
    if not pa.types.is_struct(inner):
        return {"name": field.name, "type": str(field.type), "nullable": field.nullable}
    fields = [_describe_schema_field(member) for member in inner]
    return {"name": field.name, "type": name, "nullable": field.nullable, "fields": fields}
