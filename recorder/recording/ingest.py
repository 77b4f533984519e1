"""Group commit: one thread stores the batches of all requests that wait, then answers them. Design §3.

Beside `Database.transaction` only this module commits (docs/decisions/0002-group-commit.md). A request
submits a batch that is checked and packed. The writer thread takes all that wait, stores
them in ONE transaction and resolves their futures after its commit.
State check, counters and positions are one UPDATE per batch.
On PostgreSQL a group waits for no session that another transaction holds: its batches are tried again.
If more wait than one group takes, workspaces take turns.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Literal, Protocol

from recorder.errors import RecorderError, SessionBusy, Unavailable
from recorder.fair_scheduling import RoundRobinQueue
from recorder.metrics import count_group_commit
from recorder.recording.driver_cursor import DriverCursor, IngestCursor
from recorder.recording.metering import UsageChanged
from recorder.recording.session_locks import SessionKey, lock_free_sessions
from recorder.setting_parsers import SessionSize
from recorder.storage.database import Database


def is_transient_ingest_error(error: Exception) -> bool:
    """Return whether a group may be tried again: PostgreSQL deadlock, serialization, moved usage."""
    return isinstance(error, UsageChanged) or getattr(error, "sqlstate", None) in ("40P01", "40001")


log = logging.getLogger("recorder.ingest")

_MAX_GROUP = 256
#: On PostgreSQL a group whose statements take longer than this is followed by smaller ones, down to the least
#: size: a batch waits for a group that has begun, and each statement for a turn of the interpreter's lock.
_GROUP_S = 0.05
_LEAST_GROUP = 16
#: Pause before batches are tried again whose sessions another transaction holds.
_BUSY_PAUSE_S = 0.02


class IngestBatch(Protocol):
    """Batch that a request submits to the writer."""

    #: Orders a group, so that the batches of a session are stored one after another.
    session_id: str
    #: How many items it has stored, duplicates left out, and of what kind.
    n: int

    @property
    def kind(self) -> Literal["events", "frames"]:
        """Return the kind of items that the batch holds."""

    @property
    def session(self) -> SessionKey:
        """Return workspace, mode and id of the session."""

    def store(self, cursor: IngestCursor) -> bytes:
        """Write the batch within the group's transaction and return the answer's body.

        Raises:
            RecorderError: if the batch is refused; it must then have written nothing.
        """


class IngestWriter:
    """The writer thread of one process. `submit` from the event loop, `close` at shutdown."""

    def __init__(
        self,
        database: Database,
        on_commit: Callable[[list[IngestBatch]], object] = lambda stored: None,
        *,
        session_size: SessionSize = SessionSize(),
        records_replays: bool = False,
    ) -> None:
        """Start the thread.

        Args:
            database: the deployment's database.
            on_commit: called in this thread with the batches that each commit stored.
            session_size: most that one session holds; a batch beyond it is refused.
            records_replays: whether batches may add to recordings of live replays.
        """
        self._database = database
        self._session_size = session_size
        self._records_replays = records_replays
        self._on_commit = on_commit
        #: A batch is refused while so many wait.
        self.max_waiting = 4_096
        #: A batch is refused whose session other transactions have held for so many seconds.
        self.busy_s = 20.0
        #: Most batches of a group, beside those that are tried again; a slow database makes it fewer.
        self.max_group = self._group_size = _MAX_GROUP
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        #: Waiting batches by their workspaces, which take turns; only the writer's thread changes them.
        self._turns = RoundRobinQueue[_Waiting]()
        self._turn_count = 0
        #: Batches whose sessions other transactions hold, in the order they came in, and since when.
        self._postponed: list[tuple[_Waiting, float]] = []
        self._connect()
        self._thread = threading.Thread(target=self._write_groups, name="ingest-writer", daemon=True)
        self._thread.start()

    async def submit(self, batch: IngestBatch) -> bytes:
        """Return the answer to a batch, once it is durable.

        Raises:
            RecorderError: as the batch was refused.
            Unavailable: if too much waits already, or the database does not answer.
        """
        if self._waiting.qsize() + self._turn_count >= self.max_waiting:
            raise Unavailable("Ingest is at its limit and")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting.put((batch, future, loop))
        return await future

    def close(self) -> None:
        """Store what waits, then end the thread. Not from the event loop's thread: the loop must go on."""
        self._waiting.put(None)
        self._thread.join(timeout=30)

    def _write_groups(self) -> None:
        """Store the waiting batches group by group until the writer is closed."""
        ended = False
        while not ended or self._turn_count or self._postponed:
            ended |= self._gather_waiting()
            group = self._next_group()
            if group:
                began = time.perf_counter()
                group, results = self._settle_postponed(group, self._store_group(group))
                seconds = time.perf_counter() - began
                _answer_ingest_group(group, results)
                stored = _list_stored_ingest_batches(group, results)
                self._on_commit(stored)
                count_group_commit(seconds, [(batch.kind, batch.n) for batch in stored])
        self._connection.close()

    def _gather_waiting(self) -> bool:
        """Wait until a batch can be stored or tried again; return whether `close` was called."""
        is_idle = not (self._turn_count or self._postponed)
        pause_s = 0.0 if self._turn_count else _BUSY_PAUSE_S
        with suppress(queue.Empty):
            entry = self._waiting.get(timeout=None if is_idle else pause_s)
            while entry is not None:
                self._turns.add(entry[0].session[0], entry)
                self._turn_count += 1
                entry = self._waiting.get_nowait()
            return True
        return False

    def _next_group(self) -> list["_Waiting"]:
        """Return the batches to try again, and the next ones of the workspaces in turn."""
        group = [waiting for waiting, _ in self._postponed]
        for _ in range(min(self.max_group, self._group_size)):
            if (turn := self._turns.take()) is None:
                break
            group.append(turn[1])
            self._turn_count -= 1
        # Stable: batches of one session keep the order they came in.
        group.sort(key=lambda waiting: waiting[0].session_id)
        return group

    def _settle_postponed(
        self, group: list["_Waiting"], results: "list[bytes | RecorderError | None]"
    ) -> tuple[list["_Waiting"], "list[bytes | RecorderError]"]:
        """Return the batches with a result, and those that waited too long; keep the others for later."""
        now = time.monotonic()
        since = {future: at for (_, future, _), at in self._postponed}
        self._postponed = []
        settled: list[tuple[_Waiting, bytes | RecorderError]] = []
        for waiting, result in zip(group, results, strict=True):
            began = since.get(waiting[1], now)
            if result is None and now - began < self.busy_s:
                self._postponed.append((waiting, began))
            else:
                settled.append((waiting, SessionBusy() if result is None else result))
        return [waiting for waiting, _ in settled], [result for _, result in settled]

    def _store_group(self, group: list["_Waiting"]) -> "list[bytes | RecorderError | None]":
        with self._database.ingest_lock:
            for _ in range(3):
                try:
                    return self._commit(group)
                except Exception as error:
                    self._cursor.roll_back()
                    if not is_transient_ingest_error(error):
                        log.error("a group of batches was not stored", exc_info=error)
                        self._reconnect()
                        break
        return [Unavailable("The database")] * len(group)

    def _connect(self) -> None:
        self._connection = self._database.raw_connection()
        self._cursor = DriverCursor(
            self._connection,
            self._database.dialect,
            self._session_size,
            records_replays=self._records_replays,
        )

    def _reconnect(self) -> None:
        """Open a new connection if the server closed the old one; while it is away, the next group tries."""
        if getattr(self._connection, "closed", False):
            with suppress(Exception):
                self._connect()

    def _commit(self, group: list["_Waiting"]) -> "list[bytes | RecorderError | None]":
        """Store a group; a batch whose session another transaction holds has no result."""
        began = time.perf_counter()
        self._cursor.begin()
        busy: set[SessionKey] = set()
        if not self._database.is_sqlite:  # there the write lock keeps other transactions out
            busy = lock_free_sessions(self._cursor, {batch.session for batch, _, _ in group})
        free = [waiting for waiting in group if waiting[0].session not in busy]
        results = iter(self._execute(free) if free else [])
        if not self._database.is_sqlite:
            self._adapt_group_size(len(group), time.perf_counter() - began)
        self._cursor.commit()
        return [None if batch.session in busy else next(results) for batch, _, _ in group]

    def _adapt_group_size(self, count: int, seconds: float) -> None:
        """Set the size of the next groups by the time that the statements of this group took."""
        size = int(count * _GROUP_S / seconds) if seconds > _GROUP_S else 2 * self._group_size
        self._group_size = min(self.max_group, max(_LEAST_GROUP, size))

    def _execute(self, group: list["_Waiting"]) -> "list[bytes | RecorderError]":
        """Run the statements of a group, on SQLite in the thread of its event loop.

        There a statement takes microseconds and hardly ever reads a disk. Here each would have to win the
        interpreter's lock back from a busy loop: three times a batch, a fifth of the CPU time of a request.
        What waits (for the file's lock before, for the disk after) waits in this thread.
        """
        if not self._database.is_sqlite:
            return _store_ingest_group(group, self._cursor)
        loop, call = group[0][2], _Call(group, self._cursor)
        with suppress(RuntimeError):  # the loop has closed: `call` is made here then
            loop.call_soon_threadsafe(call.make)
            while not call.wait_until_stored(timeout=1.0) and not loop.is_closed():
                continue
        call.make()
        return call.result()


_Waiting = tuple[IngestBatch, "asyncio.Future[bytes]", asyncio.AbstractEventLoop]


class _Call:
    """Storing a group, done once by whichever thread comes first."""

    def __init__(self, group: "list[_Waiting]", cursor: IngestCursor) -> None:
        self._group = group
        self._cursor = cursor
        self._future: Future[list[bytes | RecorderError]] = Future()
        self._lock = threading.Lock()

    def make(self) -> None:
        """Store the group, unless that was done."""
        with self._lock:
            if self._future.done():
                return
            try:
                self._future.set_result(_store_ingest_group(self._group, self._cursor))
            except Exception as error:
                self._future.set_exception(error)

    def wait_until_stored(self, *, timeout: float) -> bool:
        """Wait until the group is stored or the time is up; says which."""
        return bool(wait([self._future], timeout).done)

    def result(self) -> "list[bytes | RecorderError]":
        """Return the answers; raises as storing did."""
        return self._future.result()


def _store_ingest_group(group: list[_Waiting], cursor: IngestCursor) -> list[bytes | RecorderError]:
    results = [_store_ingest_batch(batch, cursor) for batch, _, _ in group]
    cursor.charges.settle(cursor)
    return results


def _list_stored_ingest_batches(
    group: list[_Waiting], results: list[bytes | RecorderError]
) -> list[IngestBatch]:
    """Return the batches that were stored now: neither refused nor answered before."""
    return [batch for (batch, _, _), result in zip(group, results, strict=True) if type(result) is bytes]


def _store_ingest_batch(batch: IngestBatch, cursor: IngestCursor) -> bytes | RecorderError:
    try:
        return batch.store(cursor)
    except RecorderError as error:
        return error


def _answer_ingest_group(group: list[_Waiting], results: list[bytes | RecorderError]) -> None:
    """Answer every request of the group with one call into its event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
    for (_, future, loop), result in zip(group, results, strict=True):
        by_loop.setdefault(loop, []).append(_make_ingest_answer_call(future, result))
    for loop, calls in by_loop.items():
        # The requests of a closed event loop have ended, so no answer is sent to them.
        if not loop.is_closed():
            loop.call_soon_threadsafe(_send_ingest_answers, calls)


def _make_ingest_answer_call(
    future: "asyncio.Future[bytes]", result: bytes | RecorderError
) -> Callable[[], None]:
    def settle() -> None:
        if future.done():  # the client went away
            return
        if isinstance(result, RecorderError):
            future.set_exception(result)
        else:
            future.set_result(result)

    return settle


def _send_ingest_answers(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
