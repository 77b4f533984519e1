"""Poll of new rows: one read transaction for all sessions that have stream readers. Contract §3 (positions).

Every position of a session belongs to one event, frame, tag or status change, and they are committed in
order. So messages are complete if no position is missing; a missing one was swept into the lake.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import orjson
from sqlalchemy import BigInteger, String, Subquery, text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow, SessionStatusRow, TagRow
from recorder.recording import item_reads, tags
from recorder.recording.streams.messages import (
    Message,
    StreamSegment,
    cut_messages_into_segments,
    make_gap_segment,
    make_stream_event_messages,
    make_stream_message,
)

#: Positions of a session that one poll reads; the next poll reads on from there.
POSITIONS = 500

# Positions that sessions were read to, as a table: the statements do not depend on the number of sessions.
_CURSORS = {
    "sqlite": (
        "SELECT json_extract(value, '$[0]') AS session_id, json_extract(value, '$[1]') AS after "
        "FROM json_each(:cursors)"
    ),
    "postgresql": (
        "SELECT value->>0 AS session_id, CAST(value->>1 AS BIGINT) AS after "
        "FROM json_array_elements(CAST(:cursors AS JSON)) AS value"
    ),
}

_Positioned = TypeVar("_Positioned", FrameRow, TagRow, SessionStatusRow)


@dataclass(slots=True)
class Advance:
    """Messages and state of a session after a position."""

    #: Position of the last message read.
    position: int
    #: Deleted, or purged by now.
    is_gone: bool = False
    is_sealed: bool = False
    #: Whether more rows are there already.
    has_more: bool = False
    segments: list[StreamSegment] = field(default_factory=list)


class _PolledSession(NamedTuple):
    session_id: str
    after: int
    last_position: int

    @property
    def until(self) -> int:
        """Return the last position that this poll reads."""
        return min(self.last_position, self.after + POSITIONS)

    def select(self, messages: list[Message]) -> list[Message]:
        """Return the messages that this poll reads."""
        if messages and messages[0][0] > self.after and messages[-1][0] <= self.until:
            return messages
        return [item for item in messages if self.after < item[0] <= self.until]


def poll_session_advances(db: DbSession, positions: Mapping[str, int]) -> dict[str, Advance]:
    """Return the messages and state of each of these sessions after the position it was read to.

    Args:
        db: a transaction.
        positions: by session id; the caller has made sure that whoever reads may see them.
    """
    advances = {session_id: Advance(position, is_gone=True) for session_id, position in positions.items()}
    unread: list[_PolledSession] = []
    if db.get_bind().dialect.name == "postgresql":
        # The planner does not know how few rows each session has, and would read whole tables.
        db.connection().exec_driver_sql("SET LOCAL enable_seqscan = off")
    for session_id, last_position, status, deleted_at in _poll_session_states(db, positions):
        advance = advances[session_id]
        advance.is_gone, advance.is_sealed = deleted_at is not None, status == "sealed"
        if not advance.is_gone and last_position > advance.position:
            unread.append(_PolledSession(session_id, advance.position, last_position))
    for watched, messages in zip(unread, _poll_session_messages(db, unread), strict=True):
        _add_polled_segments(advances[watched.session_id], watched, messages)
    return advances


def make_frame_message(row: FrameRow) -> Message:
    """Return a frame as the reads give it."""
    return make_stream_message(
        row.position, b"session.frame", item_reads.frame_to_wire(row).model_dump_json().encode()
    )


def make_tag_message(row: TagRow) -> Message:
    """Return a tag as the reads give it."""
    return make_stream_message(row.position, b"session.tag", tags.tag_to_wire(row).model_dump_json().encode())


def make_status_message(row: SessionStatusRow) -> Message:
    """Return a change of status: its members do not depend on the time of the read."""
    data = {"session_id": row.session_id, "status": row.status, "at": clock.to_iso(row.at)}
    return make_stream_message(row.position, b"session.status", orjson.dumps(data))


def _poll_session_states(db: DbSession, positions: Mapping[str, int]) -> Iterable[Any]:
    cursors = _make_poll_cursor_table(db)
    statement = select(
        SessionRow.id, SessionRow.last_position, SessionRow.status, SessionRow.deleted_at
    ).join(cursors, col(SessionRow.id) == cursors.c.session_id)
    return db.connection().execute(statement, _make_poll_parameters(positions.items()))


def _poll_session_messages(db: DbSession, unread: list[_PolledSession]) -> list[list[Message]]:
    """Return the messages of each session, by position; most sessions have only got events."""
    if not unread:
        return []
    messages: dict[str, list[Message]] = {watched.session_id: [] for watched in unread}
    for session_id, first_position, first_id, payload in _poll_event_batches(db, unread):
        messages[session_id] += make_stream_event_messages(first_position, first_id, payload)
    for watched in unread:
        messages[watched.session_id] = watched.select(messages[watched.session_id])
    # Positions that no batch of events holds belong to frames, tags or status changes.
    others = [
        watched for watched in unread if len(messages[watched.session_id]) < watched.until - watched.after
    ]
    if others:
        for frame in _poll_table_rows(db, FrameRow, others):
            messages[frame.session_id].append(make_frame_message(frame))
        for tag in _poll_table_rows(db, TagRow, others):
            messages[tag.session_id].append(make_tag_message(tag))
        for status in _poll_table_rows(db, SessionStatusRow, others):
            messages[status.session_id].append(make_status_message(status))
    return [sorted(messages[watched.session_id]) for watched in unread]


def _poll_event_batches(db: DbSession, unread: list[_PolledSession]) -> Iterable[Any]:
    """Return the batches of events that hold the positions of this poll."""
    cursors, first, n = _make_poll_cursor_table(db), col(EventBatchRow.first_position), col(EventBatchRow.n)
    statement = (
        select(
            EventBatchRow.session_id,
            EventBatchRow.first_position,
            EventBatchRow.first_id,
            EventBatchRow.payload,
        )
        .join(cursors, col(EventBatchRow.session_id) == cursors.c.session_id)
        # The batch that holds `after` may hold later positions too.
        .where(first > cursors.c.after - limits.EVENTS_PER_BATCH, first + n > cursors.c.after + 1)
        .where(first <= cursors.c.after + POSITIONS)
        .order_by(first)
    )
    return db.connection().execute(statement, _make_poll_parameters(unread))


def _poll_table_rows(
    db: DbSession, table: type[_Positioned], unread: list[_PolledSession]
) -> Iterable[_Positioned]:
    """Return the rows of another table at the positions of this poll."""
    cursors, position = _make_poll_cursor_table(db), col(table.position)
    statement = (
        select(table)
        .join(cursors, col(table.session_id) == cursors.c.session_id)
        .where(position > cursors.c.after, position <= cursors.c.after + POSITIONS)
    )
    return db.execute(statement, _make_poll_parameters(unread)).scalars()


def _make_poll_cursor_table(db: DbSession) -> Subquery:
    statement = text(_CURSORS[db.get_bind().dialect.name])
    return statement.columns(session_id=String, after=BigInteger).subquery("cursors")


def _make_poll_parameters(watched: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Return the statement's parameters: each session with the position after which it is read."""
    return {"cursors": orjson.dumps([session[:2] for session in watched]).decode()}


def _add_polled_segments(advance: Advance, watched: _PolledSession, messages: list[Message]) -> None:
    """Cut messages into segments; a gap message replaces positions that are missing."""
    run: list[Message] = []
    expected = watched.after + 1
    for item in messages:
        if item[0] != expected:
            advance.segments += [
                *cut_messages_into_segments(run),
                make_gap_segment(watched.session_id, expected, item[0] - 1),
            ]
            run = []
        run.append(item)
        expected = item[0] + 1
    advance.segments += cut_messages_into_segments(run)
    if expected <= watched.until:
        advance.segments.append(make_gap_segment(watched.session_id, expected, watched.until))
    advance.position = advance.segments[-1].last
    advance.has_more = advance.position < watched.last_position
