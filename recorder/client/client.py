"""Client of the HTTP interface, and the recorder of a session in progress. Spec §4, contract §2–§7."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from recorder.client.administration import Administration
from recorder.client.datasets import Datasets
from recorder.client.encoding import encode_json
from recorder.client.errors import BufferFull, ClientError, Unreachable
from recorder.client.replays import Replays
from recorder.client.sessions import Sessions
from recorder.client.upload_batches import CapturedFrame, EncodedFrame
from recorder.client.upload_queue import UploadQueue
from recorder.ids import new_id


class Client(Sessions, Datasets, Replays, Administration):
    """Client of the service with one method for each operation; close it, or use it as a context manager.

    Threads may share a client. Answers are the JSON objects of the interface. A method raises `ApiError` if
    the service refuses and `Unreachable` if it does not answer, after repeating what may be repeated.
    """


#: Default of what a recording buffers while the service does not answer.
_BUFFER_BYTES = 256 * 2**20
_OBJECT_MEMBERS = frozenset({"app", "target", "input", "trace", "data"})


class SessionRecorder:
    """Recorder of one session: created and started on entry, flushed and stopped on exit.

    After an exception of the block it flushes, tags the session `error` with the exception's type (the text
    may hold secrets) and raises the exception again; a keyboard interrupt stops it without a tag.
    A flush that the service refuses at the end counts as an exception of the block.
    Outside its block it records nothing, and a second block needs a new recorder: a RuntimeError.
    """

    def __init__(
        self,
        client: Client,
        workflow: str,
        *,
        actor: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        """Prepare a recording; nothing is sent before the block begins.

        Args:
            client: client of the service.
            workflow: slug of the workflow.
            actor: `{id, kind}` of who acts.
            metadata: metadata of the session.
            buffer_bytes: bytes that may wait while the service does not answer; then `event` and `frame`
                raise `BufferFull`.
        """
        self._client = client
        self._buffer_bytes = buffer_bytes
        self._workflow = workflow
        self._actor = actor
        self._metadata = metadata
        self._uploads = UploadQueue(client._transport.json)
        self._began = 0.0
        self._is_open = False
        #: Id of the session; empty before the block begins.
        self.id = ""

    def __enter__(self) -> Self:
        if self.id:
            raise RuntimeError(
                f"This SessionRecorder has recorded {self.id}. Make a new one for the next session."
            )
        session = self._client.create_session(
            self._workflow, metadata=self._metadata, actor=self._actor, start=True
        )
        self.id = session["id"]
        self._began = time.monotonic()
        self._is_open = True
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
        finally:
            self._is_open = False

    @property
    def now_ms(self) -> int:
        """Milliseconds since the recording began."""
        return int((time.monotonic() - self._began) * 1000)

    def event(self, type: str, *, t_ms: int | None = None, **members: Any) -> None:
        """Record an event; `members` are the event item's (`target`, `input`, `url`, `frame_id`, …).

        Raises:
            TypeError: if a member that is an object is given as something else, or has no form in JSON.
            ValueError: if a number is NaN or Infinity.
            BufferFull: if too much waits to be sent; this event was not recorded.
        """
        self._check_open()
        item = {"t_ms": self.now_ms if t_ms is None else t_ms, "type": type, **members}
        encoded = _encode_recorded_event(item)
        self._flush_full_buffer()
        if self._uploads.add_event(encoded):
            self.flush()

    def frame(self, image: bytes | bytearray, *, t_ms: int | None = None, **members: Any) -> str:
        """Record a screen (PNG, JPEG or WebP); returns its id, for the `frame_id` of events on it.

        Raises:
            TypeError: if the image is not bytes, or a member has no form in JSON.
            ValueError: if the image is none of these, or a number is NaN or Infinity.
            BufferFull: if too much waits to be sent; this frame was not recorded.
        """
        self._check_open()
        members.setdefault("id", new_id("frm"))
        frame = CapturedFrame.of(image, t_ms=self.now_ms if t_ms is None else t_ms, **members)
        encoded = EncodedFrame.of(frame)
        self._flush_full_buffer()
        if self._uploads.add_frame(encoded):
            self.flush()
        return str(frame.item["id"])

    def tag(self, name: str, *, t_ms: int | None = None, **data: Any) -> None:
        """Tag this moment; `data` is the tag's payload."""
        self._check_open()
        self._client.tag(self.id, name, data=data or None, t_ms=self.now_ms if t_ms is None else t_ms)

    def flush(self) -> None:
        """Send what is buffered; called automatically when a batch is full and at the end.

        What the service refuses is dropped, and everything else is sent. What it does not acknowledge stays
        buffered: the next flush sends it again, and the service stores it once.
        """
        self._uploads.send(self.id)

    def _check_open(self) -> None:
        """Check that the block runs: before it there is no session, and after it nothing sends the item."""
        if not self._is_open:
            raise RuntimeError(
                "Nothing was recorded: a SessionRecorder records only inside its block, "
                "`with SessionRecorder(client, workflow) as run:`."
            )

    def _flush_full_buffer(self) -> None:
        if self._uploads.size < self._buffer_bytes:
            return
        try:
            self.flush()
        except ClientError as error:
            if self._uploads.size >= self._buffer_bytes:
                raise BufferFull(self._buffer_bytes) from error

    def _close_session(self, error: BaseException | None) -> None:
        """Send what is buffered and stop the session, also if the service refuses a part."""
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
        if not isinstance(item[name], Mapping | None):
            raise TypeError(f"{name} takes a dict, not a value of type {type(item[name]).__name__}.")
    return encode_json(item)
