"""Streams over a socket: what comes, where it begins, when it ends, who is refused. Contract §3."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from recorder.models.key import KeyRow
from recorder.models.workspace import WorkspaceRow
from recorder.recording.streams import Pace
from recorder.sealing import Sealer
from tests.factories import event, frame
from tests.recorded import execute
from tests.streaming import Heard, Streamer, StreamService, heard_all, listening, streaming_service, wait_for


@pytest.fixture(scope="module")
def service(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamService]:
    """A running service on either engine, which looks after keys more often than it would."""
    folder = tmp_path_factory.mktemp("service")
    with streaming_service(
        folder, pace=Pace(standing_s=0.1, poll_s=0.2), database_url=database_url
    ) as running:
        yield running


@pytest.fixture
def streamer(service: StreamService) -> Iterator[Streamer]:
    """A key of a workspace that no other test sees."""
    with service.streamer() as made:
        yield made


def seal(service: StreamService) -> None:
    """Seal all that waits, as a run of Dagster does: the service is told nothing of it."""
    sealer = Sealer(service.runtime, owner="test")
    assert sealer.take()
    while sealer.seal_batch() is not None:
        continue
    sealer.release()


def stop(streamer: Streamer, session_id: str) -> None:
    """Stop a session."""
    streamer.post(f"/v1/sessions/{session_id}/stop")


def read_texts(socket: ClientConnection) -> tuple[list[Any], int]:
    """All messages of a WebSocket until it closes, and the code it closes with."""
    messages = []
    try:
        while True:
            messages.append(json.loads(socket.recv(timeout=20)))
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return messages, closed.rcvd.code


def read_ids(socket: ClientConnection, count: int) -> list[int]:
    """The positions of the next messages of a WebSocket."""
    return [json.loads(socket.recv(timeout=20))["id"] for _ in range(count)]


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


def test_a_browser_that_comes_back_to_a_replay_goes_on_where_it_was(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id, "?from=start") as heard:
        wait_for(lambda: heard.ids == [1, 2])
        # Nothing to resume by: come back before a message, it begins at the start again.
        assert heard.preamble == ["retry: 3000"]


MALFORMED = ("", " ", "x", "-1", "+1", "1.0", "01", "1e1", "9" * 20, "９", "3\n4", "evt_1")


@pytest.mark.parametrize("text", [*MALFORMED, "3"])
def test_a_position_that_no_stream_gave_out_is_refused(streamer: Streamer, text: str) -> None:
    session_id = streamer.make_session()
    if text.isascii() and text.isprintable() and text.strip():
        answer = streamer.get_stream(session_id, Last_Event_ID=text)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_event_id")
    query = f"?last_event_id={text.replace('+', '%2B')}".replace("\n", "%0A").replace("９", "%EF%BC%99")
    with pytest.raises(InvalidStatus) as refused:
        streamer.connect(session_id, query.replace(" ", "%20"))
    assert refused.value.response.status_code == 400
    assert b'"code": "invalid_event_id"' in bytes(refused.value.response.body or b"")


def test_what_is_older_than_half_an_hour_is_gone_for_who_resumes_alone(
    service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(1), event(2))
    execute(
        service.runtime,
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


def test_a_sealed_session_ends_its_streams(service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        streamer.add_events(session_id, event(1))
        stop(streamer, session_id)
        seal(service)
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


def test_an_ended_stream_is_replayed_resumed_and_over(service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(1))
    stop(streamer, session_id)
    seal(service)
    assert heard_all(streamer, session_id, "?from=start").ids == [1, 2, 3, 4, 5, 5]
    assert heard_all(streamer, session_id, Last_Event_ID="3").ids == [4, 5, 5]
    assert heard_all(streamer, session_id).ids == [5]
    assert streamer.get_stream(session_id, Last_Event_ID="5").status_code == 204
    with streamer.connect(session_id, "?last_event_id=5") as socket:
        assert read_texts(socket) == ([], 1000)
    streamer.post(f"/v1/sessions/{session_id}/tags", name="late")
    assert heard_all(streamer, session_id, Last_Event_ID="5").ids == [6, 6]


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
    service: StreamService, streamer: Streamer, what: str
) -> None:
    table, changed, code = ENDS[what]
    session_id = streamer.make_session()
    row_id = streamer.key.key_id if table is KeyRow else streamer.key.workspace_id
    with listening(streamer, session_id) as heard, streamer.connect(session_id) as socket:
        column, value = next(iter(changed.items()))
        name = table.__tablename__
        execute(
            service.runtime, f"UPDATE {name} SET {column} = :value WHERE id = :id", value=value, id=row_id
        )
        wait_for(lambda: heard.is_over, seconds=5)
        assert read_texts(socket) == ([], code)


def test_of_many_keys_only_the_streams_of_a_refused_one_end(
    service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    with (
        service.streamer(workspace_id=streamer.key.workspace_id, scope="read") as other,
        ExitStack() as open_streams,
    ):
        theirs = open_streams.enter_context(listening(other, session_id))
        ours = open_streams.enter_context(listening(streamer, session_id))
        streamer.delete(f"/v1/keys/{other.key.key_id}")
        wait_for(lambda: theirs.is_over)
        streamer.add_events(session_id, event(1))
        wait_for(lambda: ours.ids == [3])
        assert not ours.is_over


def test_fifty_streams_of_both_kinds_are_open_and_the_next_is_refused(service: StreamService) -> None:
    with service.streamer(tier="default") as streamer, ExitStack() as open_streams:
        session_id = streamer.make_session()
        sockets = [open_streams.enter_context(streamer.connect(session_id)) for _ in range(25)]
        for _ in range(25):
            open_streams.enter_context(listening(streamer, session_id))
        answer = streamer.get_stream(session_id)
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
        with pytest.raises(InvalidStatus) as refused:
            streamer.connect(session_id)
        assert refused.value.response.status_code == 429
        sockets[0].close()
        wait_for(lambda: service.open_streams == 49)
        with listening(streamer, session_id) as heard:
            assert heard.status == 200
    wait_for(lambda: service.open_streams == 0)


#: Why a stream is refused: the session's owner, the query, the status and its code.
REFUSALS: dict[str, tuple[str, str, int, str]] = {
    "another workspace": ("stranger", "", 404, "not_found"),
    "the other mode": ("tester", "", 404, "not_found"),
    "an unknown session": ("nobody", "", 404, "not_found"),
    "another beginning": ("owner", "?from=end", 422, "validation_failed"),
    "an unknown parameter": ("owner", "?since=1h", 422, "validation_failed"),
    "a parameter twice": ("owner", "?from=start&from=start", 422, "validation_failed"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refusals_are_problems_on_both_kinds(service: StreamService, streamer: Streamer, why: str) -> None:
    who, query, status, code = REFUSALS[why]
    session_id = streamer.make_session() if who != "nobody" else "ses_01k0000000000000000000000a"
    place = streamer.key.workspace_id if who == "tester" else None
    with service.streamer(workspace_id=place, mode="test" if who == "tester" else "live") as other:
        asking = streamer if who in ("owner", "nobody") else other
        answer = asking.get_stream(session_id, query)
        with pytest.raises(InvalidStatus) as refused:
            asking.connect(session_id, query)
    response = refused.value.response
    problem = json.loads(bytes(response.body or b""))
    assert (answer.status_code, response.status_code) == (status, status)
    assert (answer.json()["code"], problem["code"]) == (code, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == response.headers["x-request-id"]


def test_header_and_query_of_a_socket_must_agree(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with streamer.connect(session_id, "?last_event_id=1", Last_Event_ID="1") as socket:
        assert read_ids(socket, 1) == [2]
    with pytest.raises(InvalidStatus) as refused:
        streamer.connect(session_id, "?last_event_id=1", Last_Event_ID="2")
    assert refused.value.response.status_code == 400


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
        told = [heard.messages[-2]["data"]["title"], heard.messages[-1]["data"]["data"]["to"]]
        texts = [socket.recv(timeout=20) for _ in heard.messages]
    assert all("‹email:" in one and "ada" not in one for one in told)
    assert [json.loads(text) for text in texts] == heard.messages


def test_a_gone_client_gives_its_slot_back(service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    wait_for(lambda: service.open_streams == 0)
    with listening(streamer, session_id):
        assert service.open_streams == 1
    wait_for(lambda: service.open_streams == 0)


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
