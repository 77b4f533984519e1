"""Reader of a session's events in SQL, in portions over several transactions. Contract §2 (added reads).

Batches overlap in time where a client sends them so. The reader merges them with a bounded number of events
at hand: what does not fit is dropped and read again once everything before it was returned. So a session
whose batches all overlap costs several passes over its batches, never more memory.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import zstandard
from sqlalchemy import Row, func
from sqlmodel import Session as DbSession
from sqlmodel import col, select, tuple_

from recorder.models.event import EventBatchRow
from recorder.recording.stored_events import (
    EVERY_EVENT,
    Entry,
    EventFilter,
    EventRecord,
    EventSortKey,
    decode_stored_events_between,
)

#: Compressed payloads of batches that are read at a time.
_PAYLOADS_BYTES = 256 * 1024
_PAYLOADS = 16
#: Bytes of the payloads of decoded events at hand.
HELD_BYTES = 4 * 1024 * 1024


class ReadBounds(NamedTuple):
    """Amounts that a reader takes at a time, so that other reads get their turn."""

    #: Headers of batches that are read at a time; finding them costs a pass over all headers of the session.
    headers: int = 2_048
    #: Decoded events at hand.
    held_events: int = 8_192
    #: Batches that one call decodes: where all overlap, or some types alone are wanted, it may find nothing.
    searched_batches: int = 64
    #: Bytes of batches that one call decodes.
    searched_bytes: int = 16 * 1024 * 1024


BOUNDS = ReadBounds()

#: What a batch row says of its payload: first_position, t_min, first_id, size.
_Header = Row[tuple[int, int, str, int]]


class HotEventReader:
    """The events of one session by `(t_ms, id)`; every call may have another transaction.

    Events that are committed while it reads are returned if they follow its position and their batch was not
    passed over; the last pass over the headers finds the others that follow.
    """

    def __init__(
        self,
        session_id: str,
        after: EventSortKey | None = None,
        *,
        wanted: EventFilter = EVERY_EVENT,
        pause: Callable[[], object] | None = None,
        bounds: ReadBounds | None = None,
    ) -> None:
        """Begin after a position.

        Args:
            session_id: the caller has checked that it may be read.
            after: the last event that is not wanted; None for all.
            wanted: types and times.
            pause: called after each decoded batch, so that a thread can let others run.
            bounds: amounts that are read and decoded at a time.
        """
        self._session_id = session_id
        #: `(t_ms, id)` of the last event that was returned.
        self.position = wanted.start(after)
        #: Whether no event follows. A read may find none before the end.
        self.has_ended = False
        self._wanted = wanted
        self._batches_left = self._bytes_left = 0
        self._pause = pause
        self._bounds = bounds or BOUNDS
        #: Decoded events that wait for their turn, the first one last.
        self._held: list[Entry] = []
        self._held_bytes = 0
        self._start_pass()

    def read(self, db: DbSession, *, max_events: int, max_bytes: int) -> list[EventRecord]:
        """Return the next events: fewer or none where many batches must be decoded first, see `has_ended`.

        Args:
            db: a transaction in which the session has its events in SQL.
            max_events: at most so many.
            max_bytes: no more once their payloads have so many bytes.
        """
        records: list[EventRecord] = []
        size = 0
        self._batches_left = self._bounds.searched_batches
        self._bytes_left = self._bounds.searched_bytes
        while len(records) < max_events and size < max_bytes:
            record = self._read_next_event(db)
            if record is None:
                break
            records.append(record)
            size += len(record.payload)
        return records

    def _start_pass(self) -> None:
        """Forget what was read ahead; the next read begins after the position."""
        self._headers: deque[_Header] = deque()
        self._payloads: dict[int, bytes] = {}
        self._last_header: tuple[int, int] | None = None
        self._has_all_headers = False
        #: Key of the last event at hand once later ones were dropped.
        self._bound: EventSortKey | None = None
        self._is_untouched = True

    def _read_next_event(self, db: DbSession) -> EventRecord | None:
        while True:
            if not self._headers and not self._has_all_headers:
                self._read_headers(db)
            elif self._held and (not self._headers or self._held[-1][0] < self._headers[0].t_min):
                return self._take_held_event()
            elif self._headers and (self._bound is None or self._held):
                if self._batches_left <= 0 or self._bytes_left <= 0:
                    return None
                self._decode_batch(db)
            elif self._is_untouched:
                self.has_ended = True
                return None
            else:
                self._start_pass()

    def _take_held_event(self) -> EventRecord:
        t_ms, event_id, _, record = self._held.pop()
        self._held_bytes -= len(record.payload)
        self.position = (t_ms, event_id)
        return record

    def _read_headers(self, db: DbSession) -> None:
        """Read the next headers, by first time, of the batches that do not end before the position."""
        position, t_min = col(EventBatchRow.first_position), col(EventBatchRow.t_min)
        statement = (
            select(position, t_min, EventBatchRow.first_id, func.length(EventBatchRow.payload).label("size"))
            .where(EventBatchRow.session_id == self._session_id)
            .where(col(EventBatchRow.t_max) >= (self.position[0] if self.position else 0))
            .order_by(t_min, position)
            .limit(self._bounds.headers)
        )
        if self._wanted.to_t_ms is not None:
            statement = statement.where(t_min < self._wanted.to_t_ms)
        if self._last_header is not None:
            statement = statement.where(tuple_(t_min, position) > self._last_header)
        self._headers.extend(db.execute(statement))
        self._has_all_headers = len(self._headers) < self._bounds.headers
        if self._headers:
            self._last_header = (self._headers[-1].t_min, self._headers[-1].first_position)

    def _decode_batch(self, db: DbSession) -> None:
        """Add the events of the next batch to those at hand."""
        header = self._headers[0]
        first_position = header.first_position
        if first_position not in self._payloads:
            self._payloads = self._read_payloads(db)
        payload = self._payloads.pop(first_position)
        self._headers.popleft()
        self._batches_left -= 1
        self._bytes_left -= zstandard.frame_content_size(payload)
        last, types = self._wanted.end(self._bound), self._wanted.types
        fresh = list(
            decode_stored_events_between(payload, header.first_id, first_position, self.position, last, types)
        )
        if fresh:
            self._is_untouched = False
            self._held_bytes += sum(len(entry[-1].payload) for entry in fresh)
            self._held = sorted([*self._held, *fresh], reverse=True)
            if len(self._held) > self._bounds.held_events or self._held_bytes > HELD_BYTES:
                self._drop_last()
        if self._pause is not None:
            self._pause()

    def _read_payloads(self, db: DbSession) -> dict[int, bytes]:
        """Read the payloads of the next batches: few at a time, fewer where they are large."""
        wanted: list[int] = []
        size = 0
        for header in islice(self._headers, _PAYLOADS):
            if wanted and size + header.size > _PAYLOADS_BYTES:
                break
            wanted.append(header.first_position)
            size += header.size
        statement = select(EventBatchRow.first_position, EventBatchRow.payload).where(
            EventBatchRow.session_id == self._session_id,
            col(EventBatchRow.first_position).in_(wanted),
        )
        return {row.first_position: row.payload for row in db.execute(statement)}

    def _drop_last(self) -> None:
        """Keep the first half of what may be at hand; the rest is read again in another pass."""
        remaining: list[Entry] = []
        size = 0
        for entry in reversed(self._held):
            if remaining and (len(remaining) >= self._bounds.held_events // 2 or size >= HELD_BYTES // 2):
                break
            remaining.append(entry)
            size += len(entry[-1].payload)
        self._bound = remaining[-1][:2]
        self._held, self._held_bytes = remaining[::-1], size
