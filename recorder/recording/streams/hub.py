"""Hub of one process's streams: polls the sessions that have readers and passes new rows to them.

It polls when it is woken (the ingest writer, a transaction of this process, another process by Redis) and
once a second: sealing happens elsewhere, and a wake-up may get lost. Spec §6.5, contract §3.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from sqlmodel import Session as DbSession

from recorder.access.keys import Caller
from recorder.errors import RecorderError, Unavailable
from recorder.models.session import SessionRow
from recorder.recording.events import EventBatch
from recorder.recording.ingest import Batch
from recorder.recording.streams.messages import cut, event_messages
from recorder.recording.streams.poll import Advance, read_advances
from recorder.recording.streams.readers import Ending, Feed, Pace, Reader, find_refused
from recorder.recording.streams.redis_pubsub import RedisWakeups
from recorder.recording.streams.resume import Start, SweptReplay, open_session
from recorder.recording.whole_reads import WholeReads
from recorder.runtime import Runtime

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Streams that open, and readers that fell behind: apart from the looks, so that no look waits for them.
_THREADS = 4
# After a look the next one gathers what comes meanwhile: twenty looks a second, however busy the sessions.
_GATHER_S = 0.05
# A write that hangs when the service stops is given up after this.
_LAST_WRITE_S = 0.5


class Hub:
    """All open streams of a process; made, started and closed in its event loop."""

    def __init__(self, runtime: Runtime, pace: Pace, whole_reads: WholeReads) -> None:
        self._runtime = runtime
        self._whole_reads = whole_reads
        self.pace = pace
        self._feeds: dict[str, Feed] = {}
        self._loop = asyncio.get_running_loop()
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="streams-look")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="streams-open")
        url = runtime.settings.redis_url
        self._others = RedisWakeups(url, self._wake) if url else None
        self._woken: set[str] = set()
        self._is_woken = asyncio.Event()
        self._is_closed = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look, and hear of every transaction of this process that changes a session."""
        self._runtime.database.after_commit(SessionRow, self.touch)
        self._tasks = [asyncio.create_task(self._look_on()), asyncio.create_task(self._tick_on())]
        if self._others is not None:
            self._others.start()

    def end_streams(self) -> None:
        """End every stream, since the process is about to stop; their clients resume elsewhere."""
        if self._is_closed:
            return
        self._is_closed = True
        for reader in self._readers():
            reader.cut(Ending.RESTARTING)
        self._loop.call_later(_LAST_WRITE_S, self._give_up_all)

    async def close(self) -> None:
        """End what is left, at the end of the process."""
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._others is not None:
            await self._others.close()
        for threads in (self._looking, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def take(self, batches: Collection[Batch]) -> None:
        """Pass on batches that the ingest writer committed; called from its thread.

        Events go to their readers as they are: at the rate of a busy ingest, to read back what was just
        written would cost as much as to write it.
        """
        read = [batch for batch in batches if batch.session_id in self._feeds]
        if read or self._others is not None:
            self._in_loop({batch.session_id for batch in batches}, read)

    def touch(self, session_ids: Iterable[str]) -> None:
        """Wake the readers of sessions whose rows were committed; called from any thread."""
        touched = set(session_ids)
        if self._others is not None or any(one in self._feeds for one in touched):
            self._in_loop(touched)

    async def open(self, caller: Caller, session_id: str, start: Start) -> Reader | None:
        """Return a reader of a session; None where the stream is over and nothing is left to tell.

        Raises:
            NotFound: if the caller has no such session.
            InvalidEventId: if the stream cannot have given this position out.
            ResumeWindowExpired: if something behind it is older than the resume window.
            RateLimited: if it replays a session, and as many reads of whole sessions as may are under way.
            Unavailable: if the service is about to stop, or the database does not answer.
        """
        if self._is_closed:
            raise Unavailable("The service is about to restart and")
        with ExitStack() as held:
            if start.is_whole:
                held.enter_context(self._whole_reads.hold(caller))
            opening = await self._read(lambda db: open_session(db, caller, session_id, start))
            if opening.is_over and start.after is not None:
                return None
            if opening.is_long and not start.is_whole:
                held.enter_context(self._whole_reads.hold(caller))
            feed = self._feeds.get(session_id)
            if feed is None:
                feed = Feed(session_id, opening.last_position, is_sealed=opening.is_sealed)
                self._feeds[session_id] = feed
            replay = None
            if opening.swept is not None:
                swept = SweptReplay(self._runtime.database, self._runtime.lake, opening.swept)
                held.callback(self._whole_reads.submit, swept.close)
                replay = partial(self._whole_reads.run, swept.read)
            reader = Reader(
                feed,
                caller.key_id,
                opening.position,
                self._read_on,
                replay=replay,
                on_caught_up=held.pop_all().close,
            )
        feed.readers.add(reader)
        # What came between the reading and this moment.
        self._wake([session_id])
        return reader

    def leave(self, reader: Reader) -> None:
        """Remove a reader; a feed without readers is dropped."""
        reader.finish_catching_up()
        feed = reader.feed
        feed.readers.discard(reader)
        if not feed.readers and self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def _in_loop(self, session_ids: set[str], batches: Collection[Batch] = ()) -> None:
        if self._is_closed:
            return
        with suppress(RuntimeError):  # the loop has closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._pass_on, session_ids, batches)

    def _pass_on(self, session_ids: set[str], batches: Collection[Batch] = ()) -> None:
        told = {batch.session_id for batch in batches if self._hand_over(batch)}
        self._wake(session_ids - told)
        if self._others is not None:
            self._others.touch(session_ids)

    def _hand_over(self, batch: Batch) -> bool:
        """Give a batch to those who read its session; False where the rows must be read."""
        feed = self._feeds.get(batch.session_id)
        if feed is None or not isinstance(batch, EventBatch) or batch.first_position != feed.position + 1:
            return False
        feed.add(cut(event_messages(batch.first_position, batch.range_id, batch.payload)))
        feed.wake()
        return True

    def _wake(self, session_ids: Iterable[str] | None) -> None:
        found = self._feeds.keys() if session_ids is None else self._feeds.keys() & set(session_ids)
        if found:
            self._woken |= found
            self._is_woken.set()

    async def _look_on(self) -> None:
        """Look at what was woken, and at everything once a poll."""
        poll_at = standing_at = time.monotonic() + self.pace.poll_s
        while True:
            await self._wait_until(poll_at)
            now = time.monotonic()
            woken, self._woken = self._woken, set()
            if now >= poll_at:
                woken, poll_at = set(self._feeds), now + self.pace.poll_s
            is_behind = False
            try:
                is_behind = await self._look(woken)
                if now >= standing_at:
                    await self._check_standing()
                    standing_at = now + self.pace.standing_s
            except RecorderError as error:  # the database is away: the next poll finds what was missed
                log.warning("streams were not read: %s", error)
            except Exception as error:
                log.error("streams were not read", exc_info=error)
            await asyncio.sleep(0 if is_behind else _GATHER_S)

    async def _wait_until(self, moment: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, moment - time.monotonic())):
                await self._is_woken.wait()
        except TimeoutError:
            return
        self._is_woken.clear()

    async def _look(self, session_ids: Iterable[str]) -> bool:
        """Read what is new in these sessions, all in one look, and tell their readers; says if more waits."""
        positions = {one: self._feeds[one].position for one in session_ids if one in self._feeds}
        if not positions:
            return False
        advances = await self._read(lambda db: read_advances(db, positions), self._looking)
        for session_id, advance in advances.items():
            feed = self._feeds.get(session_id)
            if feed is not None:
                feed.apply(advance)
        behind = [one for one, advance in advances.items() if advance.has_more]
        self._wake(behind)
        return bool(behind)

    async def _check_standing(self) -> None:
        keys = {reader.key_id for reader in self._readers()}
        if not keys:
            return
        refused = await self._read(lambda db: find_refused(db, keys), self._looking)
        for reader in self._readers():
            if reader.key_id in refused:
                reader.cut(refused[reader.key_id])

    async def _read_on(self, session_id: str, position: int) -> Advance:
        """Read the messages after a position that the feed no longer holds."""
        advances: Mapping[str, Advance] = await self._read(
            lambda db: read_advances(db, {session_id: position})
        )
        return advances[session_id]

    async def _read(
        self, work: Callable[[DbSession], _Result], threads: ThreadPoolExecutor | None = None
    ) -> _Result:
        return await self._loop.run_in_executor(threads or self._threads, self._transact, work)

    def _transact(self, work: Callable[[DbSession], _Result]) -> _Result:
        with self._runtime.database.transaction(write=False) as db:
            return work(db)

    async def _tick_on(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.pace.keep_alive_s / 4, self.pace.slow_s / 4))
            now = time.monotonic()
            for reader in self._readers():
                reader.tick(now, keep_alive_s=self.pace.keep_alive_s, slow_s=self.pace.slow_s)

    def _give_up_all(self) -> None:
        for reader in self._readers():
            reader.give_up()

    def _readers(self) -> list[Reader]:
        return [reader for feed in self._feeds.values() for reader in feed.readers]
