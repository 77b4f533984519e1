"""The queue of what the service has not acknowledged: order, batches, refusals. Spec §8.1, contract §3."""

import pytest

from recorder.client.errors import ApiError
from recorder.client.transport import TransportCall
from recorder.client.upload_batches import CapturedFrame, EncodedFrame
from recorder.client.upload_queue import UploadQueue

FRAME = EncodedFrame.of(CapturedFrame.of(b"\x89PNG\r\n\x1a\n", t_ms=0))


def test_frames_are_sent_before_the_events_that_may_name_them() -> None:
    sent: list[TransportCall] = []
    queue = UploadQueue(sent.append)
    queue.add_event(b'{"t_ms":0}')
    queue.add_frame(FRAME)
    queue.send("ses_1")
    assert [call.path.rpartition("/")[2] for call in sent] == ["frames", "events"]


def test_an_event_that_comes_while_its_batch_is_sent_is_sent_with_the_next_one() -> None:
    sent: list[TransportCall] = []

    def send(call: TransportCall) -> None:
        if not sent:
            queue.add_event(b'{"t_ms":1}')
        sent.append(call)

    queue = UploadQueue(send)
    queue.add_event(b'{"t_ms":0}')
    queue.send("ses_1")
    assert [call.content for call in sent] == [b'{"events":[{"t_ms":%d}]}' % n for n in range(2)]
    assert queue.size == 0


def test_the_items_of_a_batch_for_which_a_session_has_no_room_are_not_sent_one_by_one() -> None:
    sent: list[TransportCall] = []

    def refuse(call: TransportCall) -> None:
        sent.append(call)
        raise ApiError(422, "limit_reached", "A session holds at most 100,000 events.")

    queue = UploadQueue(refuse)
    for number in range(3):
        queue.add_event(b'{"t_ms":%d}' % number)
    with pytest.raises(ApiError, match="limit_reached") as raised:
        queue.send("ses_1")
    assert len(sent) == 1 and queue.size == 0
    assert "3 refused items" in raised.value.__notes__[0]
