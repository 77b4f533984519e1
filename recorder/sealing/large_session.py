"""Large session, prepared in portions that a later run can continue. Design §3.

Frames are digested first, then the events are sorted in runs, then event rows are written file by file in
total order, then frame rows and steps. Each portion ends with a row in `seal_portions`.
"""

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa

from recorder import clock
from recorder.memory.steps.session_steps import OPEN_STEPS, PointerAct
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.batch_items import EventOrderKey, HotItem, read_batch_items
from recorder.runtime import Runtime
from recorder.sealing.derived_rows import EventRowBuilder, FrameRowBuilder
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.event_runs import (
    EventRun,
    EventRunChunk,
    merge_event_runs,
    require_event_runs,
    take_events_of_runs,
    write_event_run,
)
from recorder.sealing.failures import ContentError, convert_to_content_errors
from recorder.sealing.frame_digests import FrameDigest
from recorder.sealing.frame_index import (
    FrameIndex,
    pack_steps_with_frame_index,
    restore_steps_with_frame_index,
)
from recorder.sealing.lake_rows import SessionWithLakeRows, build_step_rows
from recorder.sealing.portions import (
    PortionLimits,
    RequireLease,
    discard_portions,
    read_frame_times_for_portions,
    read_named_frames_for_portion,
    read_portion_states,
    store_portion_state,
)
from recorder.storage.lake_files import LakeFile
from recorder.storage.lake_schemas import LakeKind

#: Portions of frames whose digests are computed ahead.
_AHEAD = 2
# Files that no commit names are deleted after a day (`lake_cleanup.delete_unused_files`).
_KEPT_MS = 12 * 3_600_000


class LargeSession:
    """Large session that is prepared portion by portion."""

    def __init__(
        self,
        runtime: Runtime,
        pool: DigestPool,
        row: SessionRow,
        *,
        date: str,
        name: str,
        require_lease: RequireLease,
        limits: PortionLimits,
    ) -> None:
        self.row = row
        self.files: list[tuple[LakeKind, LakeFile]] = []
        self.is_done = False
        self._runtime, self._pool, self._limits = runtime, pool, limits
        self._require_lease = require_lease
        self._date, self._name = date, name
        #: Whether the state in memory equals the stored portions; after an error it may differ.
        self._is_loaded = False
        self._digesting: dict[int, tuple[list[FrameRow], Future[list[FrameDigest]]]] = {}

    @property
    def session_ids(self) -> list[str]:
        """Id of the session."""
        return [self.row.id]

    def advance(self) -> None:
        """Prepare the next portion, or wait a moment for its digests; `is_done` is set after the last one.

        Raises:
            ContentError: if the session cannot be sealed.
            Unavailable: if a store or the database does not answer; call again later.
        """
        if not self._is_loaded:
            self._load_portions()
        if self._digested < len(self._index) and not self._are_digests_ready():
            return
        self._is_loaded = False
        if self._digested < len(self._index):
            state = self._digest_frames()
        elif self._run_position is not None:
            state = self._write_run(self._run_position)
        elif self._has_more:
            state = self._write_events_portion()
        elif self._frame_objects_written < len(self._objects):
            state = self._write_frames()
        else:
            state = self._write_steps()
        with self._runtime.database.transaction(write=True) as db:
            self._require_lease(db)
            store_portion_state(db, self.row.id, self._n, self._date, state)
        self._n += 1
        self._is_loaded = True
        self.is_done = state["stage"] == "steps"

    def list_prepared(self) -> list[SessionWithLakeRows]:
        """Return the prepared session for the graph and the control plane, once all files are written."""
        events = self._events
        prepared = SessionWithLakeRows(
            row=self.row,
            steps=events.steps.steps,
            event_count=events.event_count,
            action_count=events.action_count,
            frame_count=len(self._index),
            image_bytes=self._frames.image_bytes,
            payload_bytes=events.payload_bytes,
            rows_sha256=events.rows_sha256,
        )
        return [prepared]

    def discard(self) -> None:
        """Delete the stored progress."""
        self.close()
        discard_portions(self._runtime, self.row.id, self._require_lease)
        self._is_loaded = False

    def close(self) -> None:
        """Cancel digests that are under way."""
        for _, digests in self._digesting.values():
            digests.cancel()
        self._digesting.clear()

    def _load_portions(self) -> None:
        """Load the stored portions; if a part of them is missing, begin again."""
        with self._runtime.database.transaction(write=False) as db:
            states = read_portion_states(db, self.row.id, self._date)
            frames = read_frame_times_for_portions(db, self.row.id)
        try:
            self._restore_portions(frames, states or [])
        except (KeyError, FileNotFoundError):
            states = None
        oldest = min((file.modified_ms for _, file in self.files), default=clock.now_ms())
        if oldest < clock.now_ms() - _KEPT_MS:
            states = None
        if states is None:
            discard_portions(self._runtime, self.row.id, self._require_lease)
            self._restore_portions(frames, [])

    def _restore_portions(
        self, frames: Sequence[tuple[int, str, int]], states: Sequence[dict[str, Any]]
    ) -> None:
        """Continue after the stored portions of an earlier run: frames, events and files."""
        self.close()
        self._index = FrameIndex([(t_ms, frame_id) for t_ms, frame_id, _ in frames])
        self._pixels = array("l", [pixels for _, _, pixels in frames])
        self._frames = FrameRowBuilder(self.row, self._date, self._index)
        self._events = EventRowBuilder(self.row, self._date, self._index, max_steps=self._limits.steps)
        self._n = len(states)
        self.files = []
        self._objects: list[tuple[str, int]] = []
        self._digested = self._frame_objects_written = 0
        self._runs: list[EventRun] = []
        #: The batches that begin after this position are in no run yet; None if all are.
        self._run_position: int | None = 0
        #: The events that follow `_last`, out of the runs; None until they are read.
        self._merged: Iterator[HotItem] | None = None
        self._last: EventOrderKey | None = None
        self._has_more = True
        for state in states:
            if state["file"] is not None:
                self.files.append((state["kind"], LakeFile(**state["file"])))
            if state["stage"] == "digests":
                self._restore_digest_portion(state)
            elif state["stage"] == "runs":
                self._restore_event_run(state)
            elif state["stage"] == "events":
                self._restore_events_portion(state)
            elif state["stage"] == "frames":
                self._frame_objects_written = state["objects"]
            else:
                self.is_done = True
        if self._has_more:
            require_event_runs(self._runtime.blobs, self._runs)

    def _digest_frames(self) -> dict[str, Any]:
        """Store the rows of the next frames, whose digests are ready."""
        begin = self._digested
        frames, digests = self._digesting.pop(begin)
        frame_digests = digests.result()
        with convert_to_content_errors(self.row.id):
            rows, features = self._frames.add(frames, frame_digests)
        key = f"sealing/{self.row.workspace_id}/{self.row.id}/{begin}.arrow"
        self._runtime.blobs.put(key, _pack_large_session_frames(rows, features))
        self._digested += len(frames)
        self._objects.append((key, len(frames)))
        return {
            "stage": "digests",
            "file": None,
            "object": key,
            "frames": len(frames),
            "keyframe": self._frames.last_keyframe,
            "image_bytes": self._frames.image_bytes,
        }

    def _are_digests_ready(self) -> bool:
        """Submit the next portions of frames, and return whether the first one's digests are ready."""
        begin = self._digested
        for _ in range(_AHEAD):
            begin = self._submit_frames(begin)
        return not wait([self._digesting[self._digested][1]], self._limits.digest_wait_s).not_done

    def _submit_frames(self, begin: int) -> int:
        """Let the digests of a portion of frames be computed; return the number of the frame after it."""
        end = self._end_of_portion(begin)
        ids = self._index.ids[begin:end]
        if begin in self._digesting or not ids:
            return end
        with self._runtime.database.transaction(write=False) as db:
            frames = read_named_frames_for_portion(db, self.row.id, ids)
        if len(frames) < len(ids):
            raise ContentError(
                self.row.id,
                "content_missing",
                "Frames of the session are missing in the database. Restore them from a backup and seal the "
                "session again.",
            )
        digests = self._pool.submit(self.row.id, frames, workspace_id=self.row.workspace_id)
        self._digesting[begin] = (frames, digests)
        return end

    def _end_of_portion(self, begin: int) -> int:
        """Return the end of the frames from `begin` that are digested together, at least one."""
        pixels = self._pixels[begin : begin + self._limits.digested_frames]
        fitting = sum(total <= self._limits.digested_pixels for total in accumulate(pixels))
        return begin + min(len(pixels), max(1, fitting))

    def _restore_digest_portion(self, state: dict[str, Any]) -> None:
        key = state["object"]
        rows = _unpack_large_session_frames(self._runtime.blobs.get(key))
        screens = zip(rows["state_key"], rows["features"], rows["state_tokens"], strict=True)
        for state_key, features, tokens in screens:
            self._index.add_screen(state_key.as_py(), features.as_py() or (), tokens.as_py())
        self._digested += state["frames"]
        self._objects.append((key, state["frames"]))
        state_key, dhash = state["keyframe"]
        self._frames.resume(self._digested, (state_key, dhash), state["image_bytes"])

    def _write_run(self, after_position: int) -> dict[str, Any]:
        """Store the events of the next batches in total order."""
        limits = self._limits
        with convert_to_content_errors(self.row.id), self._runtime.database.transaction(write=False) as db:
            items, self._run_position = read_batch_items(
                db,
                self.row.id,
                after_position=after_position,
                max_events=limits.events,
                max_bytes=limits.bytes,
            )
        state = {"stage": "runs", "file": None, "position": self._run_position}
        if not items:
            return state
        key = f"sealing/{self.row.workspace_id}/{self.row.id}/after-{after_position}.events"
        run = write_event_run(self._runtime.blobs, key, items)
        self._runs.append(run)
        chunks = [list(chunk) for chunk in run.chunks]
        return state | {"object": key, "chunks": chunks, "last": run.last}

    def _restore_event_run(self, state: dict[str, Any]) -> None:
        self._run_position = state["position"]
        if "object" in state:
            chunks = [
                EventRunChunk(offset, length, tuple(first)) for offset, length, first in state["chunks"]
            ]
            self._runs.append(EventRun(state["object"], chunks, tuple(state["last"])))

    def _write_events_portion(self) -> dict[str, Any]:
        limits, walk = self._limits, self._events
        if self._merged is None:
            self._merged = merge_event_runs(self._runtime.blobs, self._runs, self._last)
        events, self._has_more = take_events_of_runs(
            self._merged, max_events=limits.events, max_bytes=limits.bytes
        )
        # The last steps may still change.
        first_step = max(len(walk.steps.steps) - OPEN_STEPS, 0)
        file = self._write_lake_file("events", self._build_event_rows(events)) if events else None
        if events:
            self._last = events[-1][:3]
        return {
            "stage": "events",
            "kind": "events",
            "file": file,
            "last": self._last,
            "has_more": self._has_more,
            "first_step": first_step,
            "steps": pack_steps_with_frame_index(self._index, walk.steps.steps[first_step:]),
            "announced": sorted(walk.steps.announced),
            "pointer_acts": [list(act) for act in walk.steps.pointer_acts],
            "is_full": walk.steps.is_full,
        }

    def _build_event_rows(self, events: list[HotItem]) -> Iterator[pa.RecordBatch]:
        part: list[HotItem] = []
        size = 0
        for event in events:
            part.append(event)
            size += len(event[3])
            if len(part) == self._limits.events_at_once or size >= self._limits.bytes_at_once:
                yield self._add_events(part)
                part, size = [], 0
        if part:
            yield self._add_events(part)

    def _add_events(self, events: Sequence[HotItem]) -> pa.RecordBatch:
        with convert_to_content_errors(self.row.id):
            return self._events.add(events)

    def _restore_events_portion(self, state: dict[str, Any]) -> None:
        walk = self._events
        if state["file"] is not None:
            for rows in self._runtime.lake.read_file("events", self.row.tenant, LakeFile(**state["file"])):
                walk.add_written(rows)
            t_ms, event_id, position = state["last"]
            self._last = (t_ms, event_id, position)
        self._has_more = state["has_more"]
        del walk.steps.steps[state["first_step"] :]
        walk.steps.steps += restore_steps_with_frame_index(self._index, state["steps"])
        walk.steps.announced = frozenset(state["announced"])
        walk.steps.pointer_acts = [PointerAct(*act) for act in state["pointer_acts"]]
        walk.steps.is_full = state["is_full"]

    def _write_frames(self) -> dict[str, Any]:
        """Write the rows of the next frames, once all events are counted."""
        keys, count = [], 0
        for key, frames in islice(self._objects, self._frame_objects_written, None):
            keys.append(key)
            count += frames
            if count >= self._limits.frame_rows:
                break
        file = self._write_lake_file("frames", self._build_frame_rows(keys))
        self._frame_objects_written += len(keys)
        return {"stage": "frames", "kind": "frames", "file": file, "objects": self._frame_objects_written}

    def _build_frame_rows(self, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for key in keys:
            rows = _unpack_large_session_frames(self._runtime.blobs.get(key))
            yield self._events.fill_frame_event_counts(rows.select(rows.schema.names[:-1]))

    def _write_steps(self) -> dict[str, Any]:
        steps = self._events.steps.steps
        file = self._write_lake_file("steps", build_step_rows(self.row, self._date, steps)) if steps else None
        return {"stage": "steps", "kind": "steps", "file": file}

    def _write_lake_file(self, kind: LakeKind, rows: Iterator[pa.RecordBatch]) -> LakeFile:
        file = self._runtime.lake.write_file(
            kind,
            self.row.tenant,
            rows,
            workflow=self.row.workflow,
            date=self._date,
            name=f"{self._name}-{self._n}",
        )
        self.files.append((kind, file))
        return file


def _pack_large_session_frames(rows: pa.RecordBatch, features: pa.Array) -> bytes:
    """Return frame rows and the features of new screens as an Arrow stream."""
    schema = rows.schema.append(pa.field("features", features.type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, features], schema=schema))
    return bytes(sink.getvalue())


def _unpack_large_session_frames(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
