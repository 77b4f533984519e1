"""Ends of streams: their messages, and resuming after them. Contract §3."""

from contextlib import ExitStack

import pytest

from recorder.models.workspace import KeyRow, WorkspaceRow
from tests.support.factories import event
from tests.support.recorded_sessions import execute
from tests.support.sealing import seal_all
from tests.support.stream_clients import Streamer, StreamService, heard_all, listening, read_texts, stop
from tests.support.waiting import wait_for


def test_a_sealed_session_ends_its_streams(stream_service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        streamer.add_events(session_id, event(1))
        stop(streamer, session_id)
        seal_all(stream_service.runtime)
        wait_for(lambda: heard.is_over)
        texts, code = read_texts(socket)
    assert [message["event"] for message in heard.messages] == [
        "session.event",
        "session.status",
        "session.status",
        "stream.end",
    ]
    assert heard.messages[-1] == {
        "id": 5,
        "event": "stream.end",
        "data": {"session_id": session_id, "status": "sealed"},
    }
    assert (texts, code) == (heard.messages, 1000)


def test_an_ended_stream_is_replayed_resumed_and_over(
    stream_service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(1))
    stop(streamer, session_id)
    seal_all(stream_service.runtime)
    assert heard_all(streamer, session_id, "?from=start").ids == [1, 2, 3, 4, 5, 5]
    assert heard_all(streamer, session_id, Last_Event_ID="3").ids == [4, 5, 5]
    assert heard_all(streamer, session_id).ids == [5]
    assert streamer.get_stream(session_id, Last_Event_ID="5").status_code == 204
    with streamer.connect(session_id, "?last_event_id=5") as socket:
        assert read_texts(socket) == ([], 1000)
    streamer.post(f"/v1/sessions/{session_id}/tags", name="late")
    assert heard_all(streamer, session_id, Last_Event_ID="5").ids == [6, 6]


def test_a_session_that_cannot_be_read_ends_its_own_streams_alone(
    stream_service: StreamService, streamer: Streamer
) -> None:
    damaged, whole = streamer.make_session(), streamer.make_session()
    with listening(streamer, damaged) as ended, listening(streamer, whole) as heard:
        execute(
            stream_service.runtime,
            "INSERT INTO event_batches "
            "(session_id, first_position, n, t_min, t_max, first_id, received_ms, payload) "
            "VALUES (:session_id, 3, 1, 0, 0, 'evt_a', 0, :payload)",
            session_id=damaged,
            payload=b"damaged",
        )
        execute(stream_service.runtime, "UPDATE sessions SET last_position = 3 WHERE id = :id", id=damaged)
        streamer.post(f"/v1/sessions/{whole}/tags", name="good")
        wait_for(lambda: ended.is_over)
        wait_for(lambda: heard.ids == [3])
        streamer.post(f"/v1/sessions/{whole}/tags", name="better")
        wait_for(lambda: heard.ids == [3, 4])
    assert ended.messages == []


def test_a_deleted_session_ends_its_streams(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        streamer.delete(f"/v1/sessions/{session_id}")
        wait_for(lambda: heard.is_over)
        assert (heard.messages, read_texts(socket)) == ([], ([], 4404))
    assert streamer.get_stream(session_id).status_code == 404


#: What happens to a key or its workspace, and the code that a WebSocket closes with.
ENDS = {
    "revoked": (KeyRow, {"revoked_at": "2026-01-01"}, 4401),
    "expired": (KeyRow, {"expires_at": "2026-01-01"}, 4401),
    "suspended": (WorkspaceRow, {"status": "suspended"}, 4403),
}


@pytest.mark.parametrize("what", ENDS)
def test_a_key_that_may_no_longer_read_ends_its_streams(
    stream_service: StreamService, streamer: Streamer, what: str
) -> None:
    table, changed, code = ENDS[what]
    session_id = streamer.make_session()
    row_id = streamer.key.key_id if table is KeyRow else streamer.key.workspace_id
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        column, value = next(iter(changed.items()))
        name = table.__tablename__
        execute(
            stream_service.runtime,
            f"UPDATE {name} SET {column} = :value WHERE id = :id",
            value=value,
            id=row_id,
        )
        wait_for(lambda: heard.is_over, seconds=5)
        assert read_texts(socket) == ([], code)


def test_of_many_keys_only_the_streams_of_a_refused_one_end(
    stream_service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    with (
        stream_service.streamer(workspace_id=streamer.key.workspace_id, scope="read") as other,
        ExitStack() as open_streams,
    ):
        theirs = open_streams.enter_context(listening(other, session_id))
        ours = open_streams.enter_context(listening(streamer, session_id))
        streamer.delete(f"/v1/keys/{other.key.key_id}")
        wait_for(lambda: theirs.is_over)
        streamer.add_events(session_id, event(1))
        wait_for(lambda: ours.ids == [3])
        assert not ours.is_over


def test_a_gone_client_gives_its_slot_back(stream_service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    wait_for(lambda: stream_service.open_streams == 0)
    with listening(streamer, session_id):
        assert stream_service.open_streams == 1
    wait_for(lambda: stream_service.open_streams == 0)
