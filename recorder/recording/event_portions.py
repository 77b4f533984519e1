"""Portions of a session's hot events in total order, bounded in events and bytes. Design §3."""

from bisect import bisect_right
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import sqlalchemy
from sqlalchemy import Row, func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.ids import decode, encode
from recorder.models.event import EventBatchBody, EventBatchRow
from recorder.recording.hot_events import decompress, head_decoder

#: Time, id and position of an event: no two events of a session share all three.
Place = tuple[int, str, int]
#: Time, id, position and the item's JSON as it is stored. Sorted, these are in total order.
HotItem = tuple[int, str, int, bytes]

#: first_position, n, t_min, t_max, first_id and the compressed size of a batch.
_Header = Row[tuple[int, int, int, int, str, int]]


class _Described(Protocol):
    """Columns of a batch's row that say what its payload holds."""

    first_position: Any
    n: Any
    t_min: Any
    t_max: Any
    first_id: Any


_raw_decoder = msgspec.json.Decoder(EventBatchBody)
_HEADERS = 2_048
_FOREVER = 2**63
# Payloads are fetched together up to so many rows and bytes.
_FETCHED_ROWS = 128
_FETCHED_BYTES = 4 * 1024 * 1024


def read_portion(
    db: DbSession, session_id: str, *, after: Place | None, max_events: int, max_bytes: int
) -> tuple[list[HotItem], bool]:
    """Read the next events of a session in the order `(t_ms, id, position)`.

    Batches are decoded by their first time, up to the first one that begins after the portion. If all
    batches overlap, each is decoded once. Memory holds about the portion and one fetch of payloads.

    Args:
        db: a transaction.
        session_id: id of the session.
        after: the last event of the portion before; None for the first portion.
        max_events: at most so many events.
        max_bytes: at most so many bytes of items, but always one event.

    Returns:
        The events, and whether others may follow them.
    """
    first_items = _FirstItems(max_events, max_bytes)
    with closing(_read_chunks(db, session_id, after)) as chunks:
        for chunk in chunks:
            if first_items.is_behind(chunk[0].t_min):
                break
            payloads = _read_payloads(db, session_id, chunk)
            for header in chunk:
                if first_items.is_behind(header.t_min):
                    break
                body = decompress(payloads.pop(header.first_position))
                first_items.add(_decode_between(header, body, after, first_items.last))
    return first_items.take(), first_items.last is not None


def decode_batch_items(row: EventBatchRow) -> list[HotItem]:
    """Return the items of one batch, in the order they were sent.

    Raises:
        ValueError: if it does not hold the events that its row describes.
    """
    return _decode_between(row, decompress(row.payload), None, None)


def _decode_between(
    header: _Described, body: bytes, after: Place | None, last: Place | None
) -> list[HotItem]:
    """Return the items of a batch that follow `after`, up to `last`; of the others only the time is read."""
    heads = head_decoder.decode(body).events
    times = [head.t_ms for head in heads]
    described = (header.n, header.t_min, header.t_max)
    if not times or (len(times), min(times), max(times)) != described:
        raise ValueError("A stored batch does not hold the events that its row describes.")
    # An id that the service gave is costly to spell: times are compared first.
    least = after[0] if after is not None else 0
    most = last[0] if last is not None else _FOREVER
    places: list[tuple[int, Place]] = []
    prefix, _, ulid = header.first_id.partition("_")
    value = decode(ulid)
    for n, (t_ms, head) in enumerate(zip(times, heads, strict=True)):
        event_id = head.id
        if event_id is None:
            value += 1
        if least <= t_ms <= most:
            key = (t_ms, event_id or f"{prefix}_{encode(value - 1)}", header.first_position + n)
            if (after is None or key > after) and (last is None or key <= last):
                places.append((n, key))
    if not places:
        return []
    items = _raw_decoder.decode(body).events
    return [(*key, bytes(items[n])) for n, key in places]


class _FirstItems:
    """The first items of a total order, as many as a portion holds."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._items: list[HotItem] = []
        self._bytes = 0
        #: Items after this one do not belong to the portion; None while the portion is not full.
        self.last: Place | None = None
        self._cut_at_events, self._cut_at_bytes = max_events, max_bytes

    def is_behind(self, t_ms: int) -> bool:
        """Return whether items from this time on come after the portion."""
        return self.last is not None and t_ms > self.last[0]

    def add(self, items: Sequence[HotItem]) -> None:
        """Add items that may belong to the portion."""
        self._items += items
        self._bytes += sum(len(item[3]) for item in items)
        if len(self._items) >= self._cut_at_events or self._bytes >= self._cut_at_bytes:
            self._cut()
            # Sorting costs the same for one item more as for many: let a tenth gather first.
            self._cut_at_events = len(self._items) + self._max_events // 10 + 1
            self._cut_at_bytes = self._bytes + self._max_bytes // 10 + 1

    def take(self) -> list[HotItem]:
        """Return the portion."""
        self._cut()
        return self._items

    def _cut(self) -> None:
        """Sort, and keep what one portion holds."""
        items = self._items
        items.sort()
        count = min(len(items), self._max_events)
        if self._bytes > self._max_bytes:
            sizes = list(accumulate(len(item[3]) for item in items[:count]))
            count = max(bisect_right(sizes, self._max_bytes), 1)
        is_full = count < len(items) or count == self._max_events or self._bytes >= self._max_bytes
        self._bytes -= sum(len(item[3]) for item in items[count:])
        del items[count:]
        if is_full:
            self.last = items[-1][:3]


def _read_chunks(db: DbSession, session_id: str, after: Place | None) -> Generator[list[_Header], None, None]:
    """Yield the headers of the batches that do not end before `after`, by first time, in chunks to fetch."""
    statement = (
        sqlalchemy.select(
            col(EventBatchRow.first_position),
            col(EventBatchRow.n),
            col(EventBatchRow.t_min),
            col(EventBatchRow.t_max),
            col(EventBatchRow.first_id),
            func.length(EventBatchRow.payload).label("size"),
        )
        .where(col(EventBatchRow.session_id) == session_id)
        .where(col(EventBatchRow.t_max) >= (after[0] if after else 0))
        .order_by(col(EventBatchRow.t_min), col(EventBatchRow.first_position))
        .execution_options(yield_per=_HEADERS)
    )
    chunk: list[_Header] = []
    size = 0
    with closing(db.execute(statement)) as headers:
        for header in headers:
            if chunk and (len(chunk) == _FETCHED_ROWS or size + header.size > _FETCHED_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(header)
            size += header.size
        if chunk:
            yield chunk


def _read_payloads(db: DbSession, session_id: str, headers: Sequence[_Header]) -> dict[int, bytes]:
    statement = select(EventBatchRow.first_position, EventBatchRow.payload).where(
        EventBatchRow.session_id == session_id,
        col(EventBatchRow.first_position).in_([header.first_position for header in headers]),
    )
    return {row.first_position: row.payload for row in db.execute(statement)}
