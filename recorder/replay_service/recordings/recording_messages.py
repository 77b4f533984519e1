"""Messages with which recordings go to processes within limits: those read the snapshots from the stores.

It imports neither database nor lake, so that the processes start quickly.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec
import orjson
import zstandard

from recorder import limits
from recorder.errors import Unavailable
from recorder.replay_service.recordings.stored_snapshots import SnapshotLocation, StoredSnapshots
from recorder.replays.recorded_session import RecordedEvent, RecordedFrame, RecordedSession, RecordedTag
from recorder.storage.blobs import Blobs

#: Snapshots that this process read last, of the size in bytes that most have.
_SHARED_SNAPSHOTS, _SHARED_BYTES = 64, 64 * 1024
#: Masking lengthens snapshots up to this size; other sizes are those of damaged bytes.
_MOST_STORED_BYTES = limits.DOM_BYTES * limits.MASKING_GROWTH


class EventMessage(msgspec.Struct, array_like=True):
    """An event of a recording; `payload` is the JSON text of its other members."""

    id: str
    t_ms: int
    type: str
    frame_id: str | None
    payload: msgspec.Raw


class FrameMessage(msgspec.Struct, array_like=True):
    """A frame of a recording, and where its snapshot is."""

    frame_id: str
    t_ms: int
    state_tokens: list[str]
    dom_object: str | None
    dom_offset: int | None
    dom_length: int | None

    @property
    def snapshot_location(self) -> SnapshotLocation | None:
        """Object and bytes of the snapshot; None without one."""
        if self.dom_object is None or self.dom_offset is None:
            return None
        return SnapshotLocation(self.dom_object, self.dom_offset, self.dom_length)


class RecordingMessage(msgspec.Struct, tag="recording"):
    """The recording of a sealed session: events by `(t_ms, id)`, frames by `(t_ms, frame_id)`."""

    session_id: str
    events: list[EventMessage]
    frames: list[FrameMessage]
    tags: list[RecordedTag]


def open_recording_message(message: RecordingMessage, blobs: Blobs) -> RecordedSession:
    """Return a recording whose snapshots are read from the store when they are needed."""
    locations = [frame.snapshot_location for frame in message.frames]
    reader = _RecordingSnapshotReader(StoredSnapshots(blobs, filter(None, locations)))
    frames = [
        RecordedFrame(
            frame.frame_id, frame.t_ms, tuple(frame.state_tokens), partial(reader.read_dom, snapshot)
        )
        for frame, snapshot in zip(message.frames, locations, strict=True)
    ]
    return RecordedSession(message.session_id, open_recording_message_events(message), frames, message.tags)


def open_recording_message_events(message: RecordingMessage) -> list[RecordedEvent]:
    """Return the events of a recording."""
    events: list[RecordedEvent] = []
    for event in message.events:
        members = {
            **orjson.loads(bytes(event.payload)),
            "id": event.id,
            "t_ms": event.t_ms,
            "type": event.type,
        }
        if event.frame_id is not None:
            members["frame_id"] = event.frame_id
        events.append(members)
    return events


class _RecordingSnapshotReader:
    """Reader of the snapshots of one recording as values."""

    def __init__(self, snapshots: StoredSnapshots) -> None:
        self._snapshots = snapshots
        #: The last snapshot, packed and as a value; before the first one nothing, since a part of an object
        #: that was cut is empty.
        self._last: tuple[bytes | None, Mapping[str, Any] | None] = None, None

    def read_dom(self, snapshot: SnapshotLocation | None) -> Mapping[str, Any] | None:
        """Return a snapshot; None without one, or if it is larger than a snapshot may be.

        One that equals the snapshot read before, such as that of a page that did not change, is that object.

        Raises:
            Unavailable: if the store does not answer, or the stored bytes are missing or damaged: without
                them a replay would not see what is different on the page.
        """
        if snapshot is None:
            return None
        try:
            packed = self._snapshots.read(snapshot)
        except Exception as error:  # clients of stores raise errors of many kinds
            raise Unavailable("The blob store") from error
        if packed != self._last[0]:
            self._last = packed, _unpack_snapshot(packed)
        return self._last[1]


def _unpack_snapshot(packed: bytes) -> Mapping[str, Any] | None:
    """Return a packed snapshot as a value; None if it is larger than a snapshot may be."""
    try:
        size = zstandard.get_frame_parameters(packed).content_size
    except zstandard.ZstdError as error:
        raise Unavailable("The blob store") from error
    if size > _MOST_STORED_BYTES:
        raise Unavailable("The blob store")
    if size > limits.DOM_BYTES:
        return None
    return _decode_shared(packed) if size <= _SHARED_BYTES else _decode_packed_snapshot(packed)


def _decode_packed_snapshot(packed: bytes) -> Mapping[str, Any] | None:
    try:
        value = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
    except (zstandard.ZstdError, orjson.JSONDecodeError) as error:
        raise Unavailable("The blob store") from error
    return value if isinstance(value, dict) else None


#: Sessions of a workflow come to the same pages: an equal snapshot is the same object, with one tree.
_decode_shared = lru_cache(maxsize=_SHARED_SNAPSHOTS)(_decode_packed_snapshot)
