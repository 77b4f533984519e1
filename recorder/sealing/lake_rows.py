"""Rows of the lake's tables, built from sessions, frames and steps. Schemas: `lake_schemas`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from recorder import clock
from recorder.hashing import canonical_json, compute_hash_bucket
from recorder.memory.steps.session_steps import ALGO_VERSION, STEP_COLUMNS, Step
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.storage.lake_schemas import LAYOUTS, LakeKind

# Columns that a frame's row copies from its row in SQL.
_FRAME_COLUMNS = (
    *("frame_id", "t_ms", "width", "height", "content_type", "bytes", "sha256", "object", "offset", "length"),
    *("dom_object", "dom_offset", "dom_length", "keyframe", "url"),
)
# A batch of step rows ends at the first of these.
_BATCH_STEPS = 2_000
_BATCH_FEATURES = 256 * 1_024


@dataclass(frozen=True)
class SessionWithLakeRows:
    """Session whose rows are written, with the values for the graph and the control plane."""

    row: SessionRow
    #: The first steps (`derived.MAX_STEPS`).
    steps: list[Step]
    event_count: int
    action_count: int
    frame_count: int
    image_bytes: int
    payload_bytes: int
    rows_sha256: str


def build_lake_batch(
    kind: LakeKind, row: SessionRow, date: str, columns: Mapping[str, Any], count: int
) -> pa.RecordBatch:
    """Return rows of one session as a batch of the kind's schema.

    Args:
        kind: the table.
        row: the session.
        date: partition of the lake that takes the rows.
        columns: values by column, without the four columns that identify the session.
        count: number of rows.
    """
    schema = LAYOUTS[kind].schema
    session = {
        "workflow": row.workflow,
        "date": date,
        "bucket": compute_hash_bucket(row.id),
        "session_id": row.id,
    }
    arrays = [
        pa.repeat(pa.scalar(session[field.name], field.type), count)
        if field.name in session
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def build_frame_columns(frames: Sequence[FrameRow], start_us: int) -> dict[str, Any]:
    """Return the columns of frame rows that come from the rows in SQL."""
    columns: dict[str, Any] = {name: [getattr(frame, name) for frame in frames] for name in _FRAME_COLUMNS}
    columns["ts"] = [start_us + frame.t_ms * 1000 for frame in frames]
    columns["rects"] = [_encode_areas_for_lake_row(frame) for frame in frames]
    return columns


def build_step_rows(row: SessionRow, date: str, steps: Sequence[Step]) -> Iterator[pa.RecordBatch]:
    """Yield step rows in batches, which bound the size of their features."""
    part: list[Step] = []
    features = 0
    for step in steps:
        if part and (len(part) == _BATCH_STEPS or features + len(step.features) > _BATCH_FEATURES):
            yield _build_step_batch(row, date, part)
            part, features = [], 0
        part.append(step)
        features += len(step.features)
    if part:
        yield _build_step_batch(row, date, part)


def build_session_row(prepared: SessionWithLakeRows, date: str, seal_seq: int) -> pa.RecordBatch:
    """Return the row of a session."""
    row = prepared.row
    columns = {
        "seal_seq": [seal_seq],
        "started_at": [compute_start_us(row)],
        "duration_ms": [row.duration_ms],
        "event_count": [prepared.event_count],
        "action_count": [prepared.action_count],
        "frame_count": [prepared.frame_count],
        "image_bytes": [prepared.image_bytes],
        "rows_sha256": [prepared.rows_sha256],
        "replayability": [None],
        "payload_bytes": [prepared.payload_bytes],
    }
    return build_lake_batch("sessions", row, date, columns, 1)


def compute_start_us(row: SessionRow) -> int:
    """Return the session's start in microseconds since 1970: `t_ms` counts from it."""
    assert row.started_at is not None
    return (row.started_at - clock.from_ms(0)) // timedelta(microseconds=1)


def _build_step_batch(row: SessionRow, date: str, steps: Sequence[Step]) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: [getattr(step, name) for step in steps] for name in STEP_COLUMNS}
    columns["algo_version"] = [ALGO_VERSION] * len(steps)
    return build_lake_batch("steps", row, date, columns, len(steps))


def _encode_areas_for_lake_row(frame: FrameRow) -> str | None:
    rects = {"active_rect": frame.active_rect, "masked_rects": frame.masked_rects}
    rects_given = {name: value for name, value in rects.items() if value is not None}
    return canonical_json(rects_given).decode() if rects_given else None
