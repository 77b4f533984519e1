"""Client of the HTTP interface, and the recorder of a session in progress. Spec §4, contract §2–§7."""

import time
from types import TracebackType
from typing import Any, Self

from recorder import limits
from recorder.client.administration import Administration
from recorder.client.batches import CapturedFrame
from recorder.client.datasets import Datasets
from recorder.client.errors import ClientError
from recorder.client.recording import RecordingRequests
from recorder.client.replays import Replays
from recorder.ids import new_id


class Client(RecordingRequests, Datasets, Replays, Administration):
    """Client of the service with one method for each operation; close it, or use it as a context manager.

    Threads may share a client. Answers are the JSON objects of the interface. A method raises `ApiError` if
    the service refuses and `Unreachable` if it does not answer, after repeating what may be repeated.
    """


_FLUSH_BYTES = 8 * 1024 * 1024


class SessionRecorder:
    """Recorder of one session: created and started on entry, flushed and stopped on exit.

    After an exception of the block it flushes, tags the session `error` with the exception's type (the text
    may hold secrets) and raises the exception again; a keyboard interrupt stops it without a tag.
    """

    def __init__(
        self,
        client: Client,
        workflow: str,
        *,
        actor: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._workflow = workflow
        self._actor = actor
        self._metadata = metadata
        self._events: list[dict[str, Any]] = []
        self._frames: list[CapturedFrame] = []
        self._frame_bytes = 0
        self._began = 0.0
        #: Id of the session; empty before the block begins.
        self.id = ""

    def __enter__(self) -> Self:
        session = self._client.create_session(
            self._workflow, metadata=self._metadata, actor=self._actor, start=True
        )
        self.id = session["id"]
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()
            self._client.stop(self.id)
            return
        try:
            self.flush()
            if isinstance(error, Exception):
                self.tag("error", type=type(error).__name__)
            self._client.stop(self.id)
        except ClientError as failure:
            error.add_note(f"The recording {self.id} could not be closed: {failure}")

    @property
    def now_ms(self) -> int:
        """Milliseconds since the recording began."""
        return int((time.monotonic() - self._began) * 1000)

    def event(self, type: str, *, t_ms: int | None = None, **members: Any) -> None:
        """Record an event; `members` are the event item's (`target`, `input`, `url`, `frame_id`, …)."""
        self._events.append({"t_ms": self.now_ms if t_ms is None else t_ms, "type": type, **members})
        if len(self._events) >= limits.EVENTS_PER_BATCH:
            self.flush()

    def frame(self, image: bytes, *, t_ms: int | None = None, **members: Any) -> str:
        """Record a screen (PNG, JPEG or WebP); returns its id, for the `frame_id` of events on it."""
        members.setdefault("id", new_id("frm"))
        frame = CapturedFrame.of(image, t_ms=self.now_ms if t_ms is None else t_ms, **members)
        self._frames.append(frame)
        self._frame_bytes += len(image)
        if len(self._frames) >= limits.FRAMES_PER_BATCH or self._frame_bytes >= _FLUSH_BYTES:
            self.flush()
        return str(frame.item["id"])

    def tag(self, name: str, *, t_ms: int | None = None, **data: Any) -> None:
        """Tag this moment; `data` is the tag's payload."""
        self._client.tag(self.id, name, data=data or None, t_ms=self.now_ms if t_ms is None else t_ms)

    def flush(self) -> None:
        """Send the buffers; called automatically when a batch is full and at the end."""
        # Emptied before sending: after an error the contents may be stored, and are not sent again.
        frames, self._frames, self._frame_bytes = self._frames, [], 0
        self._client.add_frames(self.id, frames)
        events, self._events = self._events, []
        self._client.add_events(self.id, events)
