"""Hub of one process's streams: polls the sessions that have readers and passes new rows to them.

It polls when it is woken (the ingest writer, a transaction of this process, another process by Redis) and
once a second: sealing happens elsewhere, and a wake-up may get lost. Spec §6.5, contract §3.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from sqlmodel import Session as DbSession

from recorder.access.keys import Caller
from recorder.errors import RecorderError, Unavailable
from recorder.models.session import SessionRow
from recorder.recording.event_batches import EventBatch
from recorder.recording.ingest import IngestBatch
from recorder.recording.streams.catch_up import SealedCatchUp, StreamStart, find_stream_opening
from recorder.recording.streams.messages import cut_messages_into_segments, make_stream_event_messages
from recorder.recording.streams.poll import SessionAdvance, poll_session_advances
from recorder.recording.streams.readers import (
    Ending,
    Reader,
    ReaderFeed,
    StreamTimes,
    find_refused_reader_keys,
)
from recorder.recording.streams.redis_pubsub import RedisWakeups
from recorder.recording.whole_reads import WholeReads
from recorder.runtime import Runtime

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Threads that open streams; polls, and reads for slow readers, have their own and wait for none of these.
_THREADS = 4
# Sessions of one transaction of a poll: the messages of all of them are in memory.
_POLLED_SESSIONS = 64
# The pause after a poll: at most twenty polls a second, however busy the sessions are.
_GATHER_S = 0.05
# Bytes of events that the event loop prepares itself: of a batch, and of all batches of a commit. Larger ones
# are read back by the thread that polls: requests and other streams would wait for the loop.
_DELIVERED_BATCH_BYTES, _DELIVERED_BYTES = 64 * 1024, 512 * 1024
# A write that hangs when the service stops is aborted after this.
_LAST_WRITE_S = 0.5


class Hub:
    """All open streams of a process; created, started and closed in its event loop."""

    def __init__(self, runtime: Runtime, times: StreamTimes, whole_reads: WholeReads) -> None:
        self._runtime = runtime
        self._whole_reads = whole_reads
        self.times = times
        self._feeds: dict[str, ReaderFeed] = {}
        self._loop = asyncio.get_running_loop()
        self._poll_thread = ThreadPoolExecutor(1, thread_name_prefix="streams-poll")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="streams-open")
        url = runtime.settings.redis_url
        self._others = RedisWakeups(url, self._wake_feeds) if url else None
        self._woken: set[str] = set()
        self._is_woken = asyncio.Event()
        self._is_closed = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to poll, and listen to every transaction of this process that changes a session."""
        self._runtime.database.add_listener(SessionRow, self.touch)
        self._tasks = [
            asyncio.create_task(self._poll_repeatedly()),
            asyncio.create_task(self._tick_repeatedly()),
        ]
        if self._others is not None:
            self._others.start()

    def end_streams(self) -> None:
        """End every stream, since the process is about to stop; their clients resume elsewhere."""
        if self._is_closed:
            return
        self._is_closed = True
        for reader in self.list_readers():
            reader.cut(Ending.RESTARTING)
        self._loop.call_later(_LAST_WRITE_S, self._abort_all_writes)

    async def close(self) -> None:
        """End the streams that are left, and stop the tasks and threads."""
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._others is not None:
            await self._others.close()
        for threads in (self._poll_thread, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def deliver_committed_batches(self, batches: Collection[IngestBatch]) -> None:
        """Pass on batches that the ingest writer committed; called from its thread.

        Events go to their readers as they are: at the rate of a busy ingest, to read back what was just
        written would cost as much as to write it.
        """
        read = list(_take_small_batches(batch for batch in batches if batch.session_id in self._feeds))
        if read or self._others is not None:
            self._schedule_delivery({batch.session_id for batch in batches}, read)

    def touch(self, session_ids: Iterable[str]) -> None:
        """Wake the readers of sessions whose rows were committed; called from any thread."""
        touched = set(session_ids)
        if self._others is not None or not touched.isdisjoint(self._feeds):
            self._schedule_delivery(touched)

    async def open(self, caller: Caller, session_id: str, start: StreamStart) -> Reader | None:
        """Return a reader of a session; None if the stream is over and no message is left to send.

        Raises:
            NotFound: if the caller has no such session.
            InvalidEventId: if the stream cannot have sent this position.
            ResumeWindowExpired: if an item after it is older than the resume window.
            RateLimited: if it replays a session, and too many reads of whole sessions are running.
            Unavailable: if the service is about to stop, or the database does not answer.
        """
        if self._is_closed:
            raise Unavailable("The service is about to restart and")
        with ExitStack() as held:
            if start.replays_session:
                held.enter_context(self._whole_reads.hold(caller))
            opening = await self._run_transaction(
                lambda db: find_stream_opening(db, caller, session_id, start)
            )
            if opening.is_over and start.after is not None:
                return None
            if opening.is_long and not start.replays_session:
                held.enter_context(self._whole_reads.hold(caller))
            feed = self._feeds.get(session_id)
            if feed is None:
                feed = ReaderFeed(session_id, opening.last_position, is_sealed=opening.is_sealed)
                self._feeds[session_id] = feed
            replay = None
            if opening.swept is not None:
                swept = SealedCatchUp(self._runtime.database, self._runtime.lake, opening.swept)
                held.callback(self._whole_reads.submit, swept.close)
                replay = partial(self._whole_reads.run, caller.workspace_id, swept.read)
            reader = Reader(
                feed,
                caller.key_id,
                opening.position,
                partial(self._read_after, caller.workspace_id),
                replay=replay,
                on_caught_up=held.pop_all().close,
            )
        feed.readers.add(reader)
        # Rows may have been committed between the read and this moment.
        self._wake_feeds([session_id])
        return reader

    def leave(self, reader: Reader) -> None:
        """Remove a reader; a feed without readers is dropped."""
        reader.finish_catching_up()
        feed = reader.feed
        feed.readers.discard(reader)
        if not feed.readers and self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def _schedule_delivery(self, session_ids: set[str], batches: Collection[EventBatch] = ()) -> None:
        if self._is_closed:
            return
        with suppress(RuntimeError):  # the loop has closed, so no reader is left
            self._loop.call_soon_threadsafe(self._deliver_batches, session_ids, batches)

    def _deliver_batches(self, session_ids: set[str], batches: Collection[EventBatch] = ()) -> None:
        """Pass stored batches to the feeds of their sessions, and wake the feeds of all others named."""
        delivered = {batch.session_id for batch in batches if self._deliver_batch(batch)}
        self._wake_feeds(session_ids - delivered)
        if self._others is not None:
            self._others.touch(session_ids)

    def _deliver_batch(self, batch: EventBatch) -> bool:
        """Add a batch to the feed of its session; return False if its rows must be read instead."""
        feed = self._feeds.get(batch.session_id)
        if feed is None or batch.first_position != feed.position + 1:
            return False
        feed.add(
            cut_messages_into_segments(
                make_stream_event_messages(batch.first_position, batch.range_id, batch.payload)
            )
        )
        feed.wake()
        return True

    def _wake_feeds(self, session_ids: Iterable[str] | None) -> None:
        feeds = self._feeds.keys() if session_ids is None else self._feeds.keys() & set(session_ids)
        if feeds:
            self._woken |= feeds
            self._is_woken.set()

    async def _poll_repeatedly(self) -> None:
        """Poll the sessions that were woken, and all sessions once in `poll_s`."""
        poll_at = key_check_at = time.monotonic() + self.times.poll_s
        while True:
            await self._wait_until_woken(poll_at)
            now = time.monotonic()
            woken, self._woken = self._woken, set()
            if now >= poll_at:
                woken, poll_at = set(self._feeds), now + self.times.poll_s
            has_more = False
            try:
                has_more = await self._poll(woken)
                if now >= key_check_at:
                    await self._end_streams_of_refused_keys()
                    key_check_at = now + self.times.key_check_s
            except RecorderError as error:  # the database does not answer; the next poll reads the rows
                log.warning("streams were not read: %s", error)
            except Exception as error:
                log.error("streams were not read", exc_info=error)
            await asyncio.sleep(0 if has_more else _GATHER_S)

    async def _wait_until_woken(self, moment: float) -> None:
        """Wait until a feed is woken, at most until this moment."""
        try:
            async with asyncio.timeout(max(0.0, moment - time.monotonic())):
                await self._is_woken.wait()
        except TimeoutError:
            return
        self._is_woken.clear()

    async def _poll(self, session_ids: Iterable[str]) -> bool:
        """Read the new rows of sessions, and wake their readers; return whether more rows wait."""
        positions = [(item, self._feeds[item].position) for item in session_ids if item in self._feeds]
        unfinished: list[str] = []
        for start in range(0, len(positions), _POLLED_SESSIONS):
            polled = dict(positions[start : start + _POLLED_SESSIONS])
            for session_id, advance in (await self._poll_sessions(polled)).items():
                feed = self._feeds.get(session_id)
                if feed is not None:
                    feed.apply(advance)
                if advance.has_more:
                    unfinished.append(session_id)
        self._wake_feeds(unfinished)
        return bool(unfinished)

    async def _poll_sessions(self, positions: dict[str, int]) -> dict[str, SessionAdvance]:
        """Read new rows of sessions; if a session cannot be read, its streams end and no others wait."""
        work = partial(poll_session_advances, positions=positions)
        try:
            return await self._run_transaction(work, self._poll_thread)
        except RecorderError:
            raise
        except Exception as error:
            if len(positions) > 1:
                alone = [await self._poll_sessions({item: at}) for item, at in positions.items()]
                return {item: advance for advances in alone for item, advance in advances.items()}
            (session_id,) = positions
            log.error("the stream of %s was not read", session_id, exc_info=error)
            if session_id in self._feeds:
                self._feeds[session_id].cut(Ending.UNAVAILABLE)
            return {}

    async def _end_streams_of_refused_keys(self) -> None:
        keys = {reader.key_id for reader in self.list_readers()}
        if not keys:
            return
        refused = await self._run_transaction(
            lambda db: find_refused_reader_keys(db, keys), self._poll_thread
        )
        for reader in self.list_readers():
            if reader.key_id in refused:
                reader.cut(refused[reader.key_id])

    async def _read_after(self, workspace_id: str, session_id: str, position: int) -> SessionAdvance:
        """Read the messages after a position that the feed no longer holds; workspaces take turns."""
        read = partial(
            self._read_in_transaction, lambda db: poll_session_advances(db, {session_id: position})
        )
        advances: Mapping[str, SessionAdvance] = await self._whole_reads.run(workspace_id, read)
        return advances[session_id]

    async def _run_transaction(
        self, work: Callable[[DbSession], _Result], threads: ThreadPoolExecutor | None = None
    ) -> _Result:
        return await self._loop.run_in_executor(threads or self._threads, self._read_in_transaction, work)

    def _read_in_transaction(self, work: Callable[[DbSession], _Result]) -> _Result:
        with self._runtime.database.transaction(write=False) as db:
            return work(db)

    async def _tick_repeatedly(self) -> None:
        """Have each reader send keep-alives and cut slow clients, about once a second."""
        while True:
            await asyncio.sleep(min(1.0, self.times.keep_alive_s / 4, self.times.slow_s / 4))
            now = time.monotonic()
            for reader in self.list_readers():
                reader.tick(now, keep_alive_s=self.times.keep_alive_s, slow_s=self.times.slow_s)

    def _abort_all_writes(self) -> None:
        for reader in self.list_readers():
            reader.abort_write()

    def list_readers(self) -> list[Reader]:
        """Return the readers of all sessions."""
        return [reader for feed in self._feeds.values() for reader in feed.readers]


def _take_small_batches(batches: Iterable[IngestBatch]) -> Iterator[EventBatch]:
    """Yield the batches of events that the event loop may prepare."""
    left = _DELIVERED_BYTES
    for batch in batches:
        if isinstance(batch, EventBatch) and batch.size <= min(left, _DELIVERED_BATCH_BYTES):
            left -= batch.size
            yield batch
