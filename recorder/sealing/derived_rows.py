"""Rows of the lake that are derived from a session of any size, portion by portion. Design §3.

These are the total order `(t_ms, id)`, the frame of each event, keyframes, action flags, steps, and the
digest of the rows. Memory holds a portion, and of the whole session some bytes per frame and the steps.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache

import orjson
import pyarrow as pa

from recorder.event_types import is_action
from recorder.hashing import canonical_json
from recorder.memory.steps.screens import Screen
from recorder.memory.steps.session_steps import StepBuilder
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.batch_items import HotItem
from recorder.row_digests import EventsDigest
from recorder.sealing.frame_digests import KEYFRAME_DISTANCE, FrameDigest, dhash_distance
from recorder.sealing.frame_index import FrameIndex
from recorder.sealing.lake_rows import build_frame_columns, build_lake_batch, compute_start_us

#: Number of first steps that become rows of `steps`; a session's path takes fewer (`graph.MAX_TRACE_STEPS`).
MAX_STEPS = 20_000

_is_action = lru_cache(maxsize=1_024)(is_action)


class FrameRowBuilder:
    """Builder of the frame rows of one session, portion by portion in the order `(t_ms, frame_id)`."""

    def __init__(self, row: SessionRow, date: str, index: FrameIndex) -> None:
        self._row, self._date, self._index = row, date, index
        self._seq = 0
        #: State key and picture digest of the last keyframe; None before the first frame.
        self.last_keyframe: tuple[str | None, int | None] | None = None
        self.image_bytes = 0

    def resume(self, seq: int, last_keyframe: tuple[str | None, int | None], image_bytes: int) -> None:
        """Restore the state after `seq` frames."""
        self._seq, self.last_keyframe, self.image_bytes = seq, last_keyframe, image_bytes

    def add(
        self, frames: Sequence[FrameRow], digests: Sequence[FrameDigest]
    ) -> tuple[pa.RecordBatch, pa.Array]:
        """Return the next rows of the frames table, and the features of screens that are new.

        `fill_frame_event_counts` fills in the rows' `n_events` and `has_action` later.
        """
        keyframes, features = [], []
        for frame, (screen, dhash) in zip(frames, digests, strict=True):
            is_keyframe = self._is_new_screen(frame, screen, dhash)
            if is_keyframe:
                self.last_keyframe = (screen.state_key, dhash)
            keyframes.append(is_keyframe)
            is_new = self._index.add_screen(screen.state_key, screen.features, screen.state_tokens)
            features.append(screen.features if is_new else None)
            self.image_bytes += frame.bytes
        n = len(frames)
        columns = build_frame_columns(frames, compute_start_us(self._row))
        columns |= {
            "seq": range(self._seq, self._seq + n),
            "dhash": [dhash for _, dhash in digests],
            "state_key": [screen.state_key for screen, _ in digests],
            "state_tokens": [screen.state_tokens for screen, _ in digests],
            "is_keyframe": keyframes,
            "n_events": [0] * n,
            "has_action": [False] * n,
        }
        self._seq += n
        rows = build_lake_batch("frames", self._row, self._date, columns, n)
        return rows, pa.array(features, pa.list_(pa.int64()))

    def _is_new_screen(self, frame: FrameRow, screen: Screen, dhash: int | None) -> bool:
        """Return whether the screen changed materially since the last keyframe (rule 1)."""
        if self.last_keyframe is None or frame.keyframe is True:
            return True
        state_key, last_dhash = self.last_keyframe
        return screen.state_key != state_key or dhash_distance(dhash, last_dhash) >= KEYFRAME_DISTANCE


class EventRowBuilder:
    """Builder of the event rows, steps and digest of one session, portion by portion in total order."""

    def __init__(self, row: SessionRow, date: str, index: FrameIndex, *, max_steps: int = MAX_STEPS) -> None:
        self._row, self._date, self._index = row, date, index
        self._digest = EventsDigest()
        self._start_us = compute_start_us(row)
        #: Events and actions bound to each frame.
        self._n_events = array("l", bytes(len(index) * array("l").itemsize))
        self._has_action = bytearray(len(index))
        self.steps = StepBuilder(max_steps=max_steps)
        self.event_count = self.action_count = self.payload_bytes = 0

    @property
    def rows_sha256(self) -> str:
        """Digest of the rows so far."""
        return self._digest.hexdigest()

    def add(self, events: Sequence[HotItem]) -> pa.RecordBatch:
        """Return the rows of the next events."""
        ids, times, types, frame_ids, bound, actions, payloads = [], [], [], [], [], [], []
        index, steps = self._index, self.steps
        for t_ms, event_id, _, data in events:
            item = orjson.loads(data)
            kind, frame_id = item["type"], item.get("frame_id")
            for name in ("id", "t_ms", "type", "frame_id"):
                item.pop(name, None)
            payload = canonical_json(item)
            frame_seq = index.bind(t_ms, frame_id)
            action = _is_action(kind)
            if not steps.is_full:
                item["id"], item["t_ms"], item["type"] = event_id, t_ms, kind
                steps.add(item, None if frame_seq is None else index.screen_at(frame_seq))
            ids.append(event_id)
            times.append(t_ms)
            types.append(kind)
            frame_ids.append(frame_id)
            bound.append(frame_seq)
            actions.append(action)
            payloads.append(payload.decode())
            self.payload_bytes += len(payload)
        first = self.event_count
        moments = [self._start_us + t_ms * 1000 for t_ms in times]
        self._digest.update(zip(ids, times, moments, types, frame_ids, payloads, strict=True))
        self._count_events(bound, actions)
        columns = {
            "event_id": ids,
            "seq": range(first, first + len(ids)),
            "t_ms": times,
            "ts": moments,
            "type": types,
            "frame_id": frame_ids,
            "frame_seq": bound,
            "is_action": actions,
            "payload": payloads,
        }
        return build_lake_batch("events", self._row, self._date, columns, len(ids))

    def add_written(self, rows: pa.RecordBatch) -> None:
        """Count and digest rows that an earlier run wrote; their steps are restored separately."""
        columns = {
            name: rows[name].to_pylist() for name in ("event_id", "t_ms", "type", "frame_id", "payload")
        }
        moments = rows["ts"].cast(pa.int64()).to_pylist()
        ids, times, types, frame_ids, payloads = columns.values()
        self._digest.update(zip(ids, times, moments, types, frame_ids, payloads, strict=True))
        self.payload_bytes += sum(len(payload.encode()) for payload in payloads)
        self._count_events(rows["frame_seq"].to_pylist(), rows["is_action"].to_pylist())

    def fill_frame_event_counts(self, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Return frame rows with the counts of their events filled in."""
        n = frames.num_rows
        first = frames["seq"][0].as_py() if n else 0
        counts = pa.array(self._n_events[first : first + n].tolist(), pa.int32())
        acted = pa.array([bool(flag) for flag in self._has_action[first : first + n]], pa.bool_())
        columns = dict(zip(frames.schema.names, frames.columns, strict=True))
        columns |= {"n_events": counts, "has_action": acted}
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=frames.schema)

    def _count_events(self, bound: Sequence[int | None], actions: Sequence[bool]) -> None:
        """Count events and actions, in total and for each frame that they are bound to."""
        for frame_seq, is_acting in zip(bound, actions, strict=True):
            if frame_seq is not None:
                self._n_events[frame_seq] += 1
                if is_acting:
                    self._has_action[frame_seq] = 1
        self.event_count += len(bound)
        self.action_count += sum(actions)
