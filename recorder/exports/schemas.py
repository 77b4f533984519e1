"""What the rows of a dataset look like: the columns of events and frames files. Contract §5."""

from typing import Any

import pyarrow as pa

from recorder.digest import sha256_of
from recorder.models.export import ShardKind

_STRING = pa.string()
_INT = pa.int32()
_LONG = pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


# `workflow` stands in the rows beside the folder's name, since some readers ignore hive folders.
EVENTS = pa.schema(
    [
        _required("workspace", _STRING),
        _required("workflow", _STRING),
        _required("date", _STRING),  # of sealing
        _required("session_id", _STRING),
        _required("event_id", _STRING),
        _required("seq", _INT),
        _required("t_ms", _LONG),
        _required("ts", _TIME),
        _required("type", _STRING),
        pa.field("frame_id", _STRING),
        _required("payload", _STRING),
        pa.field("outcome", _STRING),
        pa.field("actor_kind", _STRING),
        _required("split", _STRING),  # train, validation or test
    ]
)
FRAMES = pa.schema(
    [
        _required("workspace", _STRING),
        _required("workflow", _STRING),
        _required("session_id", _STRING),
        _required("frame_id", _STRING),
        _required("seq", _INT),
        _required("t_ms", _LONG),
        _required("ts", _TIME),
        _required("width", _INT),
        _required("height", _INT),
        _required("content_type", _STRING),
        _required("sha256", _STRING),
        pa.field("dhash", pa.uint64()),
        _required("is_keyframe", pa.bool_()),
        _required("n_events", _INT),
        _required("has_action", pa.bool_()),
        _required("split", _STRING),
        pa.field("image", IMAGE),  # null once the bytes have expired
    ]
)
SCHEMAS: dict[ShardKind, pa.Schema] = {"events": EVENTS, "frames": FRAMES}


def describe(kind: ShardKind) -> list[dict[str, Any]]:
    """The fields of a kind of file, as the manifest lists them."""
    return [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in SCHEMAS[kind]
    ]


def fingerprint(kind: ShardKind) -> str:
    """A digest that changes whenever the columns of a kind of file do."""
    return "sha256:" + sha256_of(describe(kind))
