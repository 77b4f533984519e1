"""Readers of streams: their pace, their queue of messages, the check of their keys. Contract §3, spec §5."""

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
from recorder.recording.streams.messages import KEEP_ALIVE, SEGMENT_BYTES, Segment, end, joined
from recorder.recording.streams.poll import Advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between what a hub does."""

    #: A silent stream carries a comment after this.
    keep_alive_s: float = limits.STREAM_KEEP_ALIVE_S
    #: A reader that does not take what is written at once (64 KiB) within this is cut off.
    slow_s: float = 10.0
    #: What nobody woke it for is found after this.
    poll_s: float = 1.0
    #: A key that was revoked ends its streams after this and a poll.
    standing_s: float = 2.0


#: Latest messages that a feed keeps at hand; encoded for both kinds of streams they take three times as much.
_LATEST_BYTES = 256 * 1024
#: After this a reader that fell behind asks a database again that did not answer.
_RETRY_S = 1.0


class Ending(Enum):
    """Why a stream ends."""

    FINISHED = "The session is sealed."
    DELETED = "The session was deleted."
    KEY_REFUSED = "The key was revoked or has expired."
    WORKSPACE_DISABLED = "The workspace is not active."
    TOO_SLOW = "The reader takes too long."
    RESTARTING = "The service restarts."
    UNAVAILABLE = "A store does not answer; open the stream again."


class Feed:
    """What is new in one session, for all who read it."""

    def __init__(self, session_id: str, position: int, *, is_sealed: bool) -> None:
        self.session_id = session_id
        #: Up to which the rows were read.
        self.position = position
        self.readers: set[Reader] = set()
        self._is_sealed = is_sealed
        self._latest: deque[Segment] = deque()
        self._latest_bytes = 0
        self._end: Segment | None = None

    def add(self, segments: Iterable[Segment]) -> None:
        """Take messages that follow the feed's position."""
        for segment in segments:
            self._latest.append(segment)
            self._latest_bytes += segment.size
            self.position = segment.last
        while self._latest_bytes > _LATEST_BYTES and len(self._latest) > 1:
            self._latest_bytes -= self._latest.popleft().size
        self._end = None

    def apply(self, advance: Advance) -> None:
        """Take what a look at the rows found, and tell the readers."""
        fresh = [one.behind(self.position) for one in advance.segments if one.last > self.position]
        self.add(fresh)
        self._is_sealed = advance.is_sealed and not advance.has_more
        if advance.is_gone:
            self.cut(Ending.DELETED)
        elif fresh or self._is_sealed:
            self.wake()

    def wake(self) -> None:
        """Let the readers look."""
        for reader in self.readers:
            reader.wake()

    def cut(self, ending: Ending) -> None:
        """End the stream for all who read it."""
        for reader in self.readers:
            reader.cut(ending)

    def holds(self, position: int) -> bool:
        """Return whether what follows a position is at hand."""
        return bool(self._latest) and self._latest[0].first <= position + 1

    def behind(self, position: int) -> Segment | None:
        """What follows a position, as much as is written at once; None where nothing does."""
        if not self._latest or position >= self._latest[-1].last:
            return None
        if self._latest[-1].first == position + 1:  # as it is for whoever keeps up
            return self._latest[-1]
        found: list[Segment] = []
        for segment in reversed(self._latest):
            if segment.last <= position:
                break
            found.append(segment)
        size = 0
        taken: list[Segment] = []
        for segment in reversed(found):
            if taken and size + segment.size > SEGMENT_BYTES:
                break
            taken.append(segment)
            size += segment.size
        return joined([taken[0].behind(position), *taken[1:]])

    def ending_at(self, position: int) -> Segment | None:
        """Return the last message of an ended stream, for a reader that has all before it."""
        if not self._is_sealed or position < self.position:
            return None
        if self._end is None:
            self._end = end(self.session_id, self.position)
        return self._end


ReadOn = Callable[[str, int], Awaitable[Advance]]
#: Gives the next messages of a replay, none at its end.
ReadReplay = Callable[[], Awaitable[list[Segment]]]


class Reader:
    """One open stream; `next` is for the one task that writes it."""

    def __init__(
        self,
        feed: Feed,
        key_id: str,
        position: int,
        read_on: ReadOn,
        *,
        replay: ReadReplay | None = None,
        on_caught_up: Callable[[], object] | None = None,
    ) -> None:
        """Begin behind a position.

        Args:
            feed: the session's.
            key_id: the key that opened the stream.
            position: of the last message that is not wanted.
            read_on: reads what the feed no longer holds.
            replay: reads what comes first, before anything of the feed.
            on_caught_up: called once all that was there at the beginning was taken, or by `leave`.
        """
        self.key_id = key_id
        #: Up to which it was given messages.
        self.position = position
        #: Cancels the task that writes, should it hang; set by whoever runs it.
        self.abort: Callable[[], object] = _nothing
        self.feed = feed
        self._backlog: deque[Segment] = deque()
        self._read_on = read_on
        self._replay = replay
        self._goal = feed.position
        self._on_caught_up = on_caught_up
        self._waiter: asyncio.Future[None] | None = None
        self._ending: Ending | None = None
        self._is_over = False
        self._is_idle = False
        #: Since when it writes; None while it waits.
        self._writes_since: float | None = None
        self._given_at = time.monotonic()

    @property
    def ending(self) -> Ending | None:
        """Why the stream ends; None as long as it goes on."""
        return self._ending

    async def next(self) -> Segment | None:
        """What is to be written next; None where the stream ends, for the reason in `ending`."""
        self._writes_since = None
        if self.position >= self._goal:
            self.finish_catching_up()
        if self._is_over:
            self.cut(Ending.FINISHED)
        while self._ending is None:
            if self._replay is not None and not self._backlog:
                await self._read_replay(self._replay)
                continue
            found = self._at_hand()
            if found is not None:
                self._given_at = self._writes_since = time.monotonic()
                return found
            await (self._catch_up() if self._is_behind() else self._wait())
        return None

    def finish_catching_up(self) -> None:
        """Tell that the reader has what was there at its beginning, or that it is gone; once."""
        told, self._on_caught_up = self._on_caught_up, None
        if told is not None:
            told()

    def wake(self) -> None:
        """Let the reader look for what is new."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cut(self, ending: Ending) -> None:
        """End the stream; what was not written yet is for the next one."""
        if self._ending is None:
            self._ending = ending
            self.wake()

    def tick(self, now: float, *, keep_alive_s: float, slow_s: float) -> None:
        """Keep a silent stream alive, and give up one that takes nothing."""
        if self._writes_since is None:
            if now - self._given_at >= keep_alive_s:
                self._is_idle = True
                self.wake()
        elif self._ending is not None:
            self.give_up()
        elif now - self._writes_since >= slow_s:
            self.cut(Ending.TOO_SLOW)
            self.give_up()

    def give_up(self) -> None:
        """Stop a write that hangs."""
        abort, self.abort = self.abort, _nothing
        if self._writes_since is not None:
            abort()

    def _at_hand(self) -> Segment | None:
        if self._backlog:
            found = self._backlog.popleft()
            self.position = found.last
            return found
        if self.position < self.feed.position and self.feed.holds(self.position):
            fresh = self.feed.behind(self.position)
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
        try:
            advance = await self._read_on(self.feed.session_id, self.position)
        except Unavailable:
            await asyncio.sleep(_RETRY_S)
            return
        self._backlog.extend(advance.segments)
        if advance.is_gone:
            self.cut(Ending.DELETED)

    async def _read_replay(self, replay: ReadReplay) -> None:
        try:
            segments = await replay()
        except Unavailable:
            self.cut(Ending.UNAVAILABLE)
            return
        self._backlog.extend(segments)
        if not segments:
            self._replay = None

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


def _nothing() -> None:
    """Nobody writes."""


def find_refused(db: DbSession, key_ids: Collection[str]) -> dict[str, Ending]:
    """Return the keys among these that are no longer good, each with the reason."""
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
