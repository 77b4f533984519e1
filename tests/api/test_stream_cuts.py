"""Streams over lines that break: the client misses nothing and repeats nothing. Contract §3 (resume)."""

import threading
from random import Random

import pytest

from recorder.client import ApiError, Client, Unreachable
from tests.support.factories import event
from tests.support.sealing import seal_all
from tests.support.stream_clients import Streamer, StreamService, stop
from tests.support.unreliable_connections import cutting
from tests.support.waiting import wait_for


def make_hasty(client: Client) -> Client:
    """Let the client open a broken stream again at once."""
    client._transport.reconnect_pause_s = 0.001
    return client


def write_session(stream_service: StreamService, streamer: Streamer, session_id: str, seed: int) -> None:
    """Record a session: events, single and in batches, tags between them, the stop; and seal it."""
    random = Random(seed)
    for n in range(40):
        streamer.add_events(
            session_id, *[event(n, title="t" * random.randint(0, 400))] * random.choice((1, 1, 20))
        )
        if n % 10 == 9:
            streamer.post(f"/v1/sessions/{session_id}/tags", name=f"tag {n}")
    stop(streamer, session_id)
    seal_all(stream_service.runtime)


def test_a_session_is_told_whole_over_a_line_that_keeps_breaking(
    stream_service: StreamService, streamer: Streamer, database_url: str
) -> None:
    # Another line on each engine: how a line breaks has nothing to do with where the session lies.
    seed = 1 if database_url.startswith("sqlite") else 2
    session_id = streamer.make_session()
    writing = threading.Thread(target=write_session, args=(stream_service, streamer, session_id, seed))
    with cutting(streamer.url, seed=seed) as proxy, make_hasty(Client(proxy.url, streamer.key.key)) as client:
        stream = client.stream(session_id, from_start=True)
        messages = [next(stream)]
        writing.start()
        messages += stream
        writing.join()
    assert proxy.cuts >= 5
    assert [message["id"] for message in messages] == list(range(1, len(messages) + 1))
    items = [message["data"] for message in messages if message["event"] == "session.event"]
    with Client(streamer.url, streamer.key.key) as client:
        assert items == list(client.list_events(session_id))
    assert messages[-1]["data"]["status"] == "sealed"


def test_a_stream_goes_on_behind_a_position_that_was_kept(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(1), event(2), event(3))
    with Client(streamer.url, streamer.key.key) as client:
        stream = client.stream(session_id, after=3)
        assert [next(stream)["id"], next(stream)["id"]] == [4, 5]


def test_leaving_the_iterator_leaves_the_stream(stream_service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with Client(streamer.url, streamer.key.key) as client:
        for message in client.stream(session_id, from_start=True):
            assert message["event"] == "session.status"
            break
        wait_for(lambda: stream_service.open_streams == 0)


def test_what_ends_a_stream_for_good_is_raised(streamer: Streamer) -> None:
    session_id = streamer.make_session()
    with Client(streamer.url, streamer.key.key) as client:
        stream = client.stream(session_id, from_start=True)
        next(stream)
        streamer.delete(f"/v1/sessions/{session_id}")
        with pytest.raises(ApiError) as refused:
            list(stream)
        assert refused.value.code == "not_found"
        with pytest.raises(ApiError) as refused:
            next(client.stream("ses_unknown"))
        assert refused.value.status == 404


def test_a_service_that_stays_away_is_told_when_patience_ends(streamer: Streamer) -> None:
    with (
        Client("http://127.0.0.1:9", streamer.key.key, patience_s=0.05) as client,
        pytest.raises(Unreachable),
    ):
        next(client.stream("ses_01k0000000000000000000000a"))
