"""Preparation of one large session in portions that a later run can go on behind. Design §3.

Frames are digested first, then event rows are written file by file in total order, then frame rows and
steps. Each portion ends with a row in `seal_portions`.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import islice
from typing import Any

import pyarrow as pa

from recorder import clock
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.event_portions import HotItem, Place, read_portion
from recorder.runtime import Runtime
from recorder.sealing.derived import EventWalk, FrameIndex, FrameWalk, pack_steps, restore_steps
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import ContentError
from recorder.sealing.frame_digests import SeenFrame
from recorder.sealing.portions import (
    DIGEST_WAIT_S,
    Hold,
    PortionLimits,
    add_state,
    content_of,
    discard_portions,
    read_frame_places,
    read_frames_named,
    read_states,
)
from recorder.sealing.rows import PreparedSession, build_steps
from recorder.storage.lake_files import LakeFile
from recorder.storage.lake_schemas import Kind

_AHEAD = 2
# Files that no commit names are deleted after a day (`LakeTable.delete_abandoned_files`).
_KEPT_MS = 12 * 3_600_000


class LargeSession:
    """One session, prepared portion by portion."""

    def __init__(
        self,
        runtime: Runtime,
        pool: DigestPool,
        row: SessionRow,
        *,
        date: str,
        name: str,
        hold: Hold,
        limits: PortionLimits,
    ) -> None:
        self.row = row
        self.files: list[tuple[Kind, LakeFile]] = []
        self.is_done = False
        self._runtime, self._pool, self._hold, self._limits = runtime, pool, hold, limits
        self._date, self._name = date, name
        #: Whether memory holds what the stored portions say; an error in between makes it untrue.
        self._is_loaded = False
        self._digesting: dict[int, tuple[list[FrameRow], Future[list[SeenFrame]]]] = {}

    @property
    def session_ids(self) -> list[str]:
        """Return the one session's id."""
        return [self.row.id]

    def advance(self) -> None:
        """Prepare the next portion, or wait a moment for its digests: see `is_done`.

        Raises:
            ContentError: if the session cannot be sealed.
            Unavailable: if a store or the database does not answer; call again later.
        """
        if not self._is_loaded:
            self._load()
        if self._digested < len(self._index) and not self._are_digests_ready():
            return
        self._is_loaded = False
        if self._digested < len(self._index):
            state = self._digest_frames()
        elif self._has_more:
            state = self._write_events()
        elif self._frame_objects_written < len(self._objects):
            state = self._write_frames()
        else:
            state = self._write_steps()
        with self._runtime.database.transaction(write=True) as db:
            self._hold(db)
            add_state(db, self.row.id, self._n, self._date, state)
        self._n += 1
        self._is_loaded = True
        self.is_done = state["stage"] == "steps"

    def prepared(self) -> PreparedSession:
        """Return what the graph and the control plane need, once all is written."""
        events = self._events
        return PreparedSession(
            row=self.row,
            steps=events.steps.steps,
            event_count=events.event_count,
            action_count=events.action_count,
            frame_count=len(self._index),
            image_bytes=self._frames.image_bytes,
            payload_bytes=events.payload_bytes,
            rows_sha256=events.rows_sha256,
        )

    def discard(self) -> None:
        """Delete the stored progress."""
        self.close()
        discard_portions(self._runtime, self.row.id, self._hold)
        self._is_loaded = False

    def close(self) -> None:
        """Give up digests that are under way."""
        for _, digests in self._digesting.values():
            digests.cancel()
        self._digesting.clear()

    def _load(self) -> None:
        """Take over the stored portions; if a part of them is gone, begin again."""
        with self._runtime.database.transaction(write=False) as db:
            states = read_states(db, self.row.id, self._date)
            places = read_frame_places(db, self.row.id)
        try:
            self._restore(places, states or [])
        except (KeyError, FileNotFoundError):
            states = None
        oldest = min((file.modified_ms for _, file in self.files), default=clock.now_ms())
        if oldest < clock.now_ms() - _KEPT_MS:
            states = None
        if states is None:
            discard_portions(self._runtime, self.row.id, self._hold)
            self._restore(places, [])

    def _restore(self, places: Sequence[tuple[int, str]], states: Sequence[dict[str, Any]]) -> None:
        self.close()
        self._index = FrameIndex(places)
        self._frames = FrameWalk(self.row, self._date, self._index)
        self._events = EventWalk(self.row, self._date, self._index, max_steps=self._limits.steps)
        self._n = len(states)
        self.files = []
        self._objects: list[tuple[str, int]] = []
        self._digested = self._frame_objects_written = 0
        self._last: Place | None = None
        self._has_more = True
        for state in states:
            if state["file"] is not None:
                self.files.append((state["kind"], LakeFile(**state["file"])))
            if state["stage"] == "digests":
                self._restore_digests(state)
            elif state["stage"] == "events":
                self._restore_events(state)
            elif state["stage"] == "frames":
                self._frame_objects_written = state["objects"]
            else:
                self.is_done = True

    def _digest_frames(self) -> dict[str, Any]:
        """Store the rows of the next frames, whose digests are ready."""
        begin = self._digested
        frames, digests = self._digesting.pop(begin)
        seen = digests.result()
        with content_of(self.row.id):
            rows, features = self._frames.add(frames, seen)
        key = f"sealing/{self.row.workspace_id}/{self.row.id}/{begin}.arrow"
        self._runtime.blobs.put(key, _pack(rows, features))
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
        """Let the pool digest the next frames and those behind them, and wait a moment for the next ones."""
        begin = self._digested
        for ahead in range(_AHEAD):
            self._submit(begin + ahead * self._limits.digested_frames)
        return not wait([self._digesting[begin][1]], DIGEST_WAIT_S).not_done

    def _submit(self, begin: int) -> None:
        ids = self._index.ids[begin : begin + self._limits.digested_frames]
        if begin in self._digesting or not ids:
            return
        with self._runtime.database.transaction(write=False) as db:
            frames = read_frames_named(db, self.row.id, ids)
        if len(frames) < len(ids):
            raise ContentError(
                self.row.id,
                "content_missing",
                "Frames of the session are gone from the database. Restore them from a backup and seal the "
                "session again.",
            )
        self._digesting[begin] = (frames, self._pool.submit(self.row.id, frames))

    def _restore_digests(self, state: dict[str, Any]) -> None:
        key = state["object"]
        rows = _unpack(self._runtime.blobs.get(key))
        for state_key, features in zip(rows["state_key"], rows["features"], strict=True):
            self._index.add_screen(state_key.as_py(), features.as_py() or ())
        self._digested += state["frames"]
        self._objects.append((key, state["frames"]))
        state_key, dhash = state["keyframe"]
        self._frames.resume(self._digested, (state_key, dhash), state["image_bytes"])

    def _write_events(self) -> dict[str, Any]:
        limits, walk = self._limits, self._events
        with content_of(self.row.id), self._runtime.database.transaction(write=False) as db:
            events, self._has_more = read_portion(
                db, self.row.id, after=self._last, max_events=limits.events, max_bytes=limits.bytes
            )
        # The last step may still grow.
        first_step = max(len(walk.steps.steps) - 1, 0)
        file = self._write("events", self._event_rows(events)) if events else None
        if events:
            self._last = events[-1][:3]
        return {
            "stage": "events",
            "kind": "events",
            "file": file,
            "last": self._last,
            "has_more": self._has_more,
            "first_step": first_step,
            "steps": pack_steps(self._index, walk.steps.steps[first_step:]),
            "announced": sorted(walk.steps.announced),
            "is_full": walk.steps.is_full,
        }

    def _event_rows(self, events: list[HotItem]) -> Iterator[pa.RecordBatch]:
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
        with content_of(self.row.id):
            return self._events.add(events)

    def _restore_events(self, state: dict[str, Any]) -> None:
        walk = self._events
        if state["file"] is not None:
            for rows in self._runtime.lake.read_file("events", self.row.tenant, LakeFile(**state["file"])):
                walk.add_written(rows)
            t_ms, event_id, position = state["last"]
            self._last = (t_ms, event_id, position)
        self._has_more = state["has_more"]
        del walk.steps.steps[state["first_step"] :]
        walk.steps.steps += restore_steps(self._index, state["steps"])
        walk.steps.announced = frozenset(state["announced"])
        walk.steps.is_full = state["is_full"]

    def _write_frames(self) -> dict[str, Any]:
        """Write the rows of the next frames: their digests are kept, their events are counted by now."""
        keys, count = [], 0
        for key, frames in islice(self._objects, self._frame_objects_written, None):
            keys.append(key)
            count += frames
            if count >= self._limits.frame_rows:
                break
        file = self._write("frames", self._frame_rows(keys))
        self._frame_objects_written += len(keys)
        return {"stage": "frames", "kind": "frames", "file": file, "objects": self._frame_objects_written}

    def _frame_rows(self, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for key in keys:
            rows = _unpack(self._runtime.blobs.get(key))
            yield self._events.with_events(rows.select(rows.schema.names[:-1]))

    def _write_steps(self) -> dict[str, Any]:
        steps = self._events.steps.steps
        file = self._write("steps", build_steps(self.row, self._date, steps)) if steps else None
        return {"stage": "steps", "kind": "steps", "file": file}

    def _write(self, kind: Kind, rows: Iterator[pa.RecordBatch]) -> LakeFile:
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


def _pack(rows: pa.RecordBatch, features: pa.Array) -> bytes:
    """Return frame rows and the features of new screens as bytes."""
    schema = rows.schema.append(pa.field("features", features.type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, features], schema=schema))
    return bytes(sink.getvalue())


def _unpack(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
