"""What rows say from a position on: one look for all sessions that somebody reads. Contract §3 (positions).

Every position of a session belongs to one event, frame, tag or status change, and they are committed in
order. So what was read is whole where no position is missing; a missing one was swept into the lake.
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
from recorder.recording.streams.messages import Message, Segment, cut, event_messages, gap, message

#: Positions that one look takes of a session; the next look takes what follows.
POSITIONS = 500

# Where each session was read to, as a table: the statements stay the same for any number of sessions.
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
    """How a session went on behind a position."""

    #: Up to which its messages are here.
    position: int
    #: Deleted, or purged by now.
    is_gone: bool = False
    is_sealed: bool = False
    #: Whether more rows are there already.
    has_more: bool = False
    segments: list[Segment] = field(default_factory=list)


class _Watched(NamedTuple):
    session_id: str
    after: int
    last_position: int

    @property
    def until(self) -> int:
        """The last position that this look takes."""
        return min(self.last_position, self.after + POSITIONS)

    def only(self, messages: list[Message]) -> list[Message]:
        """Return the messages that the look takes."""
        if messages and messages[0][0] > self.after and messages[-1][0] <= self.until:
            return messages
        return [one for one in messages if self.after < one[0] <= self.until]


def read_advances(db: DbSession, positions: Mapping[str, int]) -> dict[str, Advance]:
    """How each of these sessions went on behind the position it was read to.

    Args:
        positions: by session id; the caller has made sure that whoever reads may see them.
    """
    advances = {one: Advance(position, is_gone=True) for one, position in positions.items()}
    behind: list[_Watched] = []
    if db.get_bind().dialect.name == "postgresql":
        # It cannot know how few rows each session takes, and would read whole tables.
        db.connection().exec_driver_sql("SET LOCAL enable_seqscan = off")
    for session_id, last_position, status, deleted_at in _look_at_sessions(db, positions):
        advance = advances[session_id]
        advance.is_gone, advance.is_sealed = deleted_at is not None, status == "sealed"
        if not advance.is_gone and last_position > advance.position:
            behind.append(_Watched(session_id, advance.position, last_position))
    for watched, found in zip(behind, _read_messages(db, behind), strict=True):
        _fill(advances[watched.session_id], watched, found)
    return advances


def frame_message(row: FrameRow) -> Message:
    """Return a frame as the reads give it."""
    return message(row.position, b"session.frame", item_reads.wire_frame(row).model_dump_json().encode())


def tag_message(row: TagRow) -> Message:
    """Return a tag as the reads give it."""
    return message(row.position, b"session.tag", tags.to_wire(row).model_dump_json().encode())


def status_message(row: SessionStatusRow) -> Message:
    """Return a change of status: the same however late it is read, unlike the session itself."""
    data = {"session_id": row.session_id, "status": row.status, "at": clock.to_iso(row.at)}
    return message(row.position, b"session.status", orjson.dumps(data))


def _look_at_sessions(db: DbSession, positions: Mapping[str, int]) -> Iterable[Any]:
    cursors = _cursors(db)
    statement = select(
        SessionRow.id, SessionRow.last_position, SessionRow.status, SessionRow.deleted_at
    ).join(cursors, col(SessionRow.id) == cursors.c.session_id)
    return db.connection().execute(statement, _parameters(positions.items()))


def _read_messages(db: DbSession, behind: list[_Watched]) -> list[list[Message]]:
    """Return the messages of each session, by position; most sessions have only got events."""
    if not behind:
        return []
    found: dict[str, list[Message]] = {watched.session_id: [] for watched in behind}
    for session_id, first_position, first_id, payload in _batches_behind(db, behind):
        found[session_id] += event_messages(first_position, first_id, payload)
    for watched in behind:
        found[watched.session_id] = watched.only(found[watched.session_id])
    # What no batch of events accounts for is something else.
    others = [watched for watched in behind if len(found[watched.session_id]) < watched.until - watched.after]
    if others:
        for frame in _rows_behind(db, FrameRow, others):
            found[frame.session_id].append(frame_message(frame))
        for tag in _rows_behind(db, TagRow, others):
            found[tag.session_id].append(tag_message(tag))
        for status in _rows_behind(db, SessionStatusRow, others):
            found[status.session_id].append(status_message(status))
    return [sorted(found[watched.session_id]) for watched in behind]


def _batches_behind(db: DbSession, behind: list[_Watched]) -> Iterable[Any]:
    """Return the batches of events in which the look's positions lie."""
    cursors, first, n = _cursors(db), col(EventBatchRow.first_position), col(EventBatchRow.n)
    statement = (
        select(
            EventBatchRow.session_id,
            EventBatchRow.first_position,
            EventBatchRow.first_id,
            EventBatchRow.payload,
        )
        .join(cursors, col(EventBatchRow.session_id) == cursors.c.session_id)
        # The batch that `after` lies in may go on behind it.
        .where(first > cursors.c.after - limits.EVENTS_PER_BATCH, first + n > cursors.c.after + 1)
        .where(first <= cursors.c.after + POSITIONS)
        .order_by(first)
    )
    return db.connection().execute(statement, _parameters(behind))


def _rows_behind(db: DbSession, table: type[_Positioned], behind: list[_Watched]) -> Iterable[_Positioned]:
    """Return the rows of another table at the look's positions."""
    cursors, position = _cursors(db), col(table.position)
    statement = (
        select(table)
        .join(cursors, col(table.session_id) == cursors.c.session_id)
        .where(position > cursors.c.after, position <= cursors.c.after + POSITIONS)
    )
    return db.execute(statement, _parameters(behind)).scalars()


def _cursors(db: DbSession) -> Subquery:
    statement = text(_CURSORS[db.get_bind().dialect.name])
    return statement.columns(session_id=String, after=BigInteger).subquery("cursors")


def _parameters(watched: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Return the sessions, each with the position behind which it is looked at."""
    return {"cursors": orjson.dumps([one[:2] for one in watched]).decode()}


def _fill(advance: Advance, watched: _Watched, found: list[Message]) -> None:
    """Cut messages into segments; where positions are missing, say so in their place."""
    run: list[Message] = []
    expected = watched.after + 1
    for one in found:
        if one[0] != expected:
            advance.segments += [*cut(run), gap(watched.session_id, expected, one[0] - 1)]
            run = []
        run.append(one)
        expected = one[0] + 1
    advance.segments += cut(run)
    if expected <= watched.until:
        advance.segments.append(gap(watched.session_id, expected, watched.until))
    advance.position = advance.segments[-1].last
    advance.has_more = advance.position < watched.last_position
