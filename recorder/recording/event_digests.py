"""Digests of events, which distinguish a repeated event from a conflicting one. Contract §3."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import msgspec
from sqlalchemy import text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.ids import decode_ulid, is_id
from recorder.models.event import EventBatchBody, EventBatchRow
from recorder.recording.stored_events import decode_event_heads, decompress_stored_events

# Both columns as one text: a second look-up by `first_id` would read all batches of the session, since SQLite
# prefers the primary key.
_PRECEDING = """
WITH sent(event_id) AS (VALUES {sent})
SELECT event_id, (
    SELECT first_id || ' ' || first_position FROM event_batches
    WHERE session_id = :session_id AND first_id <= sent.event_id ORDER BY first_id DESC LIMIT 1
) FROM sent
"""
_raw_decoder = msgspec.json.Decoder(EventBatchBody)
#: Members of an item whose own members are optional; those of `data`, `signals` and `attrs` are free.
_STRUCTURES = {"app", "input", "target", "trace"}


def hash_event_item(item: msgspec.Raw, event_id: str) -> bytes:
    """Return the digest of an item's value without nulls; key order and spaces do not matter.

    Args:
        item: the item.
        event_id: id of the event: its own, or the one that the service assigned.
    """
    value = _remove_event_nulls(msgspec.json.decode(item)) | {"id": event_id}
    value.update({name: _remove_event_nulls(value[name]) for name in _STRUCTURES & value.keys()})
    return hashlib.blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=16).digest()


def read_assigned_event_digests(db: DbSession, session_id: str, event_ids: Iterable[str]) -> dict[str, bytes]:
    """Return the digests of the events of a session to which the service assigned one of these ids.

    One query finds the batches that may hold the ids. Only batches whose range reaches an id are decoded, at
    most one for each id. A client reads an id after its batch was committed, so a transaction before that of
    the new batch finds it.

    Args:
        db: a transaction; reading is enough.
        session_id: the session.
        event_ids: ids that a client sent; those of another form are skipped.
    """
    sent = sorted({event_id for event_id in event_ids if is_id(event_id, "evt")})
    wanted: set[str] = set()
    positions: set[int] = set()
    for event_id, first_id, first_position in _find_preceding_batches(db, session_id, sent) if sent else ():
        # Ids of a batch follow each other from its first one.
        if _subtract_ids(event_id, first_id) < limits.EVENTS_PER_BATCH:
            wanted.add(event_id)
            positions.add(first_position)
    if not wanted:
        return {}
    digests: dict[str, bytes] = {}
    batches = select(EventBatchRow.first_id, EventBatchRow.payload).where(
        EventBatchRow.session_id == session_id, col(EventBatchRow.first_position).in_(positions)
    )
    with closing(db.execute(batches.execution_options(yield_per=1))) as rows:
        for first_id, payload in rows:
            body = decompress_stored_events(payload)
            items = _raw_decoder.decode(body).events
            for (head, event_id), item in zip(decode_event_heads(body, first_id), items, strict=True):
                if head.id is None and event_id in wanted:
                    digests[event_id] = hash_event_item(item, event_id)
    return digests


def _find_preceding_batches(
    db: DbSession, session_id: str, event_ids: list[str]
) -> Iterator[tuple[str, str, int]]:
    """Yield each id with the batch of the greatest `first_id` up to it: that id, and the first position."""
    # As text: SQLAlchemy would compile a table of values again each time, in 2 to 5 ms.
    names = [f"id_{index}" for index in range(len(event_ids))]
    statement = text(_PRECEDING.format(sent=", ".join(f"(:{name})" for name in names)))
    rows = db.execute(statement, {"session_id": session_id, **dict(zip(names, event_ids, strict=True))})
    for event_id, batch in rows:
        if batch is not None:
            first_id, _, first_position = batch.partition(" ")
            yield event_id, first_id, int(first_position)


def _subtract_ids(event_id: str, first_id: str) -> int:
    """Return by how much the ULID of an event id exceeds that of the first id."""
    return decode_ulid(event_id.partition("_")[2]) - decode_ulid(first_id.partition("_")[2])


def _remove_event_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if member is not None}
