"""Portions of a session's hot events in total order, bounded in events and bytes. Design §3."""

from collections.abc import Generator, Sequence
from contextlib import closing

import msgspec
from sqlalchemy import Row, func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchBody, EventBatchRow
from recorder.recording.hot_events import decode_heads, decompress

#: Time, id and position of an event: no two events of a session share all three.
Place = tuple[int, str, int]
#: Time, id, position and the item's JSON as it is stored. Sorted, these are in total order.
HotItem = tuple[int, str, int, bytes]

#: first_position, t_min, first_id, n and the compressed size of a batch.
_Header = Row[tuple[int, int, str, int, int]]

_raw_decoder = msgspec.json.Decoder(EventBatchBody)
_HEADERS = 2_048
# Payloads are fetched together up to so many rows and bytes.
_FETCHED_ROWS = 128
_FETCHED_BYTES = 4 * 1024 * 1024


def read_portion(
    db: DbSession, session_id: str, *, after: Place | None, max_events: int, max_bytes: int
) -> tuple[list[HotItem], bool]:
    """Read the next events of a session in the order `(t_ms, id, position)`.

    Batches are decoded by their first time, up to the first one that begins behind the portion. If all
    batches overlap, each is decoded once. Memory holds about the portion and one fetch of payloads.

    Args:
        after: the last event of the portion before; None for the first portion.
        max_events: at most so many events.
        max_bytes: at most so many bytes of items, but always one event.

    Returns:
        The events, and whether events of the session follow them.
    """
    found = _FirstItems(max_events, max_bytes)
    with closing(_read_chunks(db, session_id, after)) as chunks:
        for chunk in chunks:
            if found.is_behind(chunk[0].t_min):
                break
            payloads = _read_payloads(db, session_id, chunk)
            for header in chunk:
                if found.is_behind(header.t_min):
                    break
                body = decompress(payloads.pop(header.first_position))
                found.add(decode_items(body, header.first_id, header.first_position), after)
    return found.take()


def decode_items(body: bytes, first_id: str, first_position: int) -> list[HotItem]:
    """Return the items of one batch's body, in the order they were sent."""
    items = _raw_decoder.decode(body).events
    return [
        (head.t_ms, event_id, first_position + n, bytes(items[n]))
        for n, (head, event_id) in enumerate(decode_heads(body, first_id))
    ]


class _FirstItems:
    """The first items of a total order, as many as a portion holds."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._items: list[HotItem] = []
        self._bytes = 0
        #: Items after this one do not belong to the portion; None while the portion is not full.
        self._last: Place | None = None
        self._has_more = False
        self._cut_at_events, self._cut_at_bytes = max_events, max_bytes

    def is_behind(self, t_ms: int) -> bool:
        """Return whether items from this time on come after the portion; then note that there are some."""
        if self._last is None or t_ms <= self._last[0]:
            return False
        self._has_more = True
        return True

    def add(self, items: Sequence[HotItem], after: Place | None) -> None:
        """Add the items that follow `after` and may belong to the portion."""
        for item in items:
            place = item[:3]
            if after is not None and place <= after:
                continue
            if self._last is not None and place > self._last:
                self._has_more = True
                continue
            self._items.append(item)
            self._bytes += len(item[3])
        if len(self._items) >= self._cut_at_events or self._bytes >= self._cut_at_bytes:
            self._cut()
            # Sorting costs the same for one item more as for many: let a tenth gather first.
            self._cut_at_events = len(self._items) + self._max_events // 10 + 1
            self._cut_at_bytes = self._bytes + self._max_bytes // 10 + 1

    def take(self) -> tuple[list[HotItem], bool]:
        """Return the portion, and whether items follow it."""
        self._cut()
        return self._items, self._has_more

    def _cut(self) -> None:
        """Sort, and keep what one portion holds."""
        items = self._items
        items.sort()
        kept, size = 0, 0
        for item in items:
            if kept == self._max_events or (kept and size + len(item[3]) > self._max_bytes):
                self._has_more = True
                break
            kept, size = kept + 1, size + len(item[3])
        is_full = kept < len(items) or kept == self._max_events or size >= self._max_bytes
        del items[kept:]
        self._bytes = size
        if is_full:
            self._last = items[-1][:3]


def _read_chunks(db: DbSession, session_id: str, after: Place | None) -> Generator[list[_Header], None, None]:
    """Yield the headers of the batches that do not end before `after`, by first time, in chunks to fetch."""
    statement = (
        select(
            EventBatchRow.first_position,
            EventBatchRow.t_min,
            EventBatchRow.first_id,
            EventBatchRow.n,
            func.length(EventBatchRow.payload).label("size"),
        )
        .where(EventBatchRow.session_id == session_id)
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
