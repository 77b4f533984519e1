"""Whether the lake holds what the sessions say: rows counted against the sessions' own counts. Design §3."""

import time
from dataclasses import dataclass

import polars as pl
from sqlmodel import select

from recorder.models.operations import SealCounterRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant

# A batch lands in the tables one after the other, so a look in between sees a difference that passes.
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.5


@dataclass(frozen=True)
class LaneCounts:
    """Rows of one workspace and mode: as the sealed sessions count them, and as the lake holds them."""

    workspace_id: str
    mode: str
    sessions: int
    expected_events: int
    events: int
    expected_frames: int
    frames: int

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing and nothing is there twice."""
        return (self.events, self.frames) == (self.expected_events, self.expected_frames)


def count_lanes(runtime: Runtime) -> list[LaneCounts]:
    """The counts of every workspace and mode; one that differs is looked at again: a batch may be landing."""
    with runtime.database.transaction(write=False) as db:
        lanes = sorted({(row.workspace_id, row.mode) for row in db.exec(select(SealCounterRow))})
    return [_count_settled(runtime, Tenant(workspace_id, mode)) for workspace_id, mode in lanes]


def _count_settled(runtime: Runtime, tenant: Tenant) -> LaneCounts:
    counts = _count(runtime, tenant)
    for _ in range(_LOOKS - 1):
        if counts.is_complete:
            break
        time.sleep(_BETWEEN_LOOKS_S)
        counts = _count(runtime, tenant)
    return counts


def _count(runtime: Runtime, tenant: Tenant) -> LaneCounts:
    sessions, events, frames = pl.collect_all(
        [
            runtime.lake.scan("sessions", tenant).select(
                pl.len(), pl.col("event_count").sum(), pl.col("frame_count").sum()
            ),
            runtime.lake.scan("events", tenant).select(pl.len()),
            runtime.lake.scan("frames", tenant).select(pl.len()),
        ]
    )
    count, expected_events, expected_frames = sessions.row(0)
    return LaneCounts(
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        sessions=count,
        expected_events=expected_events,
        events=events.item(),
        expected_frames=expected_frames,
        frames=frames.item(),
    )
