"""Facts of a stopped session computed in one go from all it holds: what portions must add up to."""

from typing import Any

import orjson
from sqlmodel import col, select

from recorder.event_types import is_action
from recorder.hashing import canonical_json, compute_hash_bucket
from recorder.memory.steps.screens import (
    FrameScreen,
    Screen,
    bind_screen_frames_to_events,
    locate_elements_on_screen,
)
from recorder.memory.steps.session_steps import ALGO_VERSION, STEP_COLUMNS, Step, session_steps
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.stored_events import EventRecord, decode_stored_event_batch
from recorder.row_digests import compute_events_digest
from recorder.runtime import Runtime
from recorder.sealing.frame_digests import KEYFRAME_DISTANCE, FrameDigest, dhash_distance
from recorder.sealing.lake_rows import compute_start_us

Rows = list[dict[str, Any]]
_SAME = (
    *("frame_id", "t_ms", "width", "height", "content_type", "bytes", "sha256", "object", "offset", "length"),
    *("dom_object", "dom_offset", "dom_length", "keyframe", "url"),
)


def whole_session(
    runtime: Runtime, session_id: str, seen: dict[str, FrameDigest], *, date: str, seal_seq: int
) -> dict[str, Rows]:
    """Compute the rows of every table.

    Args:
        seen: digests of the frames, by id.
    """
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(SessionRow, session_id)
        batches = db.exec(select(EventBatchRow).where(col(EventBatchRow.session_id) == session_id)).all()
        frames = list(db.exec(select(FrameRow).where(col(FrameRow.session_id) == session_id)))
    events = sorted(
        (event for batch in batches for event in decode_stored_event_batch(batch)),
        key=lambda item: (item.t_ms, item.id),
    )
    frames.sort(key=lambda frame: (frame.t_ms, frame.frame_id))
    bound = bind_screen_frames_to_events(
        [(event.t_ms, event.frame_id) for event in events], [(frame.t_ms, frame.frame_id) for frame in frames]
    )
    steps = session_steps(
        [_item(event) for event in events],
        [_frame_screen(frame, seen[frame.frame_id].screen) for frame in frames],
    )
    values = {
        "events": _event_rows(row, events, bound),
        "frames": _frame_rows(row, frames, seen, events, bound),
        "steps": [_step_row(step) for step in steps],
        "sessions": [_session_row(row, events, frames, seal_seq)],
    }
    columns = {
        "workflow": row.workflow,
        "date": date,
        "bucket": compute_hash_bucket(row.id),
        "session_id": row.id,
    }
    return {kind: [columns | row for row in rows] for kind, rows in values.items()}


def _item(event: EventRecord) -> dict[str, Any]:
    item: dict[str, Any] = orjson.loads(event.payload)
    item.update(id=event.id, t_ms=event.t_ms, type=event.type, frame_id=event.frame_id)
    return item


def _event_rows(row: SessionRow, events: list[EventRecord], bound: list[int | None]) -> Rows:
    return [
        {
            "event_id": event.id,
            "seq": seq,
            "t_ms": event.t_ms,
            "ts": compute_start_us(row) + event.t_ms * 1000,
            "type": event.type,
            "frame_id": event.frame_id,
            "frame_seq": index,
            "is_action": is_action(event.type),
            "payload": event.payload.decode(),
        }
        for seq, (event, index) in enumerate(zip(events, bound, strict=True))
    ]


def _frame_rows(
    row: SessionRow,
    frames: list[FrameRow],
    seen: dict[str, FrameDigest],
    events: list[EventRecord],
    bound: list[int | None],
) -> Rows:
    rows: Rows = []
    last: FrameDigest | None = None
    for seq, frame in enumerate(frames):
        shown = seen[frame.frame_id]
        is_keyframe = (
            last is None
            or frame.keyframe is True
            or shown.screen.state_key != last.screen.state_key
            or dhash_distance(shown.dhash, last.dhash) >= KEYFRAME_DISTANCE
        )
        last = shown if is_keyframe else last
        own_rows = [event for event, index in zip(events, bound, strict=True) if index == seq]
        rects = {"active_rect": frame.active_rect, "masked_rects": frame.masked_rects}
        given = {name: value for name, value in rects.items() if value is not None}
        rows.append(
            {
                **{name: getattr(frame, name) for name in _SAME},
                "seq": seq,
                "ts": compute_start_us(row) + frame.t_ms * 1000,
                "dhash": shown.dhash,
                "state_key": shown.screen.state_key,
                "state_tokens": list(shown.screen.state_tokens),
                "is_keyframe": is_keyframe,
                "n_events": len(own_rows),
                "has_action": any(is_action(event.type) for event in own_rows),
                "rects": canonical_json(given).decode() if given else None,
            }
        )
    return rows


def _frame_screen(frame: FrameRow, screen: Screen) -> FrameScreen:
    return FrameScreen(frame.t_ms, frame.frame_id, screen, locate_elements_on_screen(screen.state_tokens))


def _step_row(step: Step) -> dict[str, Any]:
    values = {name: getattr(step, name) for name in STEP_COLUMNS}
    return values | {"features": list(step.features), "names": list(step.names), "algo_version": ALGO_VERSION}


def _session_row(
    row: SessionRow, events: list[EventRecord], frames: list[FrameRow], seal_seq: int
) -> dict[str, Any]:
    keys = [
        (
            event.id,
            event.t_ms,
            compute_start_us(row) + event.t_ms * 1000,
            event.type,
            event.frame_id,
            event.payload.decode(),
        )
        for event in events
    ]
    return {
        "seal_seq": seal_seq,
        "started_at": compute_start_us(row),
        "duration_ms": row.duration_ms,
        "event_count": len(events),
        "action_count": sum(is_action(event.type) for event in events),
        "frame_count": len(frames),
        "image_bytes": sum(frame.bytes for frame in frames),
        "rows_sha256": compute_events_digest(keys),
        "replayability": None,
        "payload_bytes": sum(len(event.payload) for event in events),
    }
