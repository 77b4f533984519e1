"""Messages of streams: the objects that the reads give, in segments, a line of data each. Contract §3."""

import json
from typing import Any

import msgspec
import pytest
import zstandard
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from recorder.ids import new_id
from recorder.models.event import EventBatchRow
from recorder.recording.stored_events import decode_stored_event_batch
from recorder.recording.streams.messages import (
    SEGMENT_BYTES,
    Message,
    StreamSegment,
    cut_messages_into_segments,
    join_segments,
    make_gap_segment,
    make_stream_event_messages,
    make_stream_message,
)

PLAIN = b'{"t_ms":1,"type":"click","target":{"name":"Save","rect":[1,2.5,3,4]}}'
#: Items as clients may spell them; what is special about each.
ITEMS = {
    "plain": PLAIN,
    "an id of its own": b'{"t_ms":1,"type":"click","id":"evt_own"}',
    "an id in another spelling": b'{"t_ms":1,"type":"click","\\u0069d":"evt_own"}',
    "an id deeper down": b'{"t_ms":1,"type":"click","target":{"attrs":{"id":"save"}}}',
    "null for a frame": b'{"t_ms":1,"type":"click","frame_id":null,"url":null}',
    "a frame": b'{"t_ms":1,"type":"click","frame_id":"frm_a"}',
    "line breaks between members": b'{\n "t_ms": 1,\r\n "type": "click"\n}',
    "line breaks in a value": b'{"t_ms":1,"type":"log","data":{"text":"one\\ntwo\\r\\nthree"}}',
    "separators of Unicode": '{"t_ms":1,"type":"log","title":"a\u2028b\u2029c\u0085d"}'.encode(),
    "escapes": b'{"t_ms":1,"type":"log","title":"\\u00e9\\ud83d\\ude00\\/"}',
    "spaces": b'{ "t_ms" : 1 , "type" : "click" }',
    "numbers in other forms": b'{"t_ms":1,"type":"log","data":[1e2,-0.0,1.10,9007199254740993]}',
}


def batch_row(*items: bytes, first_position: int = 5) -> EventBatchRow:
    """Return a batch row as the ingest writes it."""
    body = b'{"events":[' + b",".join(items) + b"]}"
    return EventBatchRow(
        session_id="ses_a",
        first_position=first_position,
        n=len(items),
        t_min=1,
        t_max=1,
        first_id=new_id("evt"),
        received_ms=0,
        payload=zstandard.compress(body),
    )


def messages_of(row: EventBatchRow) -> list[Message]:
    """Return the messages that a stream makes of the row."""
    return make_stream_event_messages(row.first_position, row.first_id, row.payload)


def read_objects(row: EventBatchRow) -> list[Any]:
    """Return the objects that the reads make of the row."""
    return [json.loads(record.as_json()) for record in decode_stored_event_batch(row)]


@pytest.mark.parametrize("name", ITEMS)
def test_an_event_is_the_object_that_the_reads_give(name: str) -> None:
    row = batch_row(PLAIN, ITEMS[name], PLAIN)
    messages = [json.loads(body) for _, _, body in messages_of(row)]
    assert [sent["data"] for sent in messages] == read_objects(row)
    assert [(sent["id"], sent["event"]) for sent in messages] == [(n, "session.event") for n in (5, 6, 7)]


@pytest.mark.parametrize("name", ITEMS)
def test_a_message_is_one_line_of_data(name: str) -> None:
    segment = StreamSegment(5, messages_of(batch_row(ITEMS[name])))
    lines = segment.sse.split(b"\n")
    assert [line.partition(b":")[0] for line in lines] == [b"id", b"event", b"data", b"", b""]
    assert b"\r" not in segment.sse and lines[2] == b"data: " + segment.texts[0].encode()


def test_items_that_name_themselves_take_no_id_of_the_range() -> None:
    row = batch_row(PLAIN, ITEMS["an id of its own"], PLAIN)
    ids = [json.loads(body)["data"]["id"] for _, _, body in messages_of(row)]
    assert ids[0] == row.first_id and ids[1] == "evt_own"
    assert ids == [event["id"] for event in read_objects(row)]


def made(*sizes: int, first: int = 1) -> list[Message]:
    """Return messages with data of these sizes."""
    return [
        make_stream_message(first + n, b"session.event", b'"%b"' % (b"x" * size))
        for n, size in enumerate(sizes)
    ]


def test_segments_hold_so_many_bytes_and_lose_nothing() -> None:
    messages = made(*[SEGMENT_BYTES // 3] * 7, 2 * SEGMENT_BYTES, 10)
    segments = list(cut_messages_into_segments(messages))
    assert [sent for segment in segments for sent in segment.messages] == messages
    assert all(segment.size <= SEGMENT_BYTES or len(segment.messages) == 1 for segment in segments)
    assert [segment.first for segment in segments[1:]] == [segment.last + 1 for segment in segments[:-1]]


@pytest.mark.parametrize(("position", "left"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])])
def test_what_lies_behind_a_position_is_left(position: int, left: list[int]) -> None:
    segment = StreamSegment(1, made(1, 1, 1))
    assert [sent[0] for sent in segment.after(position).messages] == left


def test_segments_joined_are_written_as_their_parts() -> None:
    parts = [
        StreamSegment(1, made(1, 2)),
        make_gap_segment("ses_a", 3, 9),
        StreamSegment(10, made(4, first=10)),
    ]
    whole = join_segments(parts)
    assert (whole.first, whole.last) == (1, 10)
    assert whole.sse == b"".join(part.sse for part in parts)
    assert whole.texts == [text for part in parts for text in part.texts]


@pytest.mark.parametrize("size", [0, 90, 125, 126, 200, 65_000, 65_535, 65_536, 200_000])
def test_frames_are_what_a_websocket_client_reads_as_texts(size: int) -> None:
    segment = StreamSegment(1, [*made(3), *made(size, first=2), *made(1, first=3)])
    client = ClientProtocol(parse_uri("ws://127.0.0.1/"), state=OPEN, max_size=None)
    client.receive_data(segment.frames)
    frames = client.events_received()
    assert [(frame.opcode, frame.fin, frame.data.decode()) for frame in frames] == [
        (Opcode.TEXT, True, text) for text in segment.texts
    ]


def test_a_gap_tells_which_positions_are_missing() -> None:
    segment = make_gap_segment("ses_a", 3, 9)
    assert (segment.first, segment.last) == (3, 9)
    sent = msgspec.json.decode(segment.texts[0])
    assert sent == {"id": 9, "event": "stream.gap", "data": {"session_id": "ses_a", "from": 3, "to": 9}}
