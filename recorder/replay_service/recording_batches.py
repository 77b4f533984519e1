"""Recordings of several sealed sessions, read from the lake together for their replayability. Decision 0044.

A read of a table costs milliseconds however few rows it returns, so that one read for some sessions takes a
small part of one read for each.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from recorder.digest import bucket_of
from recorder.models.session import SessionRow
from recorder.replay_service.dry_process import EventMessage, FrameMessage, RecordingMessage
from recorder.replay_service.recording import MOST_BYTES, MOST_EVENTS
from recorder.runtime import Runtime
from recorder.storage.lake_reads import read_again
from recorder.storage.lake_schemas import Kind

_FRAME_COLUMNS = ("frame_id", "t_ms", "dom_object", "dom_offset", "dom_length")
_EVENT_COLUMNS = ("event_id", "t_ms", "type", "frame_id", "payload")


class FramesMissing(Exception):
    """The lake lacks frames of a sealed session."""


def read_recordings(runtime: Runtime, rows: Sequence[SessionRow]) -> dict[str, RecordingMessage | None]:
    """Return the actions and frames of sealed sessions of one workspace and mode, by session.

    It is None for a session without snapshots, and for one that is too large to be replayed.

    Raises:
        FramesMissing: if the lake lacks frames of a session.
        Unavailable: if the lake does not answer.
    """
    recordings: dict[str, RecordingMessage | None] = dict.fromkeys(row.id for row in rows)
    partitions: dict[tuple[str, str], list[SessionRow]] = defaultdict(list)
    for row in rows:
        is_small = row.event_count <= MOST_EVENTS and row.event_bytes <= MOST_BYTES
        if is_small and row.frame_count:
            partitions[row.workflow, row.lake_date or ""].append(row)
    for sealed in partitions.values():
        frames = _read_rows(runtime, "frames", sealed, _FRAME_COLUMNS)
        if any(len(frames[row.id]) != row.frame_count for row in sealed):
            raise FramesMissing
        shown = [row for row in sealed if any(frame["dom_object"] for frame in frames[row.id])]
        events = _read_rows(runtime, "events", shown, _EVENT_COLUMNS, pl.col("is_action"))
        for row in shown:
            recordings[row.id] = RecordingMessage(
                row.id,
                [_to_event(event) for event in events[row.id]],
                [FrameMessage(state_tokens=[], **frame) for frame in frames[row.id]],
                [],
            )
    return recordings


def _read_rows(
    runtime: Runtime,
    kind: Kind,
    rows: Sequence[SessionRow],
    columns: Sequence[str],
    only: pl.Expr | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of sessions of one partition, by session and in order."""
    by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
    if not rows:
        return by_session
    ids = [row.id for row in rows]
    wanted = (
        (pl.col("workflow") == rows[0].workflow)
        & (pl.col("date") == rows[0].lake_date)
        & pl.col("bucket").is_in([bucket_of(session_id) for session_id in ids])
        & pl.col("session_id").is_in(ids)
    )
    if only is not None:
        wanted &= only
    tenant = rows[0].tenant
    read = read_again(
        lambda: runtime.lake.scan(kind, tenant).filter(wanted).select("session_id", *columns).collect()
    )
    # Ids are ordered by their bytes, as everywhere.
    for session_id, *values in read.sort("session_id", "t_ms", columns[0]).iter_rows():
        by_session[session_id].append(dict(zip(columns, values, strict=True)))
    return by_session


def _to_event(event: dict[str, Any]) -> EventMessage:
    payload = msgspec.Raw(event["payload"].encode())
    return EventMessage(event["event_id"], event["t_ms"], event["type"], event["frame_id"], payload)
