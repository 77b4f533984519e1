"""A session's events as one stream: NDJSON lines or an Arrow IPC stream. Contract §2 (added reads)."""

import io
from collections.abc import Iterator

import pyarrow as pa
from fastapi import Response
from starlette.responses import StreamingResponse

from recorder.recording.hot_events import EventRecord

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("t_ms", pa.int64(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("frame_id", pa.string()),
        pa.field("payload", pa.string(), nullable=False),
    ]
)


def write_ndjson(parts: Iterator[list[EventRecord]]) -> Response:
    """One event a line; a part is read once the one before was taken."""
    lines = (b"".join(record.as_json() + b"\n" for record in part) for part in parts)
    return StreamingResponse(lines, media_type=NDJSON)


def write_arrow(records: list[EventRecord]) -> Response:
    """Columns id, t_ms, type, frame_id and payload (a JSON object of the other members)."""
    table = pa.table(
        {
            "id": [record.id for record in records],
            "t_ms": [record.t_ms for record in records],
            "type": [record.type for record in records],
            "frame_id": [record.frame_id for record in records],
            "payload": [record.payload.decode() for record in records],
        },
        schema=_SCHEMA,
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(table)
    return Response(sink.getvalue(), media_type=ARROW)
