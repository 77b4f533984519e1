"""Items of a session's stored batches, as they were sent. Design §3."""

from contextlib import closing
from typing import Any, Protocol

import msgspec
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchBody, EventBatchRow
from recorder.recording.stored_events import decompress_stored_events, fill_event_ids, head_decoder

#: Time, id and position of an event: no two events of a session share all three.
EventOrderKey = tuple[int, str, int]
#: Time, id, position and the item's JSON as it is stored. Sorted, these are in total order.
HotItem = tuple[int, str, int, bytes]


class _StoredBatch(Protocol):
    """Row of a batch, or the columns of one."""

    first_position: Any
    n: Any
    t_min: Any
    t_max: Any
    first_id: Any
    payload: Any


_raw_decoder = msgspec.json.Decoder(EventBatchBody)
#: Batches that are fetched at a time.
_FETCHED_ROWS = 8


def read_batch_items(
    db: DbSession, session_id: str, *, after_position: int, max_events: int, max_bytes: int
) -> tuple[list[HotItem], int | None]:
    """Read the items of a session's next batches, in the order in which the batches were sent.

    Args:
        db: a transaction.
        session_id: id of the session.
        after_position: the batches that begin after this position are read.
        max_events: no further batch once there are so many items.
        max_bytes: no further batch once the items have so many bytes.

    Returns:
        The items, and the first position of the last batch; None in place of it if no batch follows.

    Raises:
        ValueError: if a batch does not hold the events that its row describes.
    """
    row = EventBatchRow
    columns = (row.first_position, row.n, row.t_min, row.t_max, row.first_id, row.payload)
    statement = (
        select(*columns)  # type: ignore[call-overload]
        .where(row.session_id == session_id, col(row.first_position) > after_position)
        .order_by(col(row.first_position))
        .execution_options(yield_per=_FETCHED_ROWS)
    )
    items: list[HotItem] = []
    size, last = 0, after_position
    with closing(db.execute(statement)) as batches:
        for batch in batches:
            if len(items) >= max_events or size >= max_bytes:
                return items, last
            part = decode_batch_items(batch)
            items += part
            size += sum(len(item[3]) for item in part)
            last = batch.first_position
    return items, None


def decode_batch_items(batch: _StoredBatch) -> list[HotItem]:
    """Return the items of one batch, in the order they were sent.

    Raises:
        ValueError: if it does not hold the events that its row describes.
    """
    body = decompress_stored_events(batch.payload)
    heads = head_decoder.decode(body).events
    times = [head.t_ms for head in heads]
    if not times or (len(times), min(times), max(times)) != (batch.n, batch.t_min, batch.t_max):
        raise ValueError("A stored batch does not hold the events that its row describes.")
    ids = fill_event_ids((head.id for head in heads), batch.first_id)
    positions = range(batch.first_position, batch.first_position + len(times))
    items = map(bytes, _raw_decoder.decode(body).events)
    return list(zip(times, ids, positions, items, strict=True))
