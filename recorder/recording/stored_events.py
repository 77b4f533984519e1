"""Events of stored batches: filter, decoding, ids, and reads in `(t_ms, id)` order. Contract §2."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from sqlalchemy import Row
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.hashing import canonical_json
from recorder.ids import decode_ulid, encode_ulid
from recorder.models.event import EventBatchBody, EventBatchRow
from recorder.storage.limited_reads import check_read_time

#: `(t_ms, id)` of an event; with an empty id it stands before every event of that time.
EventSortKey = tuple[int, str]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events that a reader wants: of some types, within a range of time."""

    #: Empty for every type.
    types: frozenset[str] = frozenset()
    #: First time that is wanted, and the first one after it that is not.
    from_t_ms: int | None = None
    to_t_ms: int | None = None

    def start(self, after: EventSortKey | None) -> EventSortKey | None:
        """Return the position that all wanted events after `after` follow; None if that is every event."""
        if self.from_t_ms is None:
            return after
        begin = (self.from_t_ms, "")
        return begin if after is None else max(after, begin)

    def end(self, bound: EventSortKey | None = None) -> EventSortKey | None:
        """Return the earlier of `bound` and the end of the range; None where there is neither."""
        if self.to_t_ms is None:
            return bound
        end = (self.to_t_ms, "")
        return end if bound is None else min(bound, end)

    def cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
        """Return the rows of an ordered batch before the end of the range, and whether it was reached."""
        if self.to_t_ms is None:
            return batch, False
        inside = pc.sum(pc.less(batch["t_ms"], self.to_t_ms)).as_py() or 0
        return batch.slice(0, inside), inside < batch.num_rows

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are of a wanted type."""
        if not self.types:
            return batch
        return batch.filter(pc.is_in(batch["type"], pa.array(sorted(self.types), pa.string())))


EVERY_EVENT: Final = EventFilter()


#: Members of an event that are columns of their own; the others form its payload.
COLUMNS = ("id", "t_ms", "type", "frame_id")


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One stored event, the same from the hot rows and from the lake."""

    t_ms: int
    id: str
    type: str
    frame_id: str | None
    #: Canonical JSON object of all other members.
    payload: bytes

    def as_json(self) -> bytes:
        """Return the event as it is read back: the members that were sent, and its id."""
        head = b'{"id":"%b","t_ms":%d,"type":"%b"' % (self.id.encode(), self.t_ms, self.type.encode())
        if self.frame_id is not None:
            head += b',"frame_id":' + orjson.dumps(self.frame_id)
        return head + (b"}" if self.payload == b"{}" else b"," + self.payload[1:])


class EventHead(msgspec.Struct, gc=False):
    """Members of an event that give its order and type; decoding skips the others."""

    t_ms: int
    type: str
    id: str | None = None


class _Heads(msgspec.Struct):
    events: list[EventHead]


#: What a batch row says of its payload: first_position, t_min, first_id.
_Header = Row[tuple[int, int, str]]
#: Ordered by `(t_ms, id, position)`; no two have the same position.
Entry = tuple[int, str, int, EventRecord]

#: Decodes a batch's body to `(t_ms, type, id)` of each event.
head_decoder = msgspec.json.Decoder(_Heads)
_raw_decoder = msgspec.json.Decoder(EventBatchBody)
# Headers are read so many at a time, payloads first one, then two, up to so many.
_HEADERS = 512
_PAYLOADS = 16
#: A page of some types alone ends early, and leads on, after so many batches were searched.
SEARCHED_BATCHES = 2_000


def read_stored_events(
    db: DbSession,
    session_id: str,
    *,
    after: EventSortKey | None = None,
    limit: int | None = None,
    max_bytes: int | None = None,
    wanted: EventFilter = EVERY_EVENT,
) -> tuple[list[EventRecord], EventSortKey | None]:
    """Return the events of a session that are in SQL by `(t_ms, id)` after a position.

    Args:
        db: a transaction.
        session_id: the caller has checked that it may be read.
        after: the last event that is not wanted; None for all.
        limit: at most so many, and no more batches are decoded than they need; None for all.
        max_bytes: at most so many bytes of payloads, but at least one event; None for all.
        wanted: types and times.

    Returns:
        The events; and, where the search for them was ended early, the position to go on from.
    """
    page: list[EventRecord] = []
    size = 0
    with closing(_merge_stored_event_batches(db, session_id, wanted.start(after), limit, wanted)) as records:
        for record in islice(records, limit):
            if isinstance(record, tuple):
                return page, record
            size += len(record.payload)
            if page and max_bytes is not None and size > max_bytes:
                return page, (page[-1].t_ms, page[-1].id)
            page.append(record)
    return page, None


def _merge_stored_event_batches(
    db: DbSession, session_id: str, after: EventSortKey | None, limit: int | None, wanted: EventFilter
) -> Generator[EventRecord | EventSortKey, None, None]:
    """Decode batches by their first time; an event is given once no batch left can hold an earlier one."""
    waiting: list[Entry] = []
    searched, most = 0, SEARCHED_BATCHES if wanted.types else None
    for chunk in _read_stored_batch_headers(db, session_id, after, wanted):
        check_read_time(db)
        yield from _pop_stored_events_before(waiting, chunk[0].t_min)
        if most is not None and searched >= most and chunk[0].t_min > (after[0] if after else 0):
            yield (chunk[0].t_min, "")
            return
        searched += len(chunk)
        payloads = _read_stored_batch_payloads(db, session_id, chunk)
        for header in chunk:
            yield from _pop_stored_events_before(waiting, header.t_min)
            last = waiting[-1][:2] if limit is not None and len(waiting) == limit else None
            payload = payloads.pop(header.first_position)
            entries = decode_stored_events_between(
                payload, header.first_id, header.first_position, after, wanted.end(last), wanted.types
            )
            for entry in entries:
                heappush(waiting, entry)
            if limit is not None:
                # Sorted it is still a heap, and what no page can reach is let go.
                waiting = sorted(waiting)[:limit]
    while waiting:
        yield heappop(waiting)[-1]


def _pop_stored_events_before(waiting: list[Entry], t_ms: int) -> Iterator[EventRecord]:
    while waiting and waiting[0][0] < t_ms:
        yield heappop(waiting)[-1]


def _read_stored_batch_headers(
    db: DbSession, session_id: str, after: EventSortKey | None, wanted: EventFilter
) -> Iterator[list[_Header]]:
    """Yield the headers of the batches within the range that do not end before `after`, by first time."""
    statement = (
        select(EventBatchRow.first_position, EventBatchRow.t_min, EventBatchRow.first_id)
        .where(EventBatchRow.session_id == session_id)
        .where(col(EventBatchRow.t_max) >= (after[0] if after else 0))
        .order_by(col(EventBatchRow.t_min), col(EventBatchRow.first_position))
        .execution_options(yield_per=_HEADERS)
    )
    if wanted.to_t_ms is not None:
        statement = statement.where(col(EventBatchRow.t_min) < wanted.to_t_ms)
    with closing(db.execute(statement)) as headers:
        size = 1
        while chunk := list(islice(headers, size)):
            yield chunk
            size = min(2 * size, _PAYLOADS)


def _read_stored_batch_payloads(
    db: DbSession, session_id: str, headers: Sequence[_Header]
) -> dict[int, bytes]:
    statement = select(EventBatchRow.first_position, EventBatchRow.payload).where(
        EventBatchRow.session_id == session_id,
        col(EventBatchRow.first_position).in_([header.first_position for header in headers]),
    )
    return {row.first_position: row.payload for row in db.execute(statement)}


def decode_stored_events_between(
    payload: bytes,
    first_id: str,
    first_position: int,
    after: EventSortKey | None,
    last: EventSortKey | None,
    types: frozenset[str] = frozenset(),
) -> Iterator[Entry]:
    """Yield the events of a batch after `after` and up to `last`; the others are not built.

    Args:
        payload: of the batch, compressed.
        first_id: of the batch.
        first_position: of the batch.
        after: the last event that is not wanted; None for none.
        last: the last one that is; None for all.
        types: of these types alone; empty for all.
    """
    body = decompress_stored_events(payload)
    positions = [
        (head.t_ms, event_id) if not types or head.type in types else None
        for head, event_id in decode_event_heads(body, first_id)
    ]
    wanted = [
        (n, key)
        for n, key in enumerate(positions)
        if key is not None and (after is None or key > after) and (last is None or key <= last)
    ]
    items = _raw_decoder.decode(body).events if wanted else []
    for n, key in wanted:
        yield (*key, first_position + n, make_event_record(orjson.loads(bytes(items[n])), key[1]))


def decode_event_heads(body: bytes, first_id: str) -> list[tuple[EventHead, str]]:
    """Return the head of each event of a batch and its id, in the order they were sent."""
    heads = head_decoder.decode(body).events
    return list(zip(heads, fill_event_ids((head.id for head in heads), first_id), strict=True))


def decode_stored_event_batch(row: EventBatchRow) -> list[EventRecord]:
    """Return the events of one batch, in the order they were sent."""
    items = orjson.loads(decompress_stored_events(row.payload))["events"]
    return [
        make_event_record(item, event_id)
        for item, event_id in zip(items, list_stored_event_ids(items, row.first_id), strict=True)
    ]


def list_stored_event_ids(items: list[dict[str, Any]], first_id: str) -> list[str]:
    """Return the id of each item: its own, or the next of the range that begins at `first_id`."""
    return fill_event_ids((item.get("id") for item in items), first_id)


def fill_event_ids(own_ids: Iterable[str | None], first_id: str) -> list[str]:
    """Return each id, or in place of None the next of the range that begins at `first_id`."""
    prefix, _, ulid = first_id.partition("_")
    value = decode_ulid(ulid)
    ids = []
    for item_id in own_ids:
        if item_id is None:
            item_id = f"{prefix}_{encode_ulid(value)}"
            value += 1
        ids.append(item_id)
    return ids


def decompress_stored_events(payload: bytes) -> bytes:
    """Return the body that a batch row holds."""
    return zstandard.ZstdDecompressor().decompress(payload)


def make_event_record(item: dict[str, Any], event_id: str) -> EventRecord:
    """Return an item as it was sent, under its id."""
    rest = {name: value for name, value in item.items() if name not in COLUMNS}
    return EventRecord(item["t_ms"], event_id, item["type"], item.get("frame_id"), canonical_json(rest))
