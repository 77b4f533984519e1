"""Whole-session reads: in portions, limited, ended with their client or their session. Contract §1, §2."""

import asyncio
import socket
import threading
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.streams.event_download import ARROW, EventDownload, NdjsonDownload
from api.streams.portioned_download import NDJSON
from recorder import limits
from recorder.access.keys import Caller as KeyHolder
from recorder.errors import RateLimited
from recorder.recording import hot_event_reader, session_events
from recorder.recording.session_events import SessionEventPortions
from recorder.recording.stored_events import EVERY_EVENT
from recorder.recording.whole_reads import WholeReads
from recorder.sealing import Sealer
from recorder.tenant import Tenant
from tests.support.factories import Caller, assert_problem, event
from tests.support.recorded_sessions import execute
from tests.support.sealing import seal_waiting
from tests.support.stream_clients import Streamer, StreamService
from tests.support.waiting import wait_for

#: More than sockets and the service hold together, so that a client that does not read holds a read up.
_LARGE = "x" * 60_000


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set portions of three events."""
    monkeypatch.setattr(session_events, "PORTION_EVENTS", 3)


def add_large_events(streamer: Streamer, session_id: str, *, batches: int = 4) -> None:
    """Send 6 MB of events with each batch."""
    for n in range(batches):
        items = [event(100 * n + m, data={"text": _LARGE}) for m in range(100)]
        streamer.add_events(session_id, *items)


def begin_read(streamer: Streamer, session_id: str, accept: str = NDJSON) -> socket.socket:
    """Ask for a whole session on a connection with a small buffer, and read nothing but the status."""
    address = urlsplit(streamer.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect((address.hostname, address.port))
    head = [f"GET /v1/sessions/{session_id}/events HTTP/1.1", "Host: testserver", f"Accept: {accept}"]
    head += [f"Authorization: Bearer {streamer.key.key}", "", ""]
    connection.sendall("\r\n".join(head).encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def reads_of(service: StreamService) -> WholeReads:
    """Return the whole-session reads of a running service."""
    whole_reads: WholeReads = service.app.state.whole_reads
    return whole_reads


def sealed(streamer: Streamer, service: StreamService, session_id: str) -> None:
    """Stop, seal and sweep a session."""
    streamer.post(f"/v1/sessions/{session_id}/stop")
    sealer = Sealer(service.runtime, owner="tests")
    assert sealer.take()
    seal_waiting(sealer)
    execute(service.runtime, "UPDATE sessions SET sealed_at = '2020-01-01' WHERE id = :id", id=session_id)
    sealer.maintain()
    sealer.release()


@pytest.mark.parametrize("accept", [NDJSON, ARROW])
@pytest.mark.usefixtures("small_portions")
def test_portions_end_at_the_same_events_before_and_after_sealing(
    stream_service: StreamService, streamer: Streamer, accept: str
) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, *[event(n // 4, data={"n": n}) for n in range(10)])
    streamer.add_events(session_id, *[event(n, frame_id="frm_a" if n % 2 else None) for n in range(7)])
    path = f"/v1/sessions/{session_id}/events"
    hot = streamer.http.get(path, headers={"Accept": accept}).content
    sealed(streamer, stream_service, session_id)
    assert streamer.http.get(path, headers={"Accept": accept}).content == hot
    # The cursor of a page is where a whole read may begin, too.
    cursor = streamer.http.get(f"{path}?limit=5").json()["next_cursor"]
    rest = streamer.http.get(path, params={"cursor": cursor}, headers={"Accept": NDJSON}).content
    assert len(rest.splitlines()) == 12


@pytest.mark.usefixtures("small_portions")
def test_a_portion_is_read_once_the_one_before_was_taken(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, *[event(n) for n in range(30)])
    read: list[int] = []
    real = SessionEventPortions.read

    def counted(portions: SessionEventPortions) -> Any:
        portion = real(portions)
        read.append(0 if portion is None else portion.num_rows)
        return portion

    monkeypatch.setattr(SessionEventPortions, "read", counted)

    async def run() -> None:
        reads, taken, wanted = WholeReads(), [], asyncio.Semaphore(0)

        async def send(message: Any) -> None:
            if message.get("body"):
                await wanted.acquire()
                taken.append(message["body"])

        download = make_download(caller, reads, session_id)
        task = asyncio.create_task(download({"state": {}}, never_gone, send))
        for n in range(1, 11):
            while len(read) < n:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            # The client has taken n - 1 portions; the service holds the next one and no more.
            assert (len(read), len(taken), reads.count) == (n, n - 1, 1)
            wanted.release()
        await asyncio.wait_for(task, 20)
        assert read == [3] * 10 + [0] and len(taken) == 10 and reads.count == 0
        reads.close()

    asyncio.run(run())


@pytest.mark.usefixtures("small_portions")
def test_a_client_that_goes_away_ends_the_work(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, *[event(n) for n in range(30)])
    closed: list[SessionEventPortions] = []
    monkeypatch.setattr(SessionEventPortions, "close", lambda portions: closed.append(portions))

    async def run() -> None:
        reads, gone, sent = WholeReads(), asyncio.Event(), []

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body"):
                gone.set()
                await asyncio.Event().wait()

        await asyncio.wait_for(make_download(caller, reads, session_id)({"state": {}}, receive, send), 20)
        assert reads.count == 0 and len([item for item in sent if item.get("body")]) == 1
        while not closed:
            await asyncio.sleep(0.001)
        reads.close()

    asyncio.run(run())


async def never_gone() -> dict[str, Any]:
    """Receive from a client that stays."""
    await asyncio.Event().wait()
    return {}


def make_download(caller: Caller, reads: WholeReads, session_id: str) -> EventDownload:
    """Return a read of a whole session as NDJSON."""
    holder = KeyHolder(Tenant(caller.key.workspace_id, "live"), caller.key.key_id)
    runtime = caller.service.runtime
    return EventDownload(
        runtime, reads, holder, session_id, after=None, wanted=EVERY_EVENT, format=NdjsonDownload()
    )


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("accept", [NDJSON, ARROW])
def test_a_session_that_is_deleted_cuts_its_read(
    stream_service: StreamService, streamer: Streamer, accept: str, is_sealed: bool
) -> None:
    session_id = streamer.make_session()
    add_large_events(streamer, session_id)
    if is_sealed:
        sealed(streamer, stream_service, session_id)
    with closing(begin_read(streamer, session_id, accept)) as connection:
        streamer.delete(f"/v1/sessions/{session_id}")
        received = b""
        with pytest.raises(ConnectionResetError):
            while True:
                part = connection.recv(1 << 20)
                assert part, "the body ended as if it were whole"
                received += part
        assert not received.endswith(b"0\r\n\r\n") and len(received) < 24_000_000
    wait_for(lambda: reads_of(stream_service).count == 0)


def test_a_read_continues_in_the_lake_where_its_session_was_swept(
    stream_service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    add_large_events(streamer, session_id)
    path = f"/v1/sessions/{session_id}/events"
    with streamer.http.stream("GET", path, headers={"Accept": NDJSON}) as answer:
        chunks = answer.iter_bytes(65_536)
        body = next(chunks)
        sealed(streamer, stream_service, session_id)
        body += b"".join(chunks)
    assert body == streamer.http.get(path, headers={"Accept": NDJSON}).content
    assert len(body.splitlines()) == 400


def test_a_key_has_so_many_whole_reads_under_way(stream_service: StreamService, streamer: Streamer) -> None:
    session_id = streamer.make_session()
    add_large_events(streamer, session_id)
    path = f"/v1/sessions/{session_id}/events"
    with ExitStack() as stack:
        for _ in range(limits.WHOLE_READS_PER_KEY):
            stack.enter_context(closing(begin_read(streamer, session_id)))
        for refused in (
            streamer.http.get(path, headers={"Accept": ARROW}),
            streamer.http.get(f"{path}/stream?from=start"),
        ):
            assert_problem(refused, 429, "rate_limited")
            assert int(refused.headers["retry-after"]) >= 1
            shown = {name: refused.headers[f"x-{name}"] for name in ("scope", "ratelimit-limit")}
            assert shown == {"scope": "per_key_concurrency", "ratelimit-limit": "8"}
        # Pages, streams from the tail, and other keys go on.
        assert streamer.http.get(path).status_code == 200
        with streamer.connect(session_id):
            pass
        with stream_service.streamer(workspace_id=streamer.key.workspace_id) as other:
            assert other.http.get(path, headers={"Accept": NDJSON}).status_code == 200
    wait_for(lambda: reads_of(stream_service).count == 0)
    assert streamer.http.get(path, headers={"Accept": NDJSON}).status_code == 200


def test_a_stream_from_the_start_counts_while_it_replays(
    stream_service: StreamService, streamer: Streamer
) -> None:
    session_id = streamer.make_session()
    streamer.add_events(session_id, event(1))
    reads = reads_of(stream_service)
    with streamer.connect(session_id, "?from=start") as stream:
        assert [stream.recv(timeout=20) for _ in range(3)]
        wait_for(lambda: reads.count == 0)  # it has caught up, and stays open
        streamer.add_events(session_id, event(2))
        assert stream.recv(timeout=20)
    add_large_events(streamer, session_id)
    with streamer.connect(session_id, "?from=start") as stream:
        assert stream.recv(timeout=20)
        assert reads.count == 1
    wait_for(lambda: reads.count == 0)


def test_a_workspace_and_a_process_have_so_many_whole_reads_under_way() -> None:
    async def run() -> None:
        reads = WholeReads()
        with ExitStack() as stack:
            for n in range(limits.WHOLE_READS_PER_WORKSPACE):
                stack.enter_context(reads.hold(KeyHolder(Tenant("wsp_a", "live"), f"key_{n}")))
            with (
                pytest.raises(RateLimited) as refused,
                reads.hold(KeyHolder(Tenant("wsp_a", "live"), "key_other")),
            ):
                pass
            assert refused.value.scope == "per_workspace_concurrency"
            for n in range(limits.WHOLE_READS_PER_PROCESS - limits.WHOLE_READS_PER_WORKSPACE):
                stack.enter_context(reads.hold(KeyHolder(Tenant("wsp_b", "live"), f"key_b{n}")))
            with (
                pytest.raises(RateLimited) as refused,
                reads.hold(KeyHolder(Tenant("wsp_b", "live"), "key_other")),
            ):
                pass
            assert refused.value.scope == "per_process_concurrency"
            with reads.hold(KeyHolder(Tenant("wsp_c", "live"), "key_c")):
                assert reads.count == limits.WHOLE_READS_PER_PROCESS + 1
        assert reads.count == 0
        reads.close()

    asyncio.run(run())


def test_workspaces_take_turns_however_many_reads_one_has() -> None:
    async def run() -> None:
        reads, order = WholeReads(), []
        begun = threading.Event()

        def work(name: str) -> None:
            begun.wait(20)
            order.append(name)

        many = [asyncio.create_task(reads.run("wsp_a", partial(work, "a"))) for _ in range(8)]
        await asyncio.sleep(0)
        quiet = [asyncio.create_task(reads.run("wsp_b", partial(work, "b"))) for _ in range(2)]
        await asyncio.sleep(0)
        many.pop().cancel()
        begun.set()
        await asyncio.gather(*many, *quiet)
        assert order == ["a", "a", "b", "a", "b", "a", "a", "a", "a"]
        await reads.run("wsp_c", partial(work, "c"))
        reads.close()

    asyncio.run(run())


@pytest.mark.usefixtures("small_portions")
def test_a_portion_that_needs_several_turns_is_the_same_portion(
    stream_service: StreamService, streamer: Streamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = streamer.make_session()
    for first in range(12):
        streamer.add_events(session_id, *[event(first + 12 * n) for n in range(4)])
    path = f"/v1/sessions/{session_id}/events"
    whole = streamer.http.get(path, headers={"Accept": ARROW}).content
    bounds = hot_event_reader.ReadBounds(held_events=5, searched_batches=1)
    monkeypatch.setattr(hot_event_reader, "BOUNDS", bounds)
    assert streamer.http.get(path, headers={"Accept": ARROW}).content == whole
    sealed(streamer, stream_service, session_id)
    assert streamer.http.get(path, headers={"Accept": ARROW}).content == whole


def test_a_client_that_takes_nothing_is_cut_off(
    stream_service: StreamService, streamer: Streamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WHOLE_READ_PATIENCE_S", 0.3)
    session_id = streamer.make_session()
    add_large_events(streamer, session_id)
    with closing(begin_read(streamer, session_id)) as connection:
        wait_for(lambda: reads_of(stream_service).count == 0)
        with pytest.raises(ConnectionResetError):
            while connection.recv(1 << 20):
                pass


def test_the_limits_are_listed(streamer: Streamer) -> None:
    limits_of_reads = streamer.http.get("/v1/limits").json()["whole_session_reads"]
    assert limits_of_reads == {"per_key": 8, "per_workspace": 20, "per_process": 24}


@pytest.mark.parametrize("accept", [NDJSON, ARROW])
def test_what_is_wrong_is_answered_before_the_body_begins(streamer: Streamer, accept: str) -> None:
    missing = streamer.http.get(f"/v1/sessions/ses_{'0' * 26}/events", headers={"Accept": accept})
    assert_problem(missing, 404, "not_found")
    empty = streamer.http.get(f"/v1/sessions/{streamer.make_session()}/events", headers={"Accept": accept})
    assert empty.status_code == 200 and (accept == ARROW or empty.content == b"")
