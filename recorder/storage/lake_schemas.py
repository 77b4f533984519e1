"""Arrow schemas of the lake's Delta tables, and their layout in files."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import pyarrow as pa

LakeKind = Literal["events", "frames", "sessions", "steps"]

_STRING = pa.string()
_INT = pa.int32()
_LONG = pa.int64()
_TIME = pa.timestamp("us", tz="UTC")


def _make_required_lake_field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


#: Columns by which every table is partitioned; data files do not hold them.
PARTITIONS = ["workflow", "date"]


class LakePartition(NamedTuple):
    """Partition of a table: the sessions of one workflow that were sealed on one date."""

    workflow: str
    #: `YYYY-MM-DD`
    date: str


def format_lake_date(moment: datetime) -> str:
    """Return the date of the partitions with the rows of a batch that was made then."""
    return moment.strftime("%Y-%m-%d")


# Every table begins with its partition columns. Partition values, file names and statistics must hold no
# personal data: they stay in the Delta log after the rows are deleted.
_SESSION_COLUMNS = [
    _make_required_lake_field("workflow", _STRING),
    _make_required_lake_field("date", _STRING),
    _make_required_lake_field("bucket", _INT),
    _make_required_lake_field("session_id", _STRING),
]

EVENTS = pa.schema(
    [
        *_SESSION_COLUMNS,
        _make_required_lake_field("event_id", _STRING),
        _make_required_lake_field("seq", _INT),  # 0-based position in (t_ms, event_id) order
        _make_required_lake_field("t_ms", _LONG),
        _make_required_lake_field("ts", _TIME),
        _make_required_lake_field("type", _STRING),
        pa.field("frame_id", _STRING),  # as the client sent it
        pa.field("frame_seq", _INT),  # the frame of the event: frame_id's, else the last frame before it
        _make_required_lake_field("is_action", pa.bool_()),
        _make_required_lake_field("payload", _STRING),  # canonical JSON of the item's other members
    ]
)
FRAMES = pa.schema(
    [
        *_SESSION_COLUMNS,
        _make_required_lake_field("frame_id", _STRING),
        _make_required_lake_field("seq", _INT),  # 0-based position in (t_ms, frame_id) order
        _make_required_lake_field("t_ms", _LONG),
        _make_required_lake_field("ts", _TIME),
        _make_required_lake_field("width", _INT),
        _make_required_lake_field("height", _INT),
        _make_required_lake_field("content_type", _STRING),
        _make_required_lake_field("bytes", _INT),
        _make_required_lake_field("sha256", _STRING),
        pa.field("dhash", _LONG),  # two's complement of the 64 bits; null if the picture did not decode
        pa.field("state_key", _STRING),  # structure without text (recorder/memory/steps/screens.py)
        _make_required_lake_field("state_tokens", pa.list_(_STRING)),  # roles and names, sorted
        _make_required_lake_field("is_keyframe", pa.bool_()),
        _make_required_lake_field("n_events", _INT),
        _make_required_lake_field("has_action", pa.bool_()),
        _make_required_lake_field("object", _STRING),
        _make_required_lake_field("offset", _LONG),
        _make_required_lake_field("length", _INT),
        pa.field("dom_object", _STRING),
        pa.field("dom_offset", _LONG),
        pa.field("dom_length", _INT),
        pa.field("keyframe", pa.bool_()),  # as the client sent it
        pa.field("url", _STRING),
        pa.field("rects", _STRING),  # canonical JSON of active_rect and masked_rects
    ]
)
SESSIONS = pa.schema(
    [
        *_SESSION_COLUMNS,
        _make_required_lake_field("seal_seq", _LONG),
        _make_required_lake_field("started_at", _TIME),
        _make_required_lake_field("duration_ms", _LONG),
        _make_required_lake_field("event_count", _INT),
        _make_required_lake_field("action_count", _INT),
        _make_required_lake_field("frame_count", _INT),
        _make_required_lake_field("image_bytes", _LONG),
        _make_required_lake_field("rows_sha256", _STRING),
        pa.field("replayability", pa.float64()),
        pa.field("payload_bytes", _LONG),  # of its events; null if it was sealed without them
    ]
)
STEPS = pa.schema(
    [
        *_SESSION_COLUMNS,
        _make_required_lake_field("pos", _INT),
        _make_required_lake_field("algo_version", _INT),
        _make_required_lake_field("micro_key", _LONG),
        _make_required_lake_field("screen_key", _STRING),
        _make_required_lake_field("action", _STRING),
        _make_required_lake_field("target", _STRING),
        _make_required_lake_field("label", _STRING),
        _make_required_lake_field("features", pa.list_(_LONG)),  # hashed screen tokens
        _make_required_lake_field("t_in_ms", _LONG),
        _make_required_lake_field("t_out_ms", _LONG),
        pa.field("frame_id", _STRING),
        _make_required_lake_field("event_id", _STRING),
        _make_required_lake_field("runs", _INT),
        # Texts that may name the step's node; null where an earlier release put the first into `label`.
        pa.field("names", pa.list_(_STRING)),
        pa.field("location", _STRING),
        pa.field("words", _STRING),
    ]
)


@dataclass(frozen=True)
class TableLayout:
    """Layout of a kind of table: sort order in every file, and columns with statistics."""

    schema: pa.Schema
    sort: tuple[str, ...]
    statistics: str
    #: Rows of one row group: the most that a reader decodes to find a small session.
    row_group_rows: int = 8_192


LAYOUTS: dict[LakeKind, TableLayout] = {
    "events": TableLayout(EVENTS, ("bucket", "session_id", "t_ms", "event_id"), "session_id,bucket,t_ms,ts"),
    # Frames are wide, and are read one by one.
    "frames": TableLayout(
        FRAMES,
        ("bucket", "session_id", "t_ms", "frame_id"),
        "session_id,bucket,t_ms,ts",
        row_group_rows=2_048,
    ),
    "sessions": TableLayout(SESSIONS, ("bucket", "session_id"), "session_id,bucket"),
    "steps": TableLayout(STEPS, ("bucket", "session_id", "pos"), "session_id,bucket"),
}
