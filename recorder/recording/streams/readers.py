"""Readers of streams: their times, their queue of messages, the check of their keys. Contract §3, spec §5."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.errors import Unavailable
from recorder.models.workspace import KeyRow, WorkspaceRow
from recorder.recording.streams.messages import (
    KEEP_ALIVE,
    SEGMENT_BYTES,
    StreamSegment,
    join_segments,
    make_end_segment,
)
from recorder.recording.streams.poll import SessionAdvance


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """Intervals and time limits of a hub, in seconds."""

    #: A silent stream carries a comment after this.
    keep_alive_s: float = limits.STREAM_KEEP_ALIVE_S
    #: A reader that does not take 64 KiB within this time is disconnected.
    slow_s: float = 10.0
    #: Interval between polls of all sessions that have readers.
    poll_s: float = 1.0
    #: Interval between checks of the readers' keys.
    key_check_s: float = 2.0


#: Bytes of latest messages that a feed keeps; encoded for both kinds of streams they take three times that.
_LATEST_BYTES = 256 * 1024
#: Pause before a reader asks a database again that did not answer.
_RETRY_S = 1.0


class Ending(Enum):
    """Reason why a stream ends."""

    FINISHED = "The session is sealed."
    DELETED = "The session was deleted."
    KEY_REFUSED = "The key was revoked or has expired."
    WORKSPACE_DISABLED = "The workspace is not active."
    TOO_SLOW = "The reader takes too long."
    RESTARTING = "The service restarts."
    UNAVAILABLE = "A store does not answer; open the stream again."


class ReaderFeed:
    """Latest segments of the stream of one session, shared by its readers."""

    def __init__(self, session_id: str, position: int, *, is_sealed: bool) -> None:
        self.session_id = session_id
        #: Position of the last row read.
        self.position = position
        self.readers: set[Reader] = set()
        self._is_sealed = is_sealed
        self._latest: deque[StreamSegment] = deque()
        self._latest_bytes = 0
        self._end: StreamSegment | None = None

    def add(self, segments: Iterable[StreamSegment]) -> None:
        """Append segments of the stream that follow the feed's position."""
        for segment in segments:
            self._latest.append(segment)
            self._latest_bytes += segment.size
            self.position = segment.last
        while self._latest_bytes > _LATEST_BYTES and len(self._latest) > 1:
            self._latest_bytes -= self._latest.popleft().size
        self._end = None

    def apply(self, advance: SessionAdvance) -> None:
        """Append the segments that a poll read, and wake the readers."""
        fresh = [segment.after(self.position) for segment in advance.segments if segment.last > self.position]
        self.add(fresh)
        self._is_sealed = advance.is_sealed and not advance.has_more
        if advance.is_gone:
            self.cut(Ending.DELETED)
        elif fresh or self._is_sealed:
            self.wake()

    def wake(self) -> None:
        """Wake the readers."""
        for reader in self.readers:
            reader.wake()

    def cut(self, ending: Ending) -> None:
        """End the streams of all readers."""
        for reader in self.readers:
            reader.cut(ending)

    def holds(self, position: int) -> bool:
        """Return whether the feed holds the messages after a position."""
        return bool(self._latest) and self._latest[0].first <= position + 1

    def after(self, position: int) -> StreamSegment | None:
        """Return the messages after a position, up to the size of one write; None if there are none."""
        if not self._latest or position >= self._latest[-1].last:
            return None
        if (
            self._latest[-1].first == position + 1
        ):  # the usual case: the reader has all before the last segment
            return self._latest[-1]
        newer: list[StreamSegment] = []
        for segment in reversed(self._latest):
            if segment.last <= position:
                break
            newer.append(segment)
        size = 0
        taken: list[StreamSegment] = []
        for segment in reversed(newer):
            if taken and size + segment.size > SEGMENT_BYTES:
                break
            taken.append(segment)
            size += segment.size
        return join_segments([taken[0].after(position), *taken[1:]])

    def ending_at(self, position: int) -> StreamSegment | None:
        """Return the last message of an ended stream, for a reader that has all before it."""
        if not self._is_sealed or position < self.position:
            return None
        if self._end is None:
            self._end = make_end_segment(self.session_id, self.position)
        return self._end


ReadAfter = Callable[[str, int], Awaitable[SessionAdvance]]
#: Returns the next messages of a replay, none at its end.
ReadReplay = Callable[[], Awaitable[list[StreamSegment]]]


class Reader:
    """One open stream; `next` is for the one task that writes it."""

    def __init__(
        self,
        feed: ReaderFeed,
        key_id: str,
        position: int,
        read_after: ReadAfter,
        *,
        replay: ReadReplay | None = None,
        on_caught_up: Callable[[], object] | None = None,
    ) -> None:
        """Begin after a position.

        Args:
            feed: the session's.
            key_id: the key that opened the stream.
            position: of the last message that the reader has.
            read_after: reads messages that the feed no longer holds.
            replay: reads the messages that come before those of the feed.
            on_caught_up: called once the reader has all messages that existed when it began, or by `leave`.
        """
        self.key_id = key_id
        #: Position of the last message given to the writer.
        self.position = position
        #: Cancels the task that writes, if it hangs; set by that task.
        self.abort: Callable[[], object] = _ignore_abort
        self.feed = feed
        self._backlog: deque[StreamSegment] = deque()
        self._read_after = read_after
        self._replay = replay
        self._goal = feed.position
        self._on_caught_up = on_caught_up
        self._waiter: asyncio.Future[None] | None = None
        self._ending: Ending | None = None
        self._is_over = False
        self._is_idle = False
        #: Start of the present write; None while the reader waits.
        self._writes_since: float | None = None
        self._given_at = time.monotonic()

    @property
    def ending(self) -> Ending | None:
        """Return the reason why the stream ends; None while it continues."""
        return self._ending

    async def next(self) -> StreamSegment | None:
        """Return the next messages to write; None if the stream ends, for the reason in `ending`."""
        self._writes_since = None
        if self.position >= self._goal:
            self.finish_catching_up()
        if self._is_over:
            self.cut(Ending.FINISHED)
        while self._ending is None:
            if self._replay is not None and not self._backlog:
                await self._read_replay(self._replay)
                continue
            segment = self._take_next_segment()
            if segment is not None:
                self._given_at = self._writes_since = time.monotonic()
                return segment
            await (self._catch_up() if self._is_behind() else self._wait_for_new_messages())
        return None

    def finish_catching_up(self) -> None:
        """Call `on_caught_up`, if it was not called before."""
        on_caught_up, self._on_caught_up = self._on_caught_up, None
        if on_caught_up is not None:
            on_caught_up()

    def wake(self) -> None:
        """Wake the task that waits in `next`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cut(self, ending: Ending) -> None:
        """End the stream; messages that were not written yet are for the client's next stream."""
        if self._ending is None:
            self._ending = ending
            self.wake()

    def tick(self, now: float, *, keep_alive_s: float, slow_s: float) -> None:
        """Keep a silent stream alive, and end one whose client takes nothing."""
        if self._writes_since is None:
            if now - self._given_at >= keep_alive_s:
                self._is_idle = True
                self.wake()
        elif self._ending is not None:
            self.abort_write()
        elif now - self._writes_since >= slow_s:
            self.cut(Ending.TOO_SLOW)
            self.abort_write()

    def abort_write(self) -> None:
        """Cancel a write that hangs."""
        abort, self.abort = self.abort, _ignore_abort
        if self._writes_since is not None:
            abort()

    def _take_next_segment(self) -> StreamSegment | None:
        if self._backlog:
            segment = self._backlog.popleft()
            self.position = segment.last
            return segment
        if self.position < self.feed.position and self.feed.holds(self.position):
            fresh = self.feed.after(self.position)
            if fresh is not None:
                self.position = fresh.last
                return fresh
        last = self.feed.ending_at(self.position)
        if last is not None:
            self._is_over = True
            return last
        if self._is_idle:
            self._is_idle = False
            return KEEP_ALIVE
        return None

    def _is_behind(self) -> bool:
        return self.position < self.feed.position and not self.feed.holds(self.position)

    async def _catch_up(self) -> None:
        """Read the segments that the feed no longer holds into the reader's backlog."""
        try:
            advance = await self._read_after(self.feed.session_id, self.position)
        except Unavailable:
            await asyncio.sleep(_RETRY_S)
            return
        self._backlog.extend(advance.segments)
        if advance.is_gone:
            self.cut(Ending.DELETED)

    async def _read_replay(self, replay: ReadReplay) -> None:
        """Read the next segments of what was recorded before the stream began."""
        try:
            segments = await replay()
        except Unavailable:
            self.cut(Ending.UNAVAILABLE)
            return
        self._backlog.extend(segments)
        if not segments:
            self._replay = None

    async def _wait_for_new_messages(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


def _ignore_abort() -> None:
    """Do nothing: no task writes to the client now."""


def find_refused_reader_keys(db: DbSession, key_ids: Collection[str]) -> dict[str, Ending]:
    """Return the keys among these that are no longer valid, each with the reason."""
    statement = (
        select(KeyRow.id, KeyRow.revoked_at, KeyRow.expires_at, WorkspaceRow.status)
        .join(WorkspaceRow, col(WorkspaceRow.id) == col(KeyRow.workspace_id))
        .where(col(KeyRow.id).in_(key_ids))
    )
    refused = dict.fromkeys(key_ids, Ending.KEY_REFUSED)
    for key_id, revoked_at, expires_at, status in db.exec(statement):
        if revoked_at is not None or (expires_at is not None and expires_at <= clock.now()):
            continue
        if status == "active":
            del refused[key_id]
        else:
            refused[key_id] = Ending.WORKSPACE_DISABLED
    return refused
