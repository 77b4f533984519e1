"""Catch-up of streams: from a position, or from the start, also of sealed sessions in the lake. Contract §3.

The lake keeps the order `(t_ms, id)`, not the one in which items came. Tags and status changes keep their
positions; events and frames take the others, in the lake's order.
"""

import heapq
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from sqlmodel import Session as DbSession
from sqlmodel import col, func, select

from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.errors import InvalidEventId, ResumeWindowExpired
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow, SessionStatusRow, TagRow
from recorder.recording import item_reads
from recorder.recording.session_events import list_session_event_records, read_sealed_events
from recorder.recording.sessions import find_session
from recorder.recording.streams.messages import (
    Message,
    StreamSegment,
    cut_messages_into_segments,
    make_stream_message,
)
from recorder.recording.streams.poll import make_status_message, make_tag_message
from recorder.storage.database import Database
from recorder.storage.lake import Lake

#: Bytes of messages that are read at a time.
PORTION_BYTES = 256 * 1024
#: Rows that are turned into messages at a time, and tags or status changes of one transaction.
_ROWS = 500

_Kept = TypeVar("_Kept", TagRow, SessionStatusRow)
#: Time, id, name of the message, and wire object.
_Item = tuple[int, str, bytes, bytes]


class SealedCatchUp:
    """All messages of a session whose hot rows are gone, in portions; no transaction outlives one."""

    def __init__(self, database: Database, lake: Lake, row: SessionRow) -> None:
        self._database = database
        self._lake = lake
        self._row = row
        self._messages = self._merge_messages()
        self._lock = threading.Lock()

    def read(self) -> list[StreamSegment]:
        """Return the next messages; an empty list at the end.

        Raises:
            Unavailable: if the database or the lake does not answer.
        """
        with self._lock:
            messages: list[Message] = []
            size = 0
            for item in self._messages:
                messages.append(item)
                size += len(item[2])
                if size >= PORTION_BYTES:
                    break
            return list(cut_messages_into_segments(messages))

    def close(self) -> None:
        """Close the lake's readers, after a portion that is being read; closing twice is harmless."""
        with self._lock:
            self._messages.close()

    def _merge_messages(self) -> Generator[Message, None, None]:
        """Yield the messages by position."""
        stored = heapq.merge(
            self._read_message_rows(TagRow, make_tag_message),
            self._read_message_rows(SessionStatusRow, make_status_message),
        )
        waiting = next(stored, None)
        position = 1
        with closing(self._read_events()) as events, closing(self._read_frames()) as frames:
            for _, _, name, data in heapq.merge(events, frames):
                while waiting is not None and waiting[0] <= position:
                    yield waiting
                    waiting = next(stored, None)
                    position += 1
                yield make_stream_message(position, name, data)
                position += 1
        if waiting is not None:
            yield waiting
            yield from stored

    def _read_message_rows(
        self, table: type[_Kept], describe: Callable[[_Kept], Message]
    ) -> Iterator[Message]:
        """Yield the messages of tags or status changes up to the session's last position."""
        session_id, position, until = col(table.session_id), col(table.position), self._row.last_position
        after = 0
        while after < until:
            statement = select(table).where(session_id == self._row.id, position > after, position <= until)
            with self._database.transaction(write=False) as db:
                messages = [describe(row) for row in db.exec(statement.order_by(position).limit(_ROWS))]
            yield from messages
            after = messages[-1][0] if len(messages) == _ROWS else until

    def _read_events(self) -> Generator[_Item, None, None]:
        with closing(read_sealed_events(self._lake, self._row, after=None)) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    for record in list_session_event_records(batch.slice(start, _ROWS)):
                        yield record.t_ms, record.id, b"session.event", record.as_json()

    def _read_frames(self) -> Generator[_Item, None, None]:
        with closing(item_reads.read_sealed_frames(self._lake, self._row)) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    for stored in batch.slice(start, _ROWS).to_pylist():
                        frame = item_reads.frame_to_wire(item_reads.convert_lake_frame_row(stored))
                        yield frame.t_ms, frame.id, b"session.frame", frame.model_dump_json().encode()


_Positioned = TypeVar("_Positioned", FrameRow, TagRow, SessionStatusRow)
_POSITION = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Start that a reader requests; without either member the stream begins now."""

    is_from_start: bool = False
    #: Position of the last message received. It overrides `from=start`, which a browser sends again with it.
    after: int | None = None

    @property
    def replays_session(self) -> bool:
        """Return whether the stream replays its session from the start."""
        return self.is_from_start and self.after is None


@dataclass(frozen=True, slots=True)
class Opening:
    """Start of a stream, and the state of its session at that moment."""

    #: Position after which it begins.
    position: int
    #: The session's newest position.
    last_position: int
    is_sealed: bool
    #: The session, where all its events are in the lake and the stream begins with them.
    swept: SessionRow | None = None

    @property
    def is_long(self) -> bool:
        """Return whether so many messages wait that reading them is like reading a whole session."""
        return self.last_position - self.position > limits.WHOLE_READ_MESSAGES

    @property
    def is_over(self) -> bool:
        """Return whether no message is left to send."""
        return self.is_sealed and self.position >= self.last_position


def parse_catch_up_position(text: str) -> int:
    """Return the position that a `Last-Event-ID` holds.

    Raises:
        InvalidEventId: if no stream can have sent it.
    """
    if not _POSITION.fullmatch(text):
        raise InvalidEventId
    return int(text)


def find_stream_opening(db: DbSession, caller: Caller, session_id: str, start: StreamStart) -> Opening:
    """Find the session and the position where its stream begins.

    Raises:
        NotFound: if the caller has no such session.
        InvalidEventId: if the position is greater than the newest.
        ResumeWindowExpired: if an item after it is older than the resume window.
    """
    row = find_session(db, caller.tenant, session_id)
    position = row.last_position
    swept: SessionRow | None = None
    if start.after is not None:
        if start.after > row.last_position:
            raise InvalidEventId
        if start.after < row.last_position and not _is_within_resume_window(db, row, start.after):
            raise ResumeWindowExpired(limits.STREAM_RESUME_MINUTES)
        position = start.after
    elif start.is_from_start:
        position = 0
        if not row.is_hot:
            swept = row
    return Opening(position, row.last_position, row.status == "sealed", swept)


def _is_within_resume_window(db: DbSession, row: SessionRow, after: int) -> bool:
    """Return whether all items after the position are younger than the resume window."""
    if not row.is_hot and _count_kept_catch_up_positions(db, row.id, after) < row.last_position - after:
        return False
    oldest = _find_oldest_catch_up_ms(db, row.id, after)
    window = timedelta(minutes=limits.STREAM_RESUME_MINUTES)
    return oldest is None or oldest >= clock.to_ms(clock.now() - window)


def _count_kept_catch_up_positions(db: DbSession, session_id: str, after: int) -> int:
    """Count the positions after this one whose rows no sweep deletes."""
    counts = [
        select(func.count()).where(col(table.session_id) == session_id, col(table.position) > after)
        for table in (TagRow, SessionStatusRow)
    ]
    return sum(db.exec(count).one() for count in counts)


def _find_oldest_catch_up_ms(db: DbSession, session_id: str, after: int) -> int | None:
    """Return the time at which the first item after a position was stored; None if no row has it."""
    first, n = col(EventBatchRow.first_position), col(EventBatchRow.n)
    batch = (
        select(EventBatchRow.received_ms)
        .where(EventBatchRow.session_id == session_id)
        .where(first > after - limits.EVENTS_PER_BATCH, first + n > after + 1)
        .order_by(first)
        .limit(1)
    )
    tagged_at = _read_first_value_to_catch_up(db, TagRow, TagRow.created_at, session_id, after)
    changed_at = _read_first_value_to_catch_up(db, SessionStatusRow, SessionStatusRow.at, session_id, after)
    stored_ms = [
        db.exec(batch).first(),
        _read_first_value_to_catch_up(db, FrameRow, FrameRow.received_ms, session_id, after),
        tagged_at and clock.to_ms(tagged_at),
        changed_at and clock.to_ms(changed_at),
    ]
    return min((ms for ms in stored_ms if ms is not None), default=None)


def _read_first_value_to_catch_up(
    db: DbSession, table: type[_Positioned], column: Any, session_id: str, after: int
) -> Any:
    """Return a column of a table's first row after a position; the first row is the oldest."""
    position = col(table.position)
    rows = select(column).where(col(table.session_id) == session_id, position > after)
    return db.exec(rows.order_by(position).limit(1)).first()
