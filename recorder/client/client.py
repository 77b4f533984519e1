"""Client of the HTTP interface, and the recorder of a session in progress. Spec §4, contract §2–§7."""

import re
import time
from types import TracebackType
from typing import Any, Self

from recorder import limits
from recorder.client.administration import Administration
from recorder.client.datasets import Datasets
from recorder.client.encoding import encode_json
from recorder.client.errors import ApiError, ClientError, Unreachable
from recorder.client.replays import Replays
from recorder.client.sessions import Sessions
from recorder.client.upload_batches import CapturedFrame, event_batch_calls
from recorder.ids import new_id


class Client(Sessions, Datasets, Replays, Administration):
    """Client of the service with one method for each operation; close it, or use it as a context manager.

    Threads may share a client. Answers are the JSON objects of the interface. A method raises `ApiError` if
    the service refuses and `Unreachable` if it does not answer, after repeating what may be repeated.
    """


_FLUSH_BYTES = 8 * 1024 * 1024
_OBJECT_MEMBERS = frozenset({"app", "target", "input", "trace", "data"})
_EVENT = re.compile(r"/events/(\d+)(/|$)")


class SessionRecorder:
    """Recorder of one session: created and started on entry, flushed and stopped on exit.

    After an exception of the block it flushes, tags the session `error` with the exception's type (the text
    may hold secrets) and raises the exception again; a keyboard interrupt stops it without a tag.
    A flush that the service refuses at the end counts as an exception of the block.
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
        #: JSON of each event, since `event` encodes it in order to check it.
        self._events: list[bytes] = []
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
        try:
            self._close_session(error)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Closing the recording {self.id} failed: {failure}")

    @property
    def now_ms(self) -> int:
        """Milliseconds since the recording began."""
        return int((time.monotonic() - self._began) * 1000)

    def event(self, type: str, *, t_ms: int | None = None, **members: Any) -> None:
        """Record an event; `members` are the event item's (`target`, `input`, `url`, `frame_id`, …).

        Raises:
            TypeError: if a member that is an object is given as something else, or has no form in JSON.
            ValueError: if a number is NaN or Infinity.
        """
        item = {"t_ms": self.now_ms if t_ms is None else t_ms, "type": type, **members}
        self._events.append(_encode_recorded_event(item))
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
        try:
            self._client.add_events(self.id, events)
        except ApiError as error:
            self._send_events_before(error, events)
            raise

    def _send_events_before(self, error: ApiError, events: list[bytes]) -> None:
        """Send the events before the first refused one; after a buffer of several requests, none."""
        numbers = [
            int(match[1]) for item in error.errors if (match := _EVENT.match(str(item.get("pointer"))))
        ]
        if not numbers or len(list(event_batch_calls(self.id, events))) > 1:
            return
        try:
            self._client.add_events(self.id, events[: min(numbers)])
        except ClientError as failure:
            error.add_note(f"The {min(numbers)} events before it could not be sent: {failure}")

    def _close_session(self, error: BaseException | None) -> None:
        """Send the buffers and stop the session, also if the service refuses what is in the buffers."""
        try:
            self.flush()
        except Unreachable:
            raise  # The tag and the stop would wait for the same service again.
        except Exception as failure:
            try:
                self._stop_session(error or failure)
            except ClientError as refusal:
                failure.add_note(f"The recording {self.id} could not be stopped: {refusal}")
            raise
        self._stop_session(error)

    def _stop_session(self, error: BaseException | None) -> None:
        """Stop the session, with the tag `error` and the type of an exception."""
        if isinstance(error, Exception):
            self.tag("error", type=type(error).__name__)
        self._client.stop(self.id)


def _encode_recorded_event(item: dict[str, Any]) -> bytes:
    """Return the JSON of an event; refuse one that cannot be sent. The service checks the rest."""
    for name in _OBJECT_MEMBERS & item.keys():
        if not isinstance(item[name], dict | None):
            raise TypeError(f"{name} takes a dict, not a value of type {type(item[name]).__name__}.")
    return encode_json(item)
