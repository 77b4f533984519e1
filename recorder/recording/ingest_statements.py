"""Statements of the ingest writer: positions, size checks and batch ids of a session. Contract §3."""

from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session as DbSession

from recorder import limits
from recorder.access.quota import NAMES
from recorder.access.rate_tiers import Tier
from recorder.errors import (
    IdempotencyKeyReused,
    InvalidState,
    NotFound,
    QuotaExceeded,
    SessionFull,
    SessionNotRecording,
    ValidationFailed,
)
from recorder.hashing import compute_keyed_digest
from recorder.models.event import BatchKeyRow
from recorder.models.session import NEVER_CHARGED
from recorder.recording.driver_cursor import IngestCursor
from recorder.setting_parsers import SessionSize

_UNLIMITED = 2**62
_VISIBLE = "workspace_id = ? AND mode = ? AND id = ? AND deleted_at IS NULL"
# What a session is charged with grows with its latest item, but no faster than the wall clock.
_SQLITE_RESERVE = (
    "UPDATE sessions SET last_position = last_position + ?, event_count = event_count + ?, "  # noqa: S608
    "frame_count = frame_count + ?, event_bytes = event_bytes + ?, frame_bytes = frame_bytes + ?, "
    "max_t_ms = MAX(max_t_ms, ?), charged_before_ms = charged_ms, "
    "charged_ms = MAX(charged_ms, MIN(MAX(max_t_ms, ?), ? - charged_from_ms)) "
    f"WHERE {_VISIBLE} AND status = 'recording' AND (origin IS NULL OR ?) "
    "AND event_count <= ? AND frame_count <= ? AND event_bytes + frame_bytes <= ? "
    "RETURNING last_position, event_count, frame_count, charged_ms - charged_before_ms, charged_from_ms"
)
_POSTGRES_RESERVE = _SQLITE_RESERVE.replace("MAX(", "GREATEST(").replace("MIN(", "LEAST(")
_COUNTS = (
    "SELECT last_position, event_count, frame_count "  # noqa: S608
    f"FROM sessions WHERE {_VISIBLE} AND status = 'recording'"
)
_SIZE = f"SELECT event_count, frame_count, event_bytes + frame_bytes FROM sessions WHERE {_VISIBLE}"  # noqa: S608
_STATUS = f"SELECT status, charged_from_ms, origin FROM sessions WHERE {_VISIBLE}"  # noqa: S608
# A no-op UPDATE takes the row lock on PostgreSQL and costs SQLite, which holds its one lock, next to nothing.
# Sessions that do not record are left alone: sealing may hold their rows for seconds, and all batches wait.
_LOCK = f"UPDATE sessions SET id = id WHERE {_VISIBLE} AND status = 'recording' RETURNING id"  # noqa: S608


def reserve_item_positions(
    cursor: IngestCursor,
    session: tuple[str, str, str],
    tier: Tier,
    *,
    events: int,
    frames: int,
    max_t_ms: int,
    event_bytes: int = 0,
    frame_bytes: int = 0,
) -> tuple[int, int, int]:
    """Check state, size and quota, draw positions for new items and charge their time, in one statement.

    Without items nothing is written: a repeated batch leaves no trace.

    Args:
        cursor: cursor of the transaction.
        session: workspace, mode and session id.
        tier: the workspace's.
        events: number of new events.
        frames: number of new frames.
        max_t_ms: largest time of the new items.
        event_bytes: bytes of the new events.
        frame_bytes: bytes of the new frames.

    Returns:
        The first position, and the session's event and frame counts with these items.

    Raises:
        NotFound: if the caller has no such session.
        SessionNotRecording: if it does not record.
        QuotaExceeded: if there are items and no captured minutes are left for them.
        SessionFull: if the session would become larger than a session may be.
    """
    items, charges = events + frames, cursor.charges
    if not items:
        return _read_counts_for_ingest(cursor, session)
    if charges.is_used_up(session[0], tier):
        require_minutes_for_ingest(cursor, session, tier)
    statement = _SQLITE_RESERVE if cursor.is_sqlite else _POSTGRES_RESERVE
    grown = (items, events, frames, event_bytes, frame_bytes, max_t_ms, max_t_ms, charges.now_ms)
    room = _compute_limits_before_ingest(cursor.session_size, events, frames, event_bytes + frame_bytes)
    rows = cursor.all(statement, (*grown, *session, cursor.records_replays, *room))
    if not rows:
        require_recording_for_ingest(cursor, session)
        require_room_for_ingest(cursor, session, events=events, frames=frames, size=event_bytes + frame_bytes)
        # It was started between the two statements.
        return reserve_item_positions(
            cursor,
            session,
            tier,
            events=events,
            frames=frames,
            max_t_ms=max_t_ms,
            event_bytes=event_bytes,
            frame_bytes=frame_bytes,
        )
    last, event_count, frame_count, charge_ms, charged_from_ms = rows[0]
    if charged_from_ms != NEVER_CHARGED:
        charges.add(session[0], tier, charge_ms)
    return last - items + 1, event_count, frame_count


def require_minutes_for_ingest(cursor: IngestCursor, session: tuple[str, str, str], tier: Tier) -> None:
    """Check that captured minutes are left for a recording session, unless it costs none.

    Raises:
        NotFound: if the caller has no such session.
        SessionNotRecording: if it does not record.
        QuotaExceeded: if no captured minutes are left for it.
    """
    charged_from_ms = require_recording_for_ingest(cursor, session)
    if charged_from_ms != NEVER_CHARGED and cursor.charges.is_used_up(session[0], tier):
        raise QuotaExceeded(NAMES["captured_minutes"])


def require_room_for_ingest(
    cursor: IngestCursor, session: tuple[str, str, str], *, events: int, frames: int, size: int
) -> None:
    """Check that the session has room for new items.

    Args:
        cursor: cursor of the transaction.
        session: workspace, mode and session id.
        events: number of new events.
        frames: number of new frames.
        size: bytes of the items.

    Raises:
        NotFound: if the caller has no such session.
        SessionFull: if the session would become larger than a session may be.
    """
    rows = cursor.all(_SIZE, session)
    if not rows:
        raise NotFound("session")
    largest, names = cursor.session_size, ("events", "frames", "bytes")
    for name, held, room, limit in zip(
        names, rows[0], _compute_limits_before_ingest(largest, events, frames, size), largest, strict=True
    ):
        if held > room:
            raise SessionFull(name, limit)


def _compute_limits_before_ingest(
    largest: SessionSize, events: int, frames: int, size: int
) -> tuple[int, int, int]:
    """Return the most that a session may hold so that these items still fit; other kinds have no limit."""
    return (
        largest.events - events if events else _UNLIMITED,
        largest.frames - frames if frames else _UNLIMITED,
        largest.bytes - size if size else _UNLIMITED,
    )


def _read_counts_for_ingest(cursor: IngestCursor, session: tuple[str, str, str]) -> tuple[int, int, int]:
    rows = cursor.all(_COUNTS, session)
    if not rows:
        require_recording_for_ingest(cursor, session)
        return _read_counts_for_ingest(cursor, session)  # it was started between the two statements
    last, event_count, frame_count = rows[0]
    return last + 1, event_count, frame_count


def require_recording_for_ingest(cursor: IngestCursor, session: tuple[str, str, str]) -> int:
    """Check that a session records; return the instant, in ms since 1970, from which it is charged.

    Raises:
        NotFound: if the caller has no such session.
        SessionNotRecording: if it does not record.
        InvalidState: if it is the recording of a live replay, and a client sends the batch.
    """
    rows = cursor.all(_STATUS, session)
    if not rows:
        raise NotFound("session")
    status, charged_from_ms, origin = rows[0]
    if origin is not None and not cursor.records_replays:
        needed = "session must not be the recording of a live replay, which alone adds to it"
        raise InvalidState(status, needed=needed, remedy="Record in a session of your own.")
    if status != "recording":
        raise SessionNotRecording(status, purpose="to take events and frames")
    return int(charged_from_ms)


def lock_session_for_ingest(cursor: IngestCursor, session: tuple[str, str, str]) -> None:
    """Hold the row of a session that records, so that ids can be looked up before positions are drawn.

    One that does not record takes no items, and its row is not held.

    Raises:
        NotFound: if the caller has no such session.
    """
    while not cursor.all(_LOCK, session):
        rows = cursor.all(_STATUS, session)
        if not rows:
            raise NotFound("session")
        if rows[0][0] != "recording":
            return
        # It was started between the two statements.


class RepeatedAnswer(bytes):
    """The body of an answer that was given before: nothing was stored this time."""


@dataclass(frozen=True, slots=True)
class BatchIdempotencyKey:
    """The `Idempotency-Key` of a batch and the body it came with, as keyed digests.

    People type names into keys; and a body that was masked must not be found by trying what it may have held.
    """

    kind: Literal["events", "frames"]
    key: str
    body_digest: bytes

    @classmethod
    def of(
        cls, kind: Literal["events", "frames"], key: str | None, content: bytes, *, digest_key: bytes
    ) -> "BatchIdempotencyKey | None":
        """Return the batch id of a header's value; None where none was sent.

        Args:
            kind: kind of the batch.
            key: value of the header; None where none was sent.
            content: what a repeated batch must equal, as it was sent.
            digest_key: key of the digest that is stored of the content.

        Raises:
            ValidationFailed: if it is empty, too long or holds other than visible characters.
        """
        if key is None:
            return None
        if not 1 <= len(key) <= limits.BATCH_KEY_CHARACTERS or not all(
            "!" <= letter <= "~" for letter in key
        ):
            limit = limits.BATCH_KEY_CHARACTERS
            message = f"Idempotency-Key takes 1 to {limit} visible ASCII characters."
            raise ValidationFailed.of("Idempotency-Key", "invalid_string", message=message, where="header")
        name = compute_keyed_digest(digest_key, "batch-key", key.encode())
        return cls(kind, name.hex(), compute_keyed_digest(digest_key, "batch-body", content))

    def find_earlier_answer(self, cursor: IngestCursor, session_id: str) -> RepeatedAnswer | None:
        """Return the earlier answer to this batch; the session must be the caller's.

        Raises:
            IdempotencyKeyReused: if it came with another body then.
        """
        rows = cursor.all(_FIND, (session_id, self.kind, self.key))
        return self._check_repeated_body(*rows[0]) if rows else None

    def read_answer(self, db: DbSession, session_id: str) -> RepeatedAnswer | None:
        """Return the stored answer from a reading transaction, to save a repeated upload its work."""
        row = db.get(BatchKeyRow, (session_id, self.kind, self.key))
        return self._check_repeated_body(row.body_digest, row.answer) if row else None

    def store_answer(self, cursor: IngestCursor, session_id: str, answer: bytes) -> None:
        """Store the answer that a repeated batch gets, in the transaction of the batch."""
        cursor.many(_STORE_ANSWER, [(session_id, self.kind, self.key, self.body_digest, answer)])

    def _check_repeated_body(self, digest: bytes, answer: bytes) -> RepeatedAnswer:
        if bytes(digest) != self.body_digest:
            raise IdempotencyKeyReused
        return RepeatedAnswer(answer)


_FIND = "SELECT body_digest, answer FROM batch_keys WHERE session_id = ? AND kind = ? AND batch_key = ?"
_STORE_ANSWER = (
    "INSERT INTO batch_keys (session_id, kind, batch_key, body_digest, answer) VALUES (?, ?, ?, ?, ?)"
)
