"""Streams across processes: woken by Redis or found by the poll, ended and resumed when a process stops."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from benchmarks.servers import serving
from recorder.access.keys import NewKey
from recorder.access.workspaces import create_workspace
from recorder.recording.streams import StreamTimes
from recorder.runtime import Runtime
from recorder.supervisor.child_commands import choose_child_port
from tests.support.databases import create_database
from tests.support.deployment_processes import left_after, start_up
from tests.support.factories import event
from tests.support.redis_server import running_redis
from tests.support.sealed_sessions import make_settings
from tests.support.stream_clients import (
    Streamer,
    StreamService,
    connected,
    listening,
    streaming_service,
    wait_answers,
)
from tests.support.waiting import wait_for

NEVER = StreamTimes(poll_s=600)
SOON = StreamTimes(poll_s=0.2)


@contextmanager
def two_services(
    folder: Path, times: StreamTimes, **chosen: str
) -> Iterator[tuple[StreamService, StreamService]]:
    """Yield two services on one deployment."""
    with (
        streaming_service(folder, times=times, **chosen) as first,
        streaming_service(folder, times=times, **chosen) as other,
    ):
        yield first, other


@contextmanager
def one_key_for_both(services: tuple[StreamService, StreamService]) -> Iterator[tuple[Streamer, Streamer]]:
    """Yield the same key at either service."""
    first, other = services
    with first.streamer() as here, connected(other.url, here.key.key) as http:
        yield here, Streamer(other.url, here.key, http)


def test_redis_wakes_the_readers_of_other_processes(tmp_path: Path, postgres: str) -> None:
    database_url = create_database(postgres)
    with (
        running_redis() as redis,
        two_services(tmp_path, NEVER, database_url=database_url, redis_url=redis.url) as services,
        one_key_for_both(services) as (here, there),
    ):
        session_id = here.make_session()
        with listening(here, session_id) as readers:
            there.add_events(session_id, event(1))
            wait_for(lambda: readers.ids == [3])
            there.post(f"/v1/sessions/{session_id}/tags", name="far")
            wait_for(lambda: readers.ids == [3, 4])
            there.delete(f"/v1/sessions/{session_id}")
            wait_for(lambda: readers.is_over)


def test_a_redis_that_was_away_wakes_again_and_nothing_is_missed(tmp_path: Path, postgres: str) -> None:
    database_url = create_database(postgres)
    with (
        running_redis() as redis,
        two_services(tmp_path, NEVER, database_url=database_url, redis_url=redis.url) as services,
        one_key_for_both(services) as (here, there),
    ):
        session_id = here.make_session()
        with listening(here, session_id) as readers:
            redis.stop()
            there.add_events(session_id, event(1))  # nobody is told
            redis.start()
            wait_for(lambda: readers.ids == [3])  # whoever hears again looks at everything
            there.add_events(session_id, event(2))
            wait_for(lambda: readers.ids == [3, 4])


def test_without_redis_the_poll_finds_what_other_processes_wrote(tmp_path: Path, postgres: str) -> None:
    with (
        two_services(tmp_path, SOON, database_url=create_database(postgres)) as services,
        one_key_for_both(services) as (here, there),
    ):
        session_id = here.make_session()
        with listening(here, session_id, "?from=start") as readers:
            there.add_events(session_id, event(1))
            here.add_events(session_id, event(2))
            there.post(f"/v1/sessions/{session_id}/stop")
            wait_for(lambda: len(readers.messages) == 5)
            assert readers.ids == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("with_redis", [True, False])
def test_a_stream_is_resumed_at_another_process(tmp_path: Path, postgres: str, with_redis: bool) -> None:
    with ExitStack() as parts:
        chosen = {"database_url": create_database(postgres)}
        if with_redis:
            chosen["redis_url"] = parts.enter_context(running_redis()).url
        service = parts.enter_context(streaming_service(tmp_path, **chosen))
        process = parts.enter_context(serving(make_settings(tmp_path, **chosen)))
        here = parts.enter_context(service.streamer())
        there = Streamer(process.url, here.key, parts.enter_context(connected(process.url, here.key.key)))
        session_id = here.make_session()
        positions: list[int] = []
        for n in range(6):
            here.add_events(session_id, event(n), event(n))
            there.add_events(session_id, event(n))
            positions += read_some((here, there)[n % 2], session_id, positions)
        while positions[-1] < 20:
            positions += read_some(there, session_id, positions)
        assert positions == list(range(1, 21))


def read_some(streamer: Streamer, session_id: str, positions: list[int]) -> list[int]:
    """Return the first positions of a stream after those that were read."""
    headers = {"Last_Event_ID": str(positions[-1])} if positions else {}
    with listening(streamer, session_id, "?from=start", **headers) as readers:
        wait_for(lambda: readers.messages)
    return readers.ids


def make_deployment(data: Path) -> NewKey:
    """Return a data folder with a workspace, and its key."""
    settings = make_settings(data)
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "tests", region="us", secret=settings.secret, tier="unlimited")
    runtime.close()
    return made


@contextmanager
def recorder_up(data: Path, key: NewKey) -> Iterator[tuple[subprocess.Popen[str], Streamer]]:
    """Yield `recorder up` without Dagster, in a process of its own."""
    port = choose_child_port("127.0.0.1", 0, option="--port")
    with start_up(data, "--no-dagster", "--port", str(port), folder=data.parent) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_answers(url)
            with connected(url, key.key) as http:
                yield process, Streamer(url, key, http)
        finally:
            process.kill()
            left_after(data, 15)


def test_a_service_stops_at_once_with_fifty_streams_open_and_they_resume(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = make_deployment(data)
    with recorder_up(data, key) as (process, streamer), ExitStack() as open_streams:
        session_id = streamer.make_session()
        sockets = [open_streams.enter_context(streamer.connect(session_id)) for _ in range(25)]
        readers = [open_streams.enter_context(listening(streamer, session_id)) for _ in range(25)]
        streamer.add_events(session_id, event(1), event(2))
        wait_for(lambda: all(reader.ids == [3, 4] for reader in readers))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        seconds = time.monotonic() - began
        wait_for(lambda: all(reader.is_over for reader in readers))
        assert not any(reader.error for reader in readers)
        for socket in sockets:
            assert [socket.recv(timeout=5) for _ in range(2)]
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=5)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
    # The server alone gives open streams three seconds before it cuts them.
    assert seconds < 3
    with streaming_service(data) as service, connected(service.url, key.key) as http:
        streamer = Streamer(service.url, key, http)
        streamer.add_events(session_id, event(3))
        with listening(streamer, session_id, Last_Event_ID="4") as resumed:
            wait_for(lambda: resumed.ids == [5])
