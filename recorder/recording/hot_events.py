"""Events that lie in SQL: batches as they were sent, decoded into records. Contract §3."""

from dataclasses import dataclass
from typing import Any

import orjson
import zstandard
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.digest import canonical_json
from recorder.ids import decode, encode
from recorder.models.event import EventBatchRow

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
        """The event as it is read back: the members that were sent, and its id."""
        head = b'{"id":"%b","t_ms":%d,"type":"%b"' % (self.id.encode(), self.t_ms, self.type.encode())
        if self.frame_id is not None:
            head += b',"frame_id":' + orjson.dumps(self.frame_id)
        return head + (b"}" if self.payload == b"{}" else b"," + self.payload[1:])


def read_hot_events(db: DbSession, session_id: str, *, from_t_ms: int = 0) -> list[EventRecord]:
    """The events of a session that lie in SQL, by `(t_ms, id)`.

    Args:
        from_t_ms: batches that end before this are not decoded; earlier events of others may be among them.
    """
    statement = select(EventBatchRow).where(
        EventBatchRow.session_id == session_id, col(EventBatchRow.t_max) >= from_t_ms
    )
    records = [record for row in db.exec(statement) for record in decode_batch(row)]
    records.sort(key=_order)
    return records


def decode_batch(row: EventBatchRow) -> list[EventRecord]:
    """The events of one batch, in the order they were sent."""
    items = orjson.loads(decompress(row.payload))["events"]
    return [
        _record(item, event_id) for item, event_id in zip(items, item_ids(items, row.first_id), strict=True)
    ]


def item_ids(items: list[dict[str, Any]], first_id: str) -> list[str]:
    """The id of each item: its own, or the next of the range that begins at `first_id`."""
    prefix, _, ulid = first_id.partition("_")
    value = decode(ulid)
    ids = []
    for item in items:
        own = item.get("id")
        if own is None:
            own = f"{prefix}_{encode(value)}"
            value += 1
        ids.append(own)
    return ids


def decompress(payload: bytes) -> bytes:
    """The body that a batch row holds."""
    return zstandard.ZstdDecompressor().decompress(payload)


def _record(item: dict[str, Any], event_id: str) -> EventRecord:
    rest = {name: value for name, value in item.items() if name not in COLUMNS}
    return EventRecord(item["t_ms"], event_id, item["type"], item.get("frame_id"), canonical_json(rest))


def _order(record: EventRecord) -> tuple[int, str]:
    return (record.t_ms, record.id)
