"""Recording of a live replay's own run, through the functions that take clients' uploads. Contract §8.

A thread checks, masks and stores what the replay does, so that its steps do not wait for it. If it cannot,
the replay goes on without: its journal alone decides what becomes of it.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson

from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import ImageTooLarge, InvalidImage, RecorderError, Unavailable, ValidationFailed
from recorder.ids import new_id
from recorder.masking.masker import Masker
from recorder.media_types import JSON
from recorder.models.frame import FrameItem
from recorder.recording.event_batches import check_event_batch, pack_event_batch
from recorder.recording.frames import CheckedUpload, FrameUpload, discard_frame_object
from recorder.recording.ingest import IngestWriter
from recorder.recording.item_masking import list_event_items_to_mask, list_frame_texts_to_mask
from recorder.runtime import Runtime

log = logging.getLogger("recorder.replays")

_ItemT = TypeVar("_ItemT")

#: Items that wait before a step waits too.
_MOST_WAITING = 16
_ITEMS_AT_ONCE, _FRAMES_AT_ONCE = 50, 4
_TRIES, _PAUSE_S = 3, 1.0
#: Time for what is left, at the end.
_CLOSE_S = 30.0


@dataclass(frozen=True)
class _Frame:
    frame_id: str
    item: FrameItem
    picture: bytes


class ReplayRunRecorder:
    """The session that a live replay records; `close` stores what is left."""

    def __init__(self, runtime: Runtime, caller: Caller, session_id: str, masker: Masker | None) -> None:
        """Begin to store; the session records already.

        Args:
            runtime: the deployment.
            caller: tenant and tier of the replay.
            session_id: the session.
            masker: masks texts; None where nothing is masked.
        """
        self._runtime, self._caller, self._session_id, self._masker = runtime, caller, session_id, masker
        self._began = time.monotonic()
        self._waiting: queue.Queue[Mapping[str, Any] | _Frame | None] = queue.Queue(_MOST_WAITING)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._store_queued_items, name="live-recording", daemon=True)
        self._thread.start()

    @property
    def now_ms(self) -> int:
        """Milliseconds since the recording began."""
        return min(limits.T_MS_MAX, int((time.monotonic() - self._began) * 1000))

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Record an event, as clients send it."""
        self._queue_item(event)

    def add_frame(
        self, picture: bytes, *, t_ms: int, url: str, dom: Any, rects: list[list[int | float]]
    ) -> str:
        """Record a JPEG picture with the snapshot of the page; return the frame's id."""
        frame_id = new_id("frm")
        item = FrameItem(t_ms, "image/jpeg", id=frame_id, part=frame_id, dom=dom, url=url)
        if rects:
            item.masked_rects = rects
        self._queue_item(_Frame(frame_id, item, picture))
        return frame_id

    def close(self) -> None:
        """Store what waits, and end the thread."""
        self._queue_item(None)
        self._thread.join(_CLOSE_S)

    def _queue_item(self, item: Mapping[str, Any] | _Frame | None) -> None:
        while not self._has_ended.is_set():
            try:
                self._waiting.put(item, timeout=1.0)
                return
            except queue.Full:
                continue

    def _store_queued_items(self) -> None:
        try:
            size = self._runtime.settings.session_size
            writer = IngestWriter(self._runtime.database, session_size=size, records_replays=True)
            try:
                while self._store_some(writer):
                    pass
            finally:
                writer.close()
        except RecorderError as error:  # stopped, deleted or full
            log.info("session %s: the replay is not recorded any further: %s", self._session_id, error)
        except Exception:  # whatever it was: the replay goes on
            log.exception("session %s", self._session_id)
        finally:
            self._has_ended.set()

    def _store_some(self, writer: IngestWriter) -> bool:
        """Store what waits; return False at the end.

        Raises:
            RecorderError: if the session takes nothing more.
        """
        items = [self._waiting.get()]
        while len(items) < _ITEMS_AT_ONCE and not self._waiting.empty():
            items.append(self._waiting.get_nowait())
        frames = [item for item in items if isinstance(item, _Frame)]
        events = [item for item in items if item is not None and not isinstance(item, _Frame)]
        for start in range(0, len(frames), _FRAMES_AT_ONCE):
            self._store(frames[start : start + _FRAMES_AT_ONCE], partial(self._store_frames, writer))
        if events:
            self._store(events, partial(self._store_events, writer))
        return None not in items

    def _store(self, items: Sequence[_ItemT], store: Callable[[Sequence[_ItemT]], None]) -> None:
        """Store items; one that the service refuses, such as too large a snapshot, is left out."""
        try:
            store(items)
        except (ValidationFailed, ImageTooLarge, InvalidImage) as error:
            if len(items) > 1:
                for item in items:
                    self._store([item], store)
            else:
                log.info("session %s: a part of the replay is not recorded: %s", self._session_id, error)

    def _store_events(self, writer: IngestWriter, events: Sequence[Mapping[str, Any]]) -> None:
        body = orjson.dumps({"events": events})
        checked = check_event_batch(self._caller, body, content_type=JSON, batch_key=None)
        changes = {} if self._masker is None else self._masker.find_changes(list_event_items_to_mask(body))
        batch = pack_event_batch(self._caller, self._session_id, checked, changes)
        _retry_run_recording(lambda: asyncio.run(writer.submit(batch)))

    def _store_frames(self, writer: IngestWriter, frames: Sequence[_Frame]) -> None:
        items, pictures = (
            [frame.item for frame in frames],
            {frame.frame_id: frame.picture for frame in frames},
        )
        upload = FrameUpload(self._caller, self._session_id, items, pictures, None)
        checked = _retry_run_recording(lambda: upload.check(self._runtime.database))
        assert isinstance(checked, CheckedUpload)  # without a batch id none was answered before
        documents = list_frame_texts_to_mask(checked.frames)
        changes = {} if self._masker is None else self._masker.find_changes(documents)
        batch = _retry_run_recording(lambda: checked.store(self._runtime.blobs, changes))
        try:
            _retry_run_recording(lambda: asyncio.run(writer.submit(batch)))
        except Unavailable:
            raise  # the batch may have been stored, so its bytes must stay
        except RecorderError:
            discard_frame_object(self._runtime.blobs, batch)
            raise


def _retry_run_recording(call: Callable[[], _ItemT]) -> _ItemT:
    """Return what a call returns; it is repeated while a store or the database does not answer."""
    for _ in range(_TRIES - 1):
        try:
            return call()
        except Unavailable:
            time.sleep(_PAUSE_S)
    return call()
