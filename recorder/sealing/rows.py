"""Facts of sessions as the rows of the lake's tables. Schemas: recorder/storage/lake_schemas.py."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from recorder.digest import bucket_of, canonical_json
from recorder.memory.steps import ALGO_VERSION
from recorder.models.frame import FrameRow
from recorder.sealing.batches import ClaimedBatch
from recorder.sealing.facts import SessionFacts, start_of
from recorder.storage.lake_schemas import LAYOUTS, Kind

_PLACE = ("workflow", "date", "bucket", "session_id")
# What a frame's row takes over from its index row as it is.
_INDEXED = (
    *("frame_id", "t_ms", "width", "height", "content_type", "bytes", "sha256", "object", "offset", "length"),
    *("dom_object", "dom_offset", "dom_length", "keyframe", "url"),
)


def build_tables(batch: ClaimedBatch, sessions: list[SessionFacts]) -> dict[Kind, pa.Table]:
    """The rows that a batch adds to each table of its lane."""
    places = {facts.row.id: _place(batch, facts) for facts in sessions}
    rows: dict[Kind, Iterable[dict[str, Any]]] = {
        "frames": _rows(places, sessions, _frames),
        "events": _rows(places, sessions, _events),
        "steps": _rows(places, sessions, _steps),
        "sessions": _rows(places, sessions, lambda facts: [_session(batch, facts)]),
    }
    return {kind: pa.Table.from_pylist(list(found), LAYOUTS[kind].schema) for kind, found in rows.items()}


def _rows(
    places: dict[str, dict[str, Any]], sessions: list[SessionFacts], make: Any
) -> Iterator[dict[str, Any]]:
    for facts in sessions:
        place = places[facts.row.id]
        for row in make(facts):
            yield {**place, **row}


def _place(batch: ClaimedBatch, facts: SessionFacts) -> dict[str, Any]:
    row = facts.row
    return dict(zip(_PLACE, (row.workflow, batch.date, bucket_of(row.id), row.id), strict=True))


def _events(facts: SessionFacts) -> Iterator[dict[str, Any]]:
    start_us = start_of(facts.row)
    pairs = zip(facts.events, facts.bound, facts.actions, strict=True)
    for seq, (event, frame_seq, action) in enumerate(pairs):
        yield {
            "event_id": event.id,
            "seq": seq,
            "t_ms": event.t_ms,
            "ts": start_us + event.t_ms * 1000,
            "type": event.type,
            "frame_id": event.frame_id,
            "frame_seq": frame_seq,
            "is_action": action,
            "payload": event.payload.decode(),
        }


def _frames(facts: SessionFacts) -> Iterator[dict[str, Any]]:
    start_us = start_of(facts.row)
    for seq, found in enumerate(facts.frames):
        yield {
            **{name: getattr(found.frame, name) for name in _INDEXED},
            "seq": seq,
            "ts": start_us + found.frame.t_ms * 1000,
            "dhash": found.dhash,
            "state_key": found.screen.state_key,
            "state_tokens": found.screen.state_tokens,
            "is_keyframe": found.is_keyframe,
            "n_events": found.n_events,
            "has_action": found.has_action,
            "rects": _rects(found.frame),
        }


def _rects(frame: FrameRow) -> str | None:
    rects = {"active_rect": frame.active_rect, "masked_rects": frame.masked_rects}
    given = {name: value for name, value in rects.items() if value is not None}
    return canonical_json(given).decode() if given else None


def _steps(facts: SessionFacts) -> Iterator[dict[str, Any]]:
    return ({"algo_version": ALGO_VERSION, **asdict(step)} for step in facts.steps)


def _session(batch: ClaimedBatch, facts: SessionFacts) -> dict[str, Any]:
    row = facts.row
    return {
        "seal_seq": batch.seal_seq(row.id) if row.seal_seq is None else row.seal_seq,
        "started_at": start_of(row),
        "duration_ms": row.duration_ms,
        "event_count": len(facts.events),
        "action_count": sum(facts.actions),
        "frame_count": len(facts.frames),
        "image_bytes": sum(found.frame.bytes for found in facts.frames),
        "rows_sha256": facts.rows_sha256,
        "replayability": None,
        "payload_bytes": sum(len(event.payload) for event in facts.events),
    }
