"""Streams over a socket: what comes, where it begins, how it resumes. Contract §3."""

import json
import threading
from pathlib import Path

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidStatus

from recorder.recording.streams import hub, poll
from recorder.recording.streams.messages import Message, make_stream_event_messages
from tests.support.factories import event, frame
from tests.support.recorded_sessions import execute
from tests.support.stream_clients import (
    Heard,
    Streamer,
    StreamService,
    listening,
    read_ids,
    stop,
    streaming_service,
)
from tests.support.waiting import wait_for


def test_a_stream_begins_with_what_happens_from_now_on(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(0))
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        streamer.add_events(session_id, event(1), event(2))
        wait_for(lambda: len(heard.messages) == 2)
        assert (heard.ids, read_ids(socket, 2)) == ([4, 5], [4, 5])
        assert heard.preamble == ["retry: 3000", "id: 3"]
        assert heard.headers["content-type"] == "text/event-stream"
        assert heard.headers["cache-control"] == "no-store, no-transform"
        assert (heard.headers["last-event-id"], socket.response.headers["last-event-id"]) == ("3", "3")


def test_both_kinds_tell_the_objects_that_the_reads_give(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    address = f"/v1/sessions/{session_id}"
    with (
        listening(streamer, session_id, "?from=start") as heard,
        streamer.connect(session_id, "?from=start") as socket,
    ):
        streamer.add_events(session_id, event(5, url=None), event(7, id="evt_mine", data={"id": 1}))
        streamer.post(f"{address}/frames", frames=[frame(6, 1, url="https://a.example/"), frame(8, 2)])
        streamer.post(f"{address}/tags", name="captcha", data={"tries": 2}, t_ms=7)
        stop(streamer, session_id)
        wait_for(lambda: len(heard.messages) == 8)
        texts = [json.loads(socket.recv(timeout=20)) for _ in range(8)]
    assert texts == heard.messages and heard.ids == list(range(1, 9))
    for name in ("event", "frame", "tag"):
        assert heard.of(f"session.{name}") == streamer.http.get(f"{address}/{name}s").json()["data"]
    changes = heard.of("session.status")
    assert [change["status"] for change in changes] == ["created", "recording", "stopped"]
    assert all(set(change) == {"session_id", "status", "at"} for change in changes)


def test_a_stream_resumes_behind_any_message(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    for n in range(4):
        streamer.add_events(session_id, event(n), event(n), event(n))
    for after in range(14):
        with listening(streamer, session_id, "?from=start", Last_Event_ID=str(after)) as heard:
            wait_for(lambda heard=heard, after=after: len(heard.messages) == 14 - after)  # type: ignore[misc]
            assert heard.ids == list(range(after + 1, 15))
        with streamer.connect(session_id, f"?last_event_id={after}") as socket:
            assert read_ids(socket, 14 - after) == list(range(after + 1, 15))


def test_what_is_stored_by_turns_in_different_ways_comes_in_order(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        for n in range(15):
            streamer.post(f"/v1/sessions/{session_id}/tags", name=f"tag {n}", t_ms=n)
            streamer.add_events(session_id, event(n))
            streamer.add_events(session_id, event(n))
        wait_for(lambda: len(heard.messages) == 45)
        assert heard.ids == list(range(3, 48)) == read_ids(socket, 45)


def test_large_batches_are_not_prepared_by_the_event_loop(
    streamer: Streamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[int, int]] = []

    def note(first_position: int, first_id: str, payload: bytes) -> list[Message]:
        messages = make_stream_event_messages(first_position, first_id, payload)
        prepared.append((threading.get_ident(), sum(len(body) for _, _, body in messages)))
        return messages

    for module in (hub, poll):
        monkeypatch.setattr(module, "make_stream_event_messages", note)
    session_id = streamer.make_session()
    text = '\u00e4 " ' * 1_000
    with listening(streamer, session_id) as heard:
        streamer.add_events(session_id, event(0))
        streamer.add_events(session_id, *(event(n, data={"text": text}) for n in range(100)))
        streamer.add_events(session_id, event(1))
        wait_for(lambda: len(heard.messages) == 102)
        assert heard.ids == list(range(3, 105))
    (small, _), *_ = prepared
    assert max(size for thread, size in prepared if thread == small) < 100_000
    assert max(size for thread, size in prepared if thread != small) > 500_000


def test_a_browser_that_comes_back_to_a_replay_goes_on_where_it_was(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id, "?from=start") as heard:
        wait_for(lambda: heard.ids == [1, 2])
        # Nothing to resume by: come back before a message, it begins at the start again.
        assert heard.preamble == ["retry: 3000"]


def test_what_is_older_than_half_an_hour_is_gone_for_who_resumes_alone(
    stream_service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(1), event(2))
    execute(
        stream_service.runtime,
        "UPDATE event_batches SET received_ms = received_ms - 1801000 WHERE session_id = :one",
        one=session_id,
    )
    streamer.add_events(session_id, event(3))
    answer = streamer.get_stream(session_id, Last_Event_ID="3")
    assert (answer.status_code, answer.json()["code"]) == (410, "resume_window_expired")
    with pytest.raises(InvalidStatus) as refused:
        streamer.connect(session_id, Last_Event_ID="3")
    assert refused.value.response.status_code == 410
    with listening(streamer, session_id, Last_Event_ID="4") as heard:
        wait_for(lambda: heard.ids == [5])
    with listening(streamer, session_id, "?from=start") as heard:
        wait_for(lambda: heard.ids == [1, 2, 3, 4, 5])


def test_a_stream_tells_what_was_masked_and_not_what_was_sent(streamer: Streamer) -> None:
    policy = {"masking": {"builtins": ["email"], "patterns": []}}
    assert streamer.http.patch("/v1/workspaces/current", json=policy).status_code == 200
    session_id = streamer.make_session()
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:

        def send() -> bool:
            # A key's policies are remembered for seconds.
            streamer.add_events(session_id, event(1, title="Mail of ada@example.com"))
            streamer.post(f"/v1/sessions/{session_id}/tags", name="mail", data={"to": "ada@example.com"})
            wait_for(lambda: len(heard.messages) % 2 == 0 and heard.messages)
            return "‹email:" in heard.messages[-2]["data"]["title"]

        wait_for(send)
        heard_texts = [heard.messages[-2]["data"]["title"], heard.messages[-1]["data"]["data"]["to"]]
        texts = [socket.recv(timeout=20) for _ in heard.messages]
    assert all("‹email:" in item and "ada@" not in item for item in heard_texts)
    assert [json.loads(text) for text in texts] == heard.messages


def test_what_clients_say_on_a_socket_changes_nothing(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with streamer.connect(session_id) as socket:
        for word in ("hello", b"\x00" * 1000, "{}"):
            socket.send(word)
        streamer.add_events(session_id, event(1))
        assert read_ids(socket, 1) == [3]


def test_a_server_that_shares_no_frames_sends_the_same_texts(tmp_path: Path) -> None:
    with streaming_service(tmp_path, ws=WebSocketsSansIOProtocol) as plain, plain.streamer() as streamer:
        session_id = streamer.make_session()
        streamer.add_events(session_id, event(1), event(2))
        with (
            streamer.connect(session_id, "?from=start") as socket,
            listening(streamer, session_id, "?from=start") as heard,
        ):
            wait_for(lambda: len(heard.messages) == 4)
            assert [json.loads(socket.recv(timeout=20)) for _ in range(4)] == heard.messages


def test_heard_is_what_the_format_says() -> None:
    heard = Heard()
    heard.take('id: 7\nevent: session.event\ndata: {"id":7,"event":"session.event","data":{}}')
    heard.take(": keep-alive")
    assert (heard.ids, heard.comments, heard.preamble) == ([7], 1, [])
