"""Poll of new rows: one read transaction for all sessions that have stream readers. Contract §3 (positions).

Every position of a session belongs to one event, frame, tag or status change, and they are committed in
order. So messages are complete if no position is missing; a missing one was swept into the lake.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
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

#: Positions of a session that one poll reads, and bytes of its messages after which it ends; the next poll
#: reads on from there.
POSITIONS = 500
POLLED_BYTES = 1024 * 1024
#: Batches of events that are in memory at a time; each may hold 6.5 MB.
_BATCHES = 4

# Positions that sessions were read to, as a table: the statements do not depend on the number of sessions.
_CURSORS = {
    "sqlite": (
        "SELECT json_extract(value, '$[0]') AS session_id, json_extract(value, '$[1]') AS after, "
        "json_extract(value, '$[2]') AS until FROM json_each(:cursors)"
    ),
    "postgresql": (
        "SELECT value->>0 AS session_id, CAST(value->>1 AS BIGINT) AS after, "
        "CAST(value->>2 AS BIGINT) AS until FROM json_array_elements(CAST(:cursors AS JSON)) AS value"
    ),
}

_Positioned = TypeVar("_Positioned", FrameRow, TagRow, SessionStatusRow)


@dataclass(slots=True)
class SessionAdvance:
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
    #: The last position that this poll reads.
    until: int

    def select(self, messages: list[Message]) -> list[Message]:
        """Return the messages that this poll reads."""
        if messages and messages[0][0] > self.after and messages[-1][0] <= self.until:
            return messages
        return [item for item in messages if self.after < item[0] <= self.until]


def poll_session_advances(db: DbSession, positions: Mapping[str, int]) -> dict[str, SessionAdvance]:
    """Return the messages and state of each of these sessions after the position it was read to.

    Args:
        db: a transaction.
        positions: by session id; the caller has made sure that whoever reads may see them.
    """
    advances = {
        session_id: SessionAdvance(position, is_gone=True) for session_id, position in positions.items()
    }
    unread: list[_PolledSession] = []
    if db.get_bind().dialect.name == "postgresql":
        # The planner does not know how few rows each session has, and would read whole tables.
        db.connection().exec_driver_sql("SET LOCAL enable_seqscan = off")
    for session_id, last_position, status, deleted_at in _poll_session_states(db, positions):
        advance = advances[session_id]
        advance.is_gone, advance.is_sealed = deleted_at is not None, status == "sealed"
        if not advance.is_gone and last_position > advance.position:
            until = min(last_position, advance.position + POSITIONS)
            unread.append(_PolledSession(session_id, advance.position, last_position, until))
    for watched, messages in _poll_session_messages(db, unread):
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


def _poll_session_messages(
    db: DbSession, unread: list[_PolledSession]
) -> Iterator[tuple[_PolledSession, list[Message]]]:
    """Yield each session that has unread rows, with its messages in the order of their positions."""
    if not unread:
        return
    messages, unread = _poll_event_messages(db, unread)
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
    for watched in unread:
        limited = _limit_polled_bytes(watched, sorted(messages[watched.session_id]))
        yield limited.watched, limited.messages


def _poll_event_messages(
    db: DbSession, unread: list[_PolledSession]
) -> tuple[dict[str, list[Message]], list[_PolledSession]]:
    """Return the events of each session, and the sessions, some of which end earlier: for their bytes."""
    sessions = {watched.session_id: watched for watched in unread}
    messages: dict[str, list[Message]] = {session_id: [] for session_id in sessions}
    sizes = dict.fromkeys(sessions, 0)
    full: set[str] = set()
    for session_id, first_position, first_id, payload in _poll_event_batches(db, unread):
        if session_id in full:
            continue
        watched = sessions[session_id]
        read = watched.select(make_stream_event_messages(first_position, first_id, payload))
        # Rows of other tables between these events are read, later ones are not.
        limited = _limit_polled_bytes(watched, read, sizes[session_id])
        sessions[session_id], sizes[session_id] = limited.watched, limited.size
        messages[session_id] += limited.messages
        if sessions[session_id].until < watched.until:
            full.add(session_id)
            if len(full) == len(sessions):
                break
    return messages, list(sessions.values())


class _LimitedMessages(NamedTuple):
    """Messages up to the size of a poll, the session, which may end earlier for it, and the bytes so far."""

    watched: _PolledSession
    messages: list[Message]
    size: int


def _limit_polled_bytes(watched: _PolledSession, messages: list[Message], size: int = 0) -> _LimitedMessages:
    """Return the messages up to the size of a poll, of which earlier ones take some bytes."""
    for count, (position, _, data) in enumerate(messages, start=1):
        size += len(data)
        if size >= POLLED_BYTES:
            return _LimitedMessages(watched._replace(until=position), messages[:count], size)
    return _LimitedMessages(watched, messages, size)


def _poll_event_batches(db: DbSession, unread: list[_PolledSession]) -> Iterable[Any]:
    """Return the batches of events that hold the positions of this poll, each session's in their order."""
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
        .where(first <= cursors.c.until)
        .order_by(first)
    )
    options = {"yield_per": _BATCHES}
    with closing(
        db.connection().execute(statement, _make_poll_parameters(unread), execution_options=options)
    ) as rows:
        yield from rows


def _poll_table_rows(
    db: DbSession, table: type[_Positioned], unread: list[_PolledSession]
) -> Iterable[_Positioned]:
    """Return the rows of another table at the positions of this poll."""
    cursors, position = _make_poll_cursor_table(db), col(table.position)
    statement = (
        select(table)
        .join(cursors, col(table.session_id) == cursors.c.session_id)
        .where(position > cursors.c.after, position <= cursors.c.until)
    )
    return db.execute(statement, _make_poll_parameters(unread)).scalars()


def _make_poll_cursor_table(db: DbSession) -> Subquery:
    statement = text(_CURSORS[db.get_bind().dialect.name])
    columns = {"session_id": String, "after": BigInteger, "until": BigInteger}
    return statement.columns(**columns).subquery("cursors")


def _make_poll_parameters(watched: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Return the statement's parameters: each session with the positions between which it is read."""
    return {"cursors": orjson.dumps([(*session[:2], session[-1]) for session in watched]).decode()}


def _add_polled_segments(advance: SessionAdvance, watched: _PolledSession, messages: list[Message]) -> None:
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
