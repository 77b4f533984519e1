"""Streams from the start, long after sealing: events and frames are in the lake by then. Contract §3.

The lake keeps the order `(t_ms, id)`, not the one in which items came. Tags and status changes keep their
positions; events and frames take the others, in the lake's order.
"""

import heapq
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TypeVar

from sqlmodel import col, select

from recorder.models.session import SessionRow, SessionStatusRow
from recorder.models.tag import TagRow
from recorder.recording import reads
from recorder.recording.session_events import as_records, read_sealed_events
from recorder.recording.streams.messages import Message, Segment, cut, message
from recorder.recording.streams.reading import status_message, tag_message
from recorder.storage.database import Database
from recorder.storage.lake import Lake

#: Bytes of messages that are read at a time.
PORTION_BYTES = 256 * 1024
#: Rows that are turned into messages at a time, and tags or status changes of one transaction.
_ROWS = 500

_Kept = TypeVar("_Kept", TagRow, SessionStatusRow)
#: Time, id, name of the message, and wire object.
_Item = tuple[int, str, bytes, bytes]


class SweptReplay:
    """All messages of a session whose hot rows are gone, in portions; no transaction outlives one."""

    def __init__(self, database: Database, lake: Lake, row: SessionRow) -> None:
        self._database = database
        self._lake = lake
        self._row = row
        self._messages = self._merge()
        self._lock = threading.Lock()

    def read(self) -> list[Segment]:
        """Return the next messages; an empty list at the end.

        Raises:
            Unavailable: if the database or the lake does not answer.
        """
        with self._lock:
            found: list[Message] = []
            size = 0
            for one in self._messages:
                found.append(one)
                size += len(one[2])
                if size >= PORTION_BYTES:
                    break
            return list(cut(found))

    def close(self) -> None:
        """Close what the lake has open, once a portion that is being read is there; again is no harm."""
        with self._lock:
            self._messages.close()

    def _merge(self) -> Generator[Message, None, None]:
        """Yield the messages by position."""
        kept = heapq.merge(
            self._read_kept(TagRow, tag_message), self._read_kept(SessionStatusRow, status_message)
        )
        waiting = next(kept, None)
        position = 1
        with closing(self._read_events()) as events, closing(self._read_frames()) as frames:
            for _, _, name, data in heapq.merge(events, frames):
                while waiting is not None and waiting[0] <= position:
                    yield waiting
                    waiting = next(kept, None)
                    position += 1
                yield message(position, name, data)
                position += 1
        if waiting is not None:
            yield waiting
            yield from kept

    def _read_kept(self, table: type[_Kept], describe: Callable[[_Kept], Message]) -> Iterator[Message]:
        """Yield the messages of tags or status changes up to the session's last position."""
        session_id, position, until = col(table.session_id), col(table.position), self._row.last_position
        after = 0
        while after < until:
            statement = select(table).where(session_id == self._row.id, position > after, position <= until)
            with self._database.transaction(write=False) as db:
                found = [describe(row) for row in db.exec(statement.order_by(position).limit(_ROWS))]
            yield from found
            after = found[-1][0] if len(found) == _ROWS else until

    def _read_events(self) -> Generator[_Item, None, None]:
        with closing(read_sealed_events(self._lake, self._row, after=None)) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    for record in as_records(batch.slice(start, _ROWS)):
                        yield record.t_ms, record.id, b"session.event", record.as_json()

    def _read_frames(self) -> Generator[_Item, None, None]:
        with closing(reads.read_sealed_frames(self._lake, self._row)) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    for found in batch.slice(start, _ROWS).to_pylist():
                        frame = reads.wire_frame(reads.read_frame_row(found))
                        yield frame.t_ms, frame.id, b"session.frame", frame.model_dump_json().encode()
