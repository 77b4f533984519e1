"""Readers of a feed: each gets every message once and in order, however fast it is. Contract §3."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.errors import Unavailable
from recorder.recording.streams.messages import (
    KEEP_ALIVE,
    SEGMENT_BYTES,
    Message,
    StreamSegment,
    cut_messages_into_segments,
    make_gap_segment,
    make_stream_message,
)
from recorder.recording.streams.poll import SessionAdvance
from recorder.recording.streams.readers import Ending, Reader, ReaderFeed

Result = TypeVar("Result")


class Session:
    """A session whose rows are a list, and the feed that its readers share."""

    def __init__(self, count: int = 0) -> None:
        self.rows: list[Message] = []
        self.feed = ReaderFeed("ses_a", 0, is_sealed=False)
        self.polls = 0
        self.is_away = False
        self.add(count)

    def add(self, count: int, size: int = 10, *, is_sent: bool = True) -> None:
        """Store so many messages; with `is_sent`, pass them to the feed."""
        first = len(self.rows) + 1
        fresh = [
            make_stream_message(first + n, b"session.event", b'"%b"' % (b"x" * size)) for n in range(count)
        ]
        self.rows += fresh
        if is_sent and fresh:
            self.feed.apply(SessionAdvance(len(self.rows), segments=list(cut_messages_into_segments(fresh))))

    def poll(self, *, is_sealed: bool = False, is_gone: bool = False, before: int = 0) -> None:
        """Poll the rows for the feed; it may have received some of them since the poll began."""
        fresh = self.rows[max(0, self.feed.position - before) :]
        self.feed.apply(
            SessionAdvance(
                len(self.rows),
                is_sealed=is_sealed,
                is_gone=is_gone,
                segments=list(cut_messages_into_segments(fresh)),
            )
        )

    def join(self, position: int) -> Reader:
        """Return a reader that has the messages up to a position."""
        reader = Reader(self.feed, "key_a", position, self.read_on)
        self.feed.readers.add(reader)
        return reader

    async def read_on(self, session_id: str, position: int) -> SessionAdvance:
        """Return the rows after a position, a few at a time."""
        self.polls += 1
        if self.is_away:
            raise Unavailable("The database")
        return SessionAdvance(
            position, segments=list(cut_messages_into_segments(self.rows[position : position + 7]))
        )


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, for at most 20 seconds."""

    async def bounded() -> Result:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


async def take(reader: Reader, upto: int) -> list[int]:
    """Read up to a position; return the positions in the order in which they came."""
    received: list[int] = []
    while reader.position < upto:
        segment = await reader.next()
        assert segment is not None
        received += [sent[0] for sent in segment.messages]
    return received


_SIZES = st.sampled_from([1, 100, SEGMENT_BYTES // 2, SEGMENT_BYTES * 2])
_STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 30), _SIZES, st.booleans()),
    st.tuples(st.just("join"), st.integers(0, 10**6)),
    st.tuples(st.just("read"), st.integers(0, 10**6)),
    st.tuples(st.just("poll"), st.integers(0, 20)),
)


@given(st.lists(_STEPS, max_size=40))
def test_every_reader_gets_every_message_once_and_in_order(steps: list[Any]) -> None:
    async def schedule() -> None:
        session = Session(3)
        readers: list[tuple[Reader, int, list[int]]] = []
        for step in steps:
            if step[0] == "add":
                session.add(step[1], step[2], is_sent=step[3] and session.feed.position == len(session.rows))
            elif step[0] == "poll":
                session.poll(before=step[1])
            elif step[0] == "join":
                position = step[1] % (len(session.rows) + 1)
                readers.append((session.join(position), position, []))
            elif readers:
                reader, _, received = readers[step[1] % len(readers)]
                if reader.position < session.feed.position:
                    segment = await reader.next()
                    assert segment is not None
                    received += [sent[0] for sent in segment.messages]
        session.poll()
        for reader, position, received in readers:
            received += await take(reader, len(session.rows))
            assert received == list(range(position + 1, len(session.rows) + 1))

    run(schedule())


def test_readers_that_keep_up_share_what_is_written() -> None:
    async def read() -> list[bytes]:
        session = Session(1)
        readers = [session.join(1) for _ in range(5)]
        waiting = [asyncio.create_task(reader.next()) for reader in readers]
        await asyncio.sleep(0)
        session.add(3)
        return [segment.sse for segment in await asyncio.gather(*waiting) if segment is not None]

    written = run(read())
    assert len(written) == 5 and len({id(data) for data in written}) == 1


def test_what_waits_is_written_at_once() -> None:
    async def read() -> list[int]:
        session = Session(1)
        reader = session.join(1)
        for _ in range(10):
            session.add(1)
        segment = await reader.next()
        assert segment is not None
        return [sent[0] for sent in segment.messages]

    assert run(read()) == list(range(2, 12))


def test_a_reader_that_fell_behind_waits_for_a_database_that_is_away() -> None:
    async def read() -> list[int]:
        session = Session()
        session.add(100, SEGMENT_BYTES)  # more than the feed keeps
        reader, session.is_away = session.join(0), True
        reading = asyncio.create_task(take(reader, 100))
        while session.polls == 0:
            await asyncio.sleep(0)
        session.is_away = False
        return await reading

    assert run(read()) == list(range(1, 101))


def test_a_sealed_session_is_sent_to_its_end_and_ends() -> None:
    async def read() -> tuple[list[Any], Ending | None]:
        session = Session(2)
        reader = session.join(0)
        session.poll(is_sealed=True)
        received = []
        while (segment := await reader.next()) is not None:
            received += [(sent[0], sent[1]) for sent in segment.messages]
        return received, reader.ending

    received, ending = run(read())
    assert received == [(1, b"session.event"), (2, b"session.event"), (2, b"stream.end")]
    assert ending is Ending.FINISHED


def test_a_gap_is_passed_like_any_message() -> None:
    async def read() -> list[Any]:
        session = Session(1)
        reader = session.join(1)
        session.feed.apply(SessionAdvance(9, segments=[make_gap_segment("ses_a", 2, 9)]))
        segment = await reader.next()
        assert segment is not None
        return [segment.messages[0][1], reader.position]

    assert run(read()) == [b"stream.gap", 9]


@pytest.mark.parametrize("ending", [Ending.KEY_REFUSED, Ending.RESTARTING])
def test_a_reader_that_is_cut_ends_before_what_still_waits(ending: Ending) -> None:
    async def read() -> tuple[StreamSegment | None, Ending | None]:
        session = Session(5)
        reader = session.join(0)
        reader.cut(ending)
        return await reader.next(), reader.ending

    assert run(read()) == (None, ending)


def test_the_readers_of_a_deleted_session_end_while_they_wait() -> None:
    async def read() -> list[Ending | None]:
        session = Session(1)
        readers = [session.join(1) for _ in range(3)]
        waiting = [asyncio.create_task(reader.next()) for reader in readers]
        await asyncio.sleep(0)
        session.poll(is_gone=True)
        await asyncio.gather(*waiting)
        return [reader.ending for reader in readers]

    assert run(read()) == [Ending.DELETED] * 3


def test_a_silent_stream_is_kept_alive_and_a_busy_one_is_not() -> None:
    async def read() -> list[StreamSegment | None]:
        session = Session(1)
        reader = session.join(1)
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        reader.tick(time.monotonic() + 14, keep_alive_s=15, slow_s=30)
        session.add(1)
        first = await waiting
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        reader.tick(time.monotonic() + 15, keep_alive_s=15, slow_s=30)
        return [first, await waiting]

    first, second = run(read())
    assert first is not None and first.messages and second is KEEP_ALIVE


def test_a_write_that_takes_too_long_is_given_up_once() -> None:
    async def write() -> tuple[int, int, Ending | None]:
        session = Session(1)
        reader = session.join(0)
        aborts: list[None] = []
        reader.abort = lambda: aborts.append(None)
        await reader.next()  # and now it writes
        reader.tick(time.monotonic() + 29, keep_alive_s=15, slow_s=30)
        early = len(aborts)
        for _ in range(3):
            reader.tick(time.monotonic() + 30, keep_alive_s=15, slow_s=30)
        return early, len(aborts), reader.ending

    assert run(write()) == (0, 1, Ending.TOO_SLOW)
