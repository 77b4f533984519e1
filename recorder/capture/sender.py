"""Sender of a capture: uploads in a thread of its own, so that the captured program never waits or fails.

Items that cannot be sent are dropped and counted: first frames, then events.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from recorder import limits
from recorder.client.client import Client
from recorder.client.encoding import encode_json
from recorder.client.errors import ApiError, ClientError
from recorder.client.upload_batches import CapturedFrame, EncodedFrame

_log = logging.getLogger(__name__)
MAX_EVENTS = 10_000
#: Frames that wait, and their bytes with those of their snapshots.
MAX_FRAMES = 5_000
MAX_FRAME_BYTES = 64 * 1024 * 1024
_FLUSH_S = 1.0


@dataclass
class CaptureStats:
    """Counts of a capture."""

    events: int = 0
    frames: int = 0
    dropped_events: int = 0
    dropped_frames: int = 0
    #: Failures inside the capture, which did not reach the program.
    errors: int = 0


@dataclass(frozen=True)
class SessionChoice:
    """The session that a capture creates, or one that is recording already."""

    workflow: str
    actor: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    session_id: str | None = None


class Sender:
    """Buffers of one session, and the thread that sends them."""

    def __init__(self, client: Client, choice: SessionChoice) -> None:
        self._client = client
        self._choice = choice
        self._events: deque[dict[str, Any]] = deque()
        self._frames: deque[EncodedFrame] = deque()
        self._tags: deque[tuple[str, int, dict[str, Any]]] = deque()
        self._frame_bytes = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_refused = False
        self._thread = threading.Thread(target=self._run_sending_thread, name="recorder-capture", daemon=True)
        self.stats = CaptureStats()
        #: Empty until the service has created the session.
        self.session_id = choice.session_id or ""

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def add_event(self, event: dict[str, Any]) -> None:
        """Queue an event; a full queue drops it."""
        with self._changed:
            if len(self._events) >= MAX_EVENTS or self._is_refused:
                self.stats.dropped_events += 1
                return
            self._events.append(event)
            if len(self._events) >= limits.EVENTS_PER_BATCH:
                self._changed.notify()

    def add_frame(self, frame: CapturedFrame) -> None:
        """Queue a frame; it is dropped if the queue is full or it has no form in JSON.

        It is queued as it is sent: as values, a snapshot takes much more memory.
        """
        try:
            encoded = EncodedFrame.of(frame)
        except (TypeError, ValueError) as error:
            self.stats.dropped_frames += 1
            self._count_send_failure(error)
            return
        with self._changed:
            is_full = len(self._frames) >= MAX_FRAMES or self._frame_bytes + encoded.size > MAX_FRAME_BYTES
            if is_full or self._is_refused:
                self.stats.dropped_frames += 1
                return
            self._frames.append(encoded)
            self._frame_bytes += encoded.size
            if len(self._frames) >= limits.FRAMES_PER_BATCH:
                self._changed.notify()

    def add_tag(self, name: str, t_ms: int, data: dict[str, Any]) -> None:
        """Queue a tag; data that have no form in JSON are left out, and count as an error."""
        try:
            copied = orjson.loads(encode_json(data))
        except (TypeError, ValueError) as error:
            copied = {}
            self._count_send_failure(error)
        with self._changed:
            if len(self._tags) < MAX_EVENTS:
                self._tags.append((name, t_ms, copied))

    def close(self, patience_s: float) -> None:
        """Send the rest and stop the session; what is not sent within `patience_s` seconds is dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._drop_unsent_items()
            self.stats.errors += 1
            _log.warning("The recording %s was not sent whole within %g s.", self.session_id, patience_s)

    def _run_sending_thread(self) -> None:
        try:
            self._send_until_closed()
        except Exception as error:
            # For example a client that was closed in the meantime.
            self._is_refused = True
            self.stats.errors += 1
            self._drop_unsent_items()
            _log.warning("A recording ended before its time: %s", type(error).__name__, exc_info=error)
            with suppress(Exception):  # the client may be what failed
                self._stop_session()

    def _send_until_closed(self) -> None:
        if not self.session_id:
            self._call_and_count_failure(self._create_session)
        while True:
            with self._changed:
                if not self._is_closing:
                    self._changed.wait(_FLUSH_S)
                is_last = self._is_closing
            if not self.session_id or self._is_refused:
                self._drop_unsent_items()
            else:
                self._send_all()
            if is_last:
                break
        if not self._is_refused:
            self._stop_session()

    def _stop_session(self) -> None:
        """Stop the session, unless the program created it."""
        if self.session_id and not self._choice.session_id:
            self._call_and_count_failure(lambda: self._client.stop(self.session_id))

    def _create_session(self) -> None:
        choice = self._choice
        session = self._client.create_session(
            choice.workflow, metadata=choice.metadata, actor=choice.actor, start=True
        )
        self.session_id = str(session["id"])

    def _send_all(self) -> None:
        """Send what is buffered: frames first, since events name them."""
        with self._changed:
            frames, self._frames, self._frame_bytes = list(self._frames), deque(), 0
            events, self._events = list(self._events), deque()
            tags, self._tags = list(self._tags), deque()
        for first in range(0, len(frames), limits.FRAMES_PER_BATCH):
            batch = frames[first : first + limits.FRAMES_PER_BATCH]
            sent = self._send_batch(batch, self._send_frames)
            self.stats.frames += sent
            self.stats.dropped_frames += len(batch) - sent
        for first in range(0, len(events), limits.EVENTS_PER_BATCH):
            some = events[first : first + limits.EVENTS_PER_BATCH]
            sent = self._send_batch(some, self._send_events)
            self.stats.events += sent
            self.stats.dropped_events += len(some) - sent
        for name, t_ms, data in tags:
            self._call_and_count_failure(
                lambda name=name, t_ms=t_ms, data=data: self._client.tag(  # type: ignore[misc]
                    self.session_id, name, data=data or None, t_ms=t_ms
                )
            )

    def _send_batch(self, items: list[Any], send: Callable[[list[Any]], None]) -> int:
        """Return how many items were sent: a batch is refused as a whole, so the rest goes item by item."""
        try:
            send(items)
            return len(items)
        except ApiError as error:
            self._count_send_failure(error)
            if error.status != 422 or len(items) == 1:
                return 0
        except ClientError as error:
            self._count_send_failure(error)
            return 0
        except (TypeError, ValueError) as error:  # an item has no form in JSON
            self._count_send_failure(error)
            if len(items) == 1:
                return 0
        return sum(self._send_batch([item], send) for item in items)

    def _send_frames(self, frames: list[EncodedFrame]) -> None:
        self._client.add_frames(self.session_id, frames)

    def _send_events(self, events: list[dict[str, Any]]) -> None:
        self._client.add_events(self.session_id, events)

    def _call_and_count_failure(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (ClientError, TypeError, ValueError) as error:
            self._count_send_failure(error)

    def _count_send_failure(self, error: Exception) -> None:
        self.stats.errors += 1
        if isinstance(error, ApiError) and error.status in (401, 403, 404, 409):
            # The session is gone, or the key: nothing more will be taken.
            self._is_refused = True
        _log.warning("Part of a recording was not sent: %s", error)

    def _drop_unsent_items(self) -> None:
        with self._changed:
            self.stats.dropped_events += len(self._events)
            self.stats.dropped_frames += len(self._frames)
            self._events.clear()
            self._frames.clear()
            self._tags.clear()
            self._frame_bytes = 0
