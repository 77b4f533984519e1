"""Messages of a stream, encoded once for all who read them. Contract §3 (SSE, WebSocket).

A message is `{id, event, data}`, where `id` is its position. For server-sent events it is framed, as a
WebSocket text it is sent as it is. Messages travel in segments: consecutive messages of one session.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import orjson

from recorder.ids import id_range
from recorder.models.event import EventBatchBody
from recorder.recording.stored_events import decompress_stored_events, make_event_record

#: Position, name of the event, and the whole message as JSON.
Message = tuple[int, bytes, bytes]

#: A segment is written at once; a reader that does not take so much in time is too slow.
SEGMENT_BYTES = 64 * 1024

_batch_decoder = msgspec.json.Decoder(EventBatchBody)
# An item that may hold one of these is decoded and encoded again: an id of its own, a null that reads leave
# out, a line break between its members (which would end a line of the stream), an escape that may hide one.
_NEED_CARE = (b'"id"', b"null", b"\n", b"\r", b"\\u")


class StreamSegment:
    """Messages of one session that follow each other, from position `first` to `last`."""

    __slots__ = ("_frames", "_sse", "_texts", "first", "last", "messages", "size")

    def __init__(self, first: int, messages: Sequence[Message], *, last: int | None = None) -> None:
        self.first = first
        self.messages = messages
        self.last = messages[-1][0] if last is None else last
        #: Bytes of its messages as JSON.
        self.size = sum([len(message[2]) for message in messages])
        self._sse: bytes | None = None
        self._texts: list[str] | None = None
        self._frames: bytes | None = None

    @property
    def sse(self) -> bytes:
        """All messages as server-sent events."""
        if self._sse is None:
            self._sse = b"".join([b"id: %d\nevent: %b\ndata: %b\n\n" % message for message in self.messages])
        return self._sse

    @property
    def texts(self) -> list[str]:
        """Each message as a WebSocket text."""
        if self._texts is None:
            self._texts = [message[2].decode() for message in self.messages]
        return self._texts

    @property
    def frames(self) -> bytes:
        """All messages as WebSocket text frames (RFC 6455, from a server, without extensions)."""
        if self._frames is None:
            self._frames = b"".join(
                [_make_stream_message_head(len(message[2])) + message[2] for message in self.messages]
            )
        return self._frames

    def after(self, position: int) -> "StreamSegment":
        """Return the part that follows a position; all of it where it begins there."""
        if position < self.first:
            return self
        return StreamSegment(
            position + 1, [message for message in self.messages if message[0] > position], last=self.last
        )


class _KeepAlive(StreamSegment):
    """Comment that keeps an event stream open; for WebSockets the server pings."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0, [], last=0)
        self._sse = b": keep-alive\n\n"


KEEP_ALIVE: StreamSegment = _KeepAlive()


def make_stream_message(position: int, name: bytes, data: bytes) -> Message:
    """Return a message out of its wire object's JSON."""
    return position, name, b'{"id":%d,"event":"%b","data":%b}' % (position, name, data)


def make_stream_event_messages(first_position: int, first_id: str, payload: bytes) -> list[Message]:
    """Return the messages of one batch row: each event as the reads give it."""
    items = _encode_stream_events(first_id, decompress_stored_events(payload))
    return [make_stream_message(first_position + n, b"session.event", item) for n, item in enumerate(items)]


def make_gap_segment(session_id: str, first: int, last: int) -> StreamSegment:
    """Return the message that these positions have expired; the reads of the session have them."""
    data = _encode_stream_message({"session_id": session_id, "from": first, "to": last})
    return StreamSegment(first, [make_stream_message(last, b"stream.gap", data)], last=last)


def make_end_segment(session_id: str, position: int) -> StreamSegment:
    """Return the message that a sealed session's stream is over."""
    data = _encode_stream_message({"session_id": session_id, "status": "sealed"})
    return StreamSegment(position, [make_stream_message(position, b"stream.end", data)])


def cut_messages_into_segments(messages: Sequence[Message]) -> Iterator[StreamSegment]:
    """Yield messages that follow each other as segments of a bounded size."""
    begin = size = 0
    for n, (_, _, body) in enumerate(messages):
        if size and size + len(body) > SEGMENT_BYTES:
            yield StreamSegment(messages[begin][0], messages[begin:n])
            begin, size = n, 0
        size += len(body)
    if messages:
        yield StreamSegment(messages[begin][0], messages[begin:])


def join_segments(segments: Sequence[StreamSegment]) -> StreamSegment:
    """Return consecutive segments joined to one segment, which is written at once."""
    if len(segments) == 1:
        return segments[0]
    messages = [item for segment in segments for item in segment.messages]
    whole = StreamSegment(segments[0].first, messages, last=segments[-1].last)
    whole._sse = b"".join([segment.sse for segment in segments])
    return whole


def _make_stream_message_head(size: int) -> bytes:
    if size < 126:
        return b"\x81%c" % size
    if size < 65_536:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


def _encode_stream_events(first_id: str, body: bytes) -> Iterator[bytes]:
    """Yield the events of a batch as JSON, most as they were sent, with their id put first."""
    items = _batch_decoder.decode(body).events
    ids = iter(id_range(first_id, len(items)))
    marks = [mark for mark in _NEED_CARE if mark in body]
    for raw in items:
        item = bytes(raw)
        if marks and any(mark in item for mark in marks):
            members = orjson.loads(item)
            yield make_event_record(members, members.get("id") or next(ids)).as_json()
        else:
            yield b'{"id":"%b",%b' % (next(ids).encode(), item[1:])


def _encode_stream_message(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value)
