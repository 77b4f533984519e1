"""Cutting what is recorded into batches that the service takes. Spec §8.1, contract §3."""

import email
from collections import UserDict
from collections.abc import Iterator
from types import MappingProxyType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder import limits
from recorder.client.upload_batches import CapturedFrame, event_batch_calls, frame_batch_calls

PNG = b"\x89PNG\r\n\x1a\n"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=60_000), max_size=220))
def test_batches_of_events_keep_count_size_and_order(sizes: list[int]) -> None:
    events = [{"t_ms": n, "type": "log", "data": {"text": "x" * size}} for n, size in enumerate(sizes)]
    bodies = [call.content or b"" for call in event_batch_calls("ses_1", events)]
    batches = [orjson.loads(body)["events"] for body in bodies]
    assert [event for batch in batches for event in batch] == events
    assert all(0 < len(batch) <= limits.EVENTS_PER_BATCH for batch in batches)
    assert all(len(body) <= limits.EVENTS_REQUEST_BYTES for body in bodies)


def test_batches_of_frames_keep_count_and_size() -> None:
    frames = [CapturedFrame.of(PNG + bytes(1_000_000), t_ms=n) for n in range(120)]
    calls = list(frame_batch_calls("ses_1", frames))
    counts = [len(parts_of(call.content or b"", call.content_type)) - 1 for call in calls]
    assert sum(counts) == 120
    assert max(counts) <= limits.FRAMES_PER_BATCH
    assert all(len(call.content or b"") <= limits.FRAMES_REQUEST_BYTES for call in calls)


def test_a_multipart_body_names_a_part_for_every_frame() -> None:
    frames = [CapturedFrame.of(PNG + bytes([n]), t_ms=n, url="https://a.example") for n in range(3)]
    (call,) = frame_batch_calls("ses_1", frames)
    parts = parts_of(call.content or b"", call.content_type)
    items = orjson.loads(parts["frames"])
    assert [parts[item["part"]] for item in items] == [frame.image for frame in frames]
    assert [item["t_ms"] for item in items] == [0, 1, 2]


def test_nothing_to_send_is_no_request() -> None:
    assert list(event_batch_calls("ses_1", [])) == list(frame_batch_calls("ses_1", [])) == []


def test_batches_are_made_as_they_are_sent() -> None:
    taken = []

    def endless() -> Iterator[dict[str, object]]:
        for n in range(10_000):
            taken.append(n)
            yield {"t_ms": n, "type": "click"}

    next(event_batch_calls("ses_1", endless()))
    assert len(taken) <= limits.EVENTS_PER_BATCH + 1


@pytest.mark.parametrize(
    ("image", "content_type"),
    [(PNG, "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"RIFF\0\0\0\0WEBP", "image/webp")],
)
def test_the_type_of_a_picture_is_seen(image: bytes, content_type: str) -> None:
    assert CapturedFrame.of(image, t_ms=0).item["content_type"] == content_type


def test_bytes_that_are_no_picture_are_refused() -> None:
    with pytest.raises(ValueError, match="PNG, JPEG or WebP"):
        CapturedFrame.of(b"GIF89a", t_ms=0)


def test_a_path_is_refused_as_a_picture() -> None:
    with pytest.raises(TypeError, match=r"takes the bytes of a PNG, JPEG or WebP file.* of type str\."):
        CapturedFrame.of("/tmp/screen.png", t_ms=0, content_type="image/png")  # type: ignore[arg-type]


def test_a_frame_keeps_its_picture_when_the_caller_reuses_its_buffer() -> None:
    buffer = bytearray()
    frames = []
    for number in range(3):
        buffer[:] = PNG + bytes([number])
        frames.append(CapturedFrame.of(buffer, t_ms=number))
    assert [frame.image for frame in frames] == [PNG + bytes([number]) for number in range(3)]


def test_mappings_that_are_no_dicts_are_sent_as_objects() -> None:
    events = [MappingProxyType({"t_ms": 0, "type": "log", "data": UserDict({"step": (1, 2)})})]
    (call,) = event_batch_calls("ses_1", events)
    assert orjson.loads(call.content or b"") == {
        "events": [{"t_ms": 0, "type": "log", "data": {"step": [1, 2]}}]
    }


def test_a_number_that_json_lacks_is_also_seen_in_a_mapping() -> None:
    event = {"t_ms": 1, "type": "log", "data": MappingProxyType({"price": float("nan")})}
    with pytest.raises(ValueError, match=r"^/data/price: NaN and Infinity"):
        list(event_batch_calls("ses_1", [event]))


def test_a_value_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable: set"):
        list(event_batch_calls("ses_1", [{"t_ms": 1, "type": "log", "data": {"steps": {1}}}]))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_refused_by_its_member(number: float) -> None:
    events = [{"t_ms": 0, "type": "log"}, {"t_ms": 1, "type": "log", "data": {"price": number}}]
    with pytest.raises(ValueError, match=r"^/data/price: NaN and Infinity"):
        list(event_batch_calls("ses_1", events))


def parts_of(body: bytes, content_type: str) -> dict[str, bytes]:
    """Return the parts of a multipart body, read by the standard library."""
    message = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
        for part in message.get_payload()
    }
