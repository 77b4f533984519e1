"""Pages and portions of a session's events: from SQL, from the lake, or from both in turn. Contract §2."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlmodel import Session as DbSession

from recorder import limits
from recorder.errors import Unavailable
from recorder.models.session import SessionRow
from recorder.recording.hot_event_reader import HotEventReader
from recorder.recording.sessions import find_session
from recorder.recording.stored_events import (
    EVERY_EVENT,
    EventFilter,
    EventRecord,
    EventSortKey,
    read_stored_events,
)
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.list_pages import FetchedPage, fetch_list_page
from recorder.tenant import Tenant

#: A portion ends with the event that reaches either.
PORTION_EVENTS = 1_000
PORTION_BYTES = 512 * 1024
#: A read for some types alone searches about so many events of the lake.
SEARCHED_EVENTS = 65_536

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("t_ms", pa.int64(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("frame_id", pa.string()),
        pa.field("payload", pa.string(), nullable=False),
    ]
)
_COLUMNS = ("event_id", "t_ms", "type", "frame_id", "payload")


class SessionEventPortions:
    """All events of a session by `(t_ms, id)`, as record batches of a bounded size.

    Each portion is one short transaction, which finds the session again: nothing stays open while a client
    takes what it was sent. A session that is swept on the way continues in the lake after the last event. The
    portions begin and end at the same events wherever they are read from.
    """

    def __init__(
        self,
        database: Database,
        lake: Lake,
        tenant: Tenant,
        session_id: str,
        *,
        after: EventSortKey | None = None,
        wanted: EventFilter = EVERY_EVENT,
        pause: Callable[[], object] | None = None,
    ) -> None:
        """Begin after a position; nothing is read yet.

        Args:
            database: where the session and its hot events are.
            lake: where they are once it was swept.
            tenant: workspace and mode of the session.
            session_id: its id.
            after: the last event that is not wanted; None for all.
            wanted: types and times.
            pause: see `HotEventReader`.
        """
        self._database = database
        self._lake = lake
        self._tenant = tenant
        self._session_id = session_id
        self._wanted = wanted
        self._hot = HotEventReader(session_id, after, wanted=wanted, pause=pause)
        #: Last event that was read, from wherever.
        self._position = after
        #: Events from SQL that do not fill a portion yet.
        self._begun: list[EventRecord] = []
        self._is_swept = False
        #: Batches of the lake, and their rows that no portion has yet.
        self._sealed: Generator[pa.RecordBatch, None, None] | None = None
        self._rows: deque[pa.RecordBatch] = deque()
        self._has_all_rows = False
        self._lock = threading.Lock()

    def read(self) -> pa.RecordBatch | None:
        """Return the next portion; None at the end. It is empty where the read needs another turn to find it.

        Raises:
            NotFound: if there is no such session, or if it was deleted since the last portion.
            Unavailable: if the database or the lake does not answer.
        """
        with self._lock:
            return self._read_portion()

    def close(self) -> None:
        """Close what the lake has open, once a portion that is being read is there; again is no harm."""
        with self._lock:
            if self._sealed is not None:
                self._sealed.close()
            self._rows.clear()

    def _read_portion(self) -> pa.RecordBatch | None:
        """Return the next portion, from the hot batches or from the lake; None at the end."""
        with self._database.transaction(write=False) as db:
            row = find_session(db, self._tenant, self._session_id)
            if row.is_hot and not self._is_swept:
                return self._read_hot_portion(db)
        if self._begun:
            self._rows.append(make_session_event_batch(self._begun))
            self._begun = []
        self._is_swept = True
        return self._read_sealed_portion(row)

    def _read_hot_portion(self, db: DbSession) -> pa.RecordBatch | None:
        size = sum(len(record.payload) for record in self._begun)
        most = PORTION_EVENTS - len(self._begun)
        records = self._hot.read(db, max_events=most, max_bytes=PORTION_BYTES - size)
        self._position = self._hot.position
        self._begun += records
        size += sum(len(record.payload) for record in records)
        is_full = len(self._begun) >= PORTION_EVENTS or size >= PORTION_BYTES
        if not (is_full or self._hot.has_ended):
            return make_session_event_batch([])
        portion, self._begun = self._begun, []
        return make_session_event_batch(portion) if portion else None

    def _read_sealed_portion(self, row: SessionRow) -> pa.RecordBatch | None:
        searched = 0
        while True:
            size = _count_portion_rows(self._rows)
            if size is not None or self._has_all_rows:
                return self._take_sealed_rows(size) if self._rows else None
            if searched >= SEARCHED_EVENTS:
                return make_session_event_batch([])
            batch = self._read_rows(row)
            if batch is None:
                self._has_all_rows = True
                continue
            searched += batch.num_rows if self._wanted.types else 0
            if (selected := self._wanted.select(batch)).num_rows:
                self._rows.append(selected)

    def _read_rows(self, row: SessionRow) -> pa.RecordBatch | None:
        """Return the next rows of the lake, in its portions.

        Compaction may delete a file that was not opened yet. So the table is opened again after a failure, if
        it was read from since the last one.
        """
        while True:
            is_fresh = self._sealed is None
            if self._sealed is None:
                self._sealed = read_sealed_events(self._lake, row, after=self._position, wanted=self._wanted)
            try:
                batch = next(self._sealed, None)
            except Unavailable:
                if is_fresh:
                    raise
                self._sealed = None
                continue
            if batch is not None and batch.num_rows:
                self._position = (batch["t_ms"][-1].as_py(), batch["id"][-1].as_py())
            return batch

    def _take_sealed_rows(self, size: int | None) -> pa.RecordBatch:
        """Return this many of the sealed rows that were read, or all of them, as one batch."""
        taken: list[pa.RecordBatch] = []
        missing = sum(batch.num_rows for batch in self._rows) if size is None else size
        while missing:
            batch = self._rows.popleft()
            taken.append(batch.slice(0, missing))
            if batch.num_rows > missing:
                self._rows.appendleft(batch.slice(missing))
            missing -= taken[-1].num_rows
        return _join_session_event_batches(taken)


def read_session_events_page(
    db: DbSession,
    lake: Lake,
    row: SessionRow,
    *,
    after: EventSortKey | None,
    limit: int,
    wanted: EventFilter = EVERY_EVENT,
) -> FetchedPage[EventRecord, EventSortKey]:
    """Return a page of a session's events by `(t_ms, id)`, those after a position.

    A page may have fewer than `limit` events before the end. It ends where its bytes reach their limit; and
    where types are wanted, after a bounded search, and its position is then the last one that was searched.
    """
    searched_to: EventSortKey | None = None

    def read_records(count: int) -> list[EventRecord]:
        nonlocal searched_to
        if row.is_hot:
            records, searched_to = read_stored_events(
                db, row.id, after=after, limit=count, max_bytes=limits.PAGE_BYTES, wanted=wanted
            )
        else:
            records, searched_to = _read_sealed_events_page(
                lake, row, after=after, limit=count, wanted=wanted
            )
        return records

    page = fetch_list_page(
        read_records,
        limit=limit,
        position_of=lambda record: (record.t_ms, record.id),
        size_of=lambda record: len(record.payload),
    )
    return page if page.position is not None else FetchedPage(page.items, searched_to)


def _read_sealed_events_page(
    lake: Lake, row: SessionRow, *, after: EventSortKey | None, limit: int, wanted: EventFilter
) -> tuple[list[EventRecord], EventSortKey | None]:
    records: list[EventRecord] = []
    searched = size = 0
    with closing(read_sealed_events(lake, row, after=after, limit=limit, wanted=wanted)) as batches:
        for batch in batches:
            for record in islice(list_session_event_records(wanted.select(batch)), limit - len(records)):
                size += len(record.payload)
                if records and size > limits.PAGE_BYTES:
                    return records, (records[-1].t_ms, records[-1].id)
                records.append(record)
            searched += batch.num_rows
            if len(records) == limit:
                return records, None
            if searched >= SEARCHED_EVENTS and batch.num_rows:
                return records, (batch["t_ms"][-1].as_py(), batch["id"][-1].as_py())
    return records, None


def read_sealed_events(
    lake: Lake,
    row: SessionRow,
    *,
    after: EventSortKey | None,
    limit: int | None = None,
    wanted: EventFilter = EVERY_EVENT,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the events of a swept session after a position, in the columns of `SCHEMA`.

    Args:
        lake: where they are.
        row: the session.
        after: the last event that is not wanted; None for all.
        limit: as many as a caller needs; where types are wanted, others are read to find them.
        wanted: its range of time; events of other types are yielded too.
    """
    batches = lake.read_session_batches(
        "events",
        row.tenant,
        workflow=row.workflow,
        date=row.lake_date or "",
        session_id=row.id,
        after=wanted.start(after),
        columns=_COLUMNS,
        limit=None if wanted.types else limit,
    )
    with closing(batches):
        for batch in batches:
            inside, is_end = wanted.cut(pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA))
            yield inside
            if is_end:
                return


def make_session_event_batch(records: Sequence[EventRecord]) -> pa.RecordBatch:
    """Return records as one record batch."""
    columns = {
        "id": [record.id for record in records],
        "t_ms": [record.t_ms for record in records],
        "type": [record.type for record in records],
        "frame_id": [record.frame_id for record in records],
        "payload": [record.payload for record in records],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def list_session_event_records(batch: pa.RecordBatch) -> Iterator[EventRecord]:
    """Yield the rows of a record batch as records."""
    columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
    for event_id, t_ms, kind, frame_id, payload in zip(*columns, strict=True):
        yield EventRecord(t_ms, event_id, kind, frame_id, payload.encode())


def _count_portion_rows(batches: Sequence[pa.RecordBatch]) -> int | None:
    """Return with how many rows a portion of these ends; None where more must be read to know."""
    rows = size = 0
    for batch in batches:
        sizes = np.cumsum(pc.binary_length(batch["payload"]).to_numpy()) + size
        reached = int(np.searchsorted(sizes, PORTION_BYTES)) + 1
        last = min(reached, PORTION_EVENTS - rows)
        if last <= batch.num_rows:
            return rows + last
        rows += batch.num_rows
        size = int(sizes[-1])
    return None


def _join_session_event_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows as one batch of its own: encoded, its bytes follow from its rows alone."""
    rows = pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches]).combine_chunks()
    (joined,) = rows.to_batches()
    return joined.take(pa.array(np.arange(joined.num_rows)))
