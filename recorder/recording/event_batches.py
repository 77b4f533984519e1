"""Event batches: masking, packing and storage of checked `POST …/events` bodies. Spec §4.1, contract §3."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import zstandard

from recorder import clock
from recorder.access.keys import Caller
from recorder.errors import EventConflict, Problem
from recorder.ids import encode_ulid, reserve_ulid_values
from recorder.masking.masker import Changes
from recorder.media_types import JSON, require_media_type
from recorder.models.event import EventBatchBody, EventItem
from recorder.recording.driver_cursor import IngestCursor
from recorder.recording.event_digests import hash_event_item
from recorder.recording.event_validation import validate_event_body
from recorder.recording.ingest_statements import (
    BatchIdempotencyKey,
    lock_session_for_ingest,
    require_minutes_for_ingest,
    require_recording_for_ingest,
    require_room_for_ingest,
    reserve_item_positions,
)
from recorder.recording.item_masking import mask_events
from recorder.recording.session_locks import SessionKey


class TimedItem(msgspec.Struct):
    """The time of an item that was checked before: masked, the item may exceed the caps of a sent one."""

    t_ms: int


_time_decoder = msgspec.json.Decoder(TimedItem)
_raw_decoder = msgspec.json.Decoder(EventBatchBody)


@dataclass(frozen=True, slots=True)
class NamedItem:
    """An item that named itself, with the digest of what is stored of it."""

    index: int
    id: str
    t_ms: int
    digest: bytes


@dataclass(slots=True)
class EventBatch:
    """A batch of events ready to be stored."""

    caller: Caller
    session_id: str
    n: int
    t_min: int
    t_max: int
    #: Ids of the first and last item, and the first of those that the service gave.
    first_id: str
    last_id: str
    range_id: str
    #: The body as it came or as it was masked, compressed.
    payload: bytes
    #: Items that named themselves.
    named: list["NamedItem"]
    body: bytes
    key: BatchIdempotencyKey | None
    #: Position of its first item, once it is stored.
    first_position: int = 0
    #: Bytes of its items, as JSON.
    size: int = 0
    #: Digests of stored events whose ids the service assigned, as far as `named` holds such ids.
    assigned: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def kind(self) -> Literal["events", "frames"]:
        """Kind of the items; see `ingest.IngestBatch`."""
        return "events"

    @property
    def session(self) -> SessionKey:
        """Workspace, mode and id of the session."""
        tenant = self.caller.tenant
        return tenant.workspace_id, tenant.mode, self.session_id

    def store(self, cursor: IngestCursor) -> bytes:
        """Write the batch; see `ingest.IngestBatch`."""
        session = self.session
        if self.key is None and not self.named:
            return self._insert_batch(cursor, session, skipped=0)
        lock_session_for_ingest(cursor, session)
        if self.key is not None:
            earlier = self.key.find_earlier_answer(cursor, self.session_id)
            if earlier is not None:
                return earlier
        skipped = self._store_named(cursor, session) if self.named else 0
        answer = self._insert_batch(cursor, session, skipped=skipped)
        if self.key is not None:
            self.key.store_answer(cursor, self.session_id, answer)
        return answer

    def _insert_batch(self, cursor: IngestCursor, session: tuple[str, str, str], *, skipped: int) -> bytes:
        first, event_count, _ = reserve_item_positions(
            cursor,
            session,
            self.caller.tier,
            events=self.n,
            frames=0,
            max_t_ms=self.t_max if self.n else 0,
            event_bytes=self.size,
        )
        if self.n:
            self.first_position = first
            row = (self.session_id, first, self.n, self.t_min, self.t_max, self.range_id)
            cursor.many(_INSERT, [(*row, clock.now_ms(), self.payload)])
        return b'{"accepted":%d,"duplicates":%d,"first_id":"%b","last_id":"%b","event_count":%d}' % (
            self.n,
            skipped,
            self.first_id.encode(),
            self.last_id.encode(),
            event_count,
        )

    def _store_named(self, cursor: IngestCursor, session: tuple[str, str, str]) -> int:
        """Keep the ids that clients chose, drop items sent before; returns how many were dropped."""
        event_ids = [item.id for item in self.named]
        known = {**self.assigned, **_read_stored_event_ids(cursor, self.session_id, event_ids)}
        fresh: list[tuple[str, str, int, bytes]] = []
        dropped: set[int] = set()
        conflicts = []
        for item in self.named:
            if item.id not in known:
                known[item.id] = item.digest
                fresh.append((self.session_id, item.id, item.t_ms, item.digest))
            elif known[item.id] == item.digest:
                dropped.add(item.index)
            else:
                text = "This id came before with other content."
                conflicts.append(Problem("body", f"/events/{item.index}/id", "event_conflict", text))
        # Whether the session records at all comes before conflicts, and before anything is written.
        require_recording_for_ingest(cursor, session)
        if conflicts:
            raise EventConflict(conflicts)
        if len(dropped) < self.n:
            require_minutes_for_ingest(cursor, session, self.caller.tier)
        if dropped:
            self._remove_events(dropped)
        require_room_for_ingest(cursor, session, events=self.n, frames=0, size=self.size)
        if fresh:
            cursor.many(_INSERT_KEYS, fresh)
        return len(dropped)

    def _remove_events(self, dropped: Set[int]) -> None:
        """Remove the events at these positions from the batch, with its counts and times."""
        items = [
            item for index, item in enumerate(_raw_decoder.decode(self.body).events) if index not in dropped
        ]
        times = [_time_decoder.decode(item).t_ms for item in items]
        self.n = len(items)
        self.t_min, self.t_max = min(times, default=0), max(times, default=0)
        body = b'{"events":[' + b",".join(bytes(item) for item in items) + b"]}"
        self.payload, self.size = _compress_batch(body), len(body) if items else 0


#: Items of a checked body (their times are enough), and those that named themselves: index and id.
CheckedItems = tuple[Sequence[TimedItem | EventItem], list[tuple[int, str]]]


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """A body of `POST …/events` that was checked, but is not masked yet."""

    body: bytes
    items: Sequence[TimedItem | EventItem]
    named: list[tuple[int, str]]
    key: BatchIdempotencyKey | None


def check_event_batch(
    caller: Caller,
    body: bytes,
    *,
    content_type: str | None,
    batch_key: str | None,
    checked: CheckedItems | None = None,
) -> CheckedBody:
    """Check a body of `POST …/events`.

    Args:
        caller: the caller.
        body: body of the request.
        content_type: media type of the body; None where none was sent.
        batch_key: header that makes the batch repeatable; None where none was sent.
        checked: result of `validate_event_body` for this body; None to validate it here.

    Raises:
        UnsupportedMediaType: if it does not come as JSON.
        InvalidJson: if it is not JSON.
        EmptyBatch, BatchTooLarge: if it holds no events, or more than 100.
        ValidationFailed: if an item is not as contract §3 wants it; `errors` points at it.
    """
    require_media_type(content_type, JSON, needed="events as application/json")
    items, named = validate_event_body(body) if checked is None else checked
    key = BatchIdempotencyKey.of("events", batch_key, body, digest_key=caller.digest_key)
    return CheckedBody(body, items, named, key)


def check_and_pack_event_batch(
    caller: Caller,
    session_id: str,
    body: bytes,
    *,
    content_type: str | None,
    batch_key: str | None,
    checked: CheckedItems | None = None,
) -> EventBatch:
    """Check a body of `POST …/events` in which nothing is to be masked, and pack it.

    Args:
        caller: the caller.
        session_id: id of the session.
        body: body of the request.
        content_type: media type of the body; None where none was sent.
        batch_key: header that makes the batch repeatable; None where none was sent.
        checked: result of `validate_event_body` for this body; None to validate it here.

    Raises:
        RecorderError: as `check_event_batch` does.
    """
    checked_body = check_event_batch(
        caller, body, content_type=content_type, batch_key=batch_key, checked=checked
    )
    return pack_event_batch(caller, session_id, checked_body, {})


def pack_event_batch(
    caller: Caller, session_id: str, checked: CheckedBody, changes: Mapping[int, Changes]
) -> EventBatch:
    """Mask a checked body, and pack it.

    Args:
        caller: The caller.
        session_id: The session.
        checked: The body.
        changes: The texts that masking changes, by the item's index.

    Raises:
        ValidationFailed: if an item grows beyond four times its cap.
    """
    items, named, key = checked.items, checked.named, checked.key
    body = mask_events(changes, checked.body)
    times = [item.t_ms for item in items]
    unnamed = len(items) - len(named)
    value = reserve_ulid_values(max(unnamed, 1))
    range_id = f"evt_{encode_ulid(value)}"
    first_id, last_id = dict(named).get(0), dict(named).get(len(items) - 1)
    return EventBatch(
        caller=caller,
        session_id=session_id,
        n=len(items),
        t_min=min(times),
        t_max=max(times),
        first_id=first_id or range_id,
        last_id=last_id or f"evt_{encode_ulid(value + unnamed - 1)}",
        range_id=range_id,
        payload=_compress_batch(body),
        named=_hash_named_items(body, times, named),
        body=body if named else b"",
        key=key,
        size=len(body),
    )


def _hash_named_items(body: bytes, times: Sequence[int], named: list[tuple[int, str]]) -> list[NamedItem]:
    """Return the items that named themselves; hashing takes too long for the transaction that stores them."""
    if not named:
        return []
    items = _raw_decoder.decode(body).events
    return [
        NamedItem(index, event_id, times[index], hash_event_item(items[index], event_id))
        for index, event_id in named
    ]


def _compress_batch(body: bytes) -> bytes:
    """Return the stored form of items; the threads of the service call this at the same time.

    A compressor of python-zstandard serves one thread: two at once corrupt their output, or end the process.
    """
    return zstandard.ZstdCompressor(level=1).compress(body)


def _read_stored_event_ids(cursor: IngestCursor, session_id: str, event_ids: list[str]) -> dict[str, bytes]:
    marks = ", ".join("?" * len(event_ids))
    statement = f"SELECT event_id, digest FROM event_keys WHERE session_id = ? AND event_id IN ({marks})"  # noqa: S608
    return {event_id: bytes(digest) for event_id, digest in cursor.all(statement, (session_id, *event_ids))}


_INSERT_KEYS = "INSERT INTO event_keys (session_id, event_id, t_ms, digest) VALUES (?, ?, ?, ?)"
_INSERT = (
    "INSERT INTO event_batches (session_id, first_position, n, t_min, t_max, first_id, received_ms, payload) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
