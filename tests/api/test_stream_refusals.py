"""Streams that do not begin: positions, parameters, strangers, too many. Contract §3."""

import json
from contextlib import ExitStack

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.stream_clients import Streamer, StreamService, listening, read_ids
from tests.support.waiting import wait_for

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


def test_fifty_streams_of_both_kinds_are_open_and_the_next_is_refused(stream_service: StreamService) -> None:
    with stream_service.streamer(tier="default") as streamer, ExitStack() as open_streams:
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
        wait_for(lambda: stream_service.open_streams == 49)
        with listening(streamer, session_id) as heard:
            assert heard.status == 200
    wait_for(lambda: stream_service.open_streams == 0)


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
def test_refusals_are_problems_on_both_kinds(
    stream_service: StreamService, streamer: Streamer, why: str
) -> None:
    who, query, status, code = REFUSALS[why]
    session_id = streamer.make_session() if who != "nobody" else "ses_01k0000000000000000000000a"
    workspace_id = streamer.key.workspace_id if who == "tester" else None
    with stream_service.streamer(
        workspace_id=workspace_id, mode="test" if who == "tester" else "live"
    ) as other:
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


def test_two_positions_that_differ_are_refused(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    headers = [("Last-Event-ID", "1"), ("Last-Event-ID", "2")]
    answer = streamer.http.get(f"/v1/sessions/{session_id}/events/stream", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_event_id")


def test_header_and_query_of_a_socket_must_agree(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with streamer.connect(session_id, "?last_event_id=1", Last_Event_ID="1") as socket:
        assert read_ids(socket, 1) == [2]
    with pytest.raises(InvalidStatus) as refused:
        streamer.connect(session_id, "?last_event_id=1", Last_Event_ID="2")
    assert refused.value.response.status_code == 400
