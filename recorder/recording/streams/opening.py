"""Where a stream begins: at the tail, at the start, or behind the last message received. Contract §3."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from sqlmodel import Session as DbSession
from sqlmodel import col, func, select

from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.errors import InvalidEventId, ResumeWindowExpired
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow, SessionStatusRow
from recorder.models.tag import TagRow
from recorder.recording.sessions import find_session

_Positioned = TypeVar("_Positioned", FrameRow, TagRow, SessionStatusRow)
_POSITION = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Start:
    """What a reader asks for; without either it is what comes from now on."""

    is_from_start: bool = False
    #: Position of the last message received. It outweighs `from=start`, which a browser sends again with it.
    after: int | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether the stream replays its session from the start."""
        return self.is_from_start and self.after is None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a stream begins with."""

    #: Behind which it begins.
    position: int
    #: The session's newest position.
    last_position: int
    is_sealed: bool
    #: The session, where all its events are in the lake and the stream begins with them.
    swept: SessionRow | None = None

    @property
    def is_long(self) -> bool:
        """Return whether so many messages wait that reading them is like reading a whole session."""
        return self.last_position - self.position > limits.WHOLE_READ_MESSAGES

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to tell."""
        return self.is_sealed and self.position >= self.last_position


def read_position(text: str) -> int:
    """The position that a `Last-Event-ID` holds.

    Raises:
        InvalidEventId: if no stream can have given it out.
    """
    if not _POSITION.fullmatch(text):
        raise InvalidEventId
    return int(text)


def open_session(db: DbSession, caller: Caller, session_id: str, start: Start) -> Opening:
    """Find the session and the place where its stream begins.

    Raises:
        NotFound: if the caller has no such session.
        InvalidEventId: if the position lies beyond the newest.
        ResumeWindowExpired: if something behind it is older than the resume window.
    """
    row = find_session(db, caller.tenant, session_id)
    position = row.last_position
    swept: SessionRow | None = None
    if start.after is not None:
        if start.after > row.last_position:
            raise InvalidEventId
        if start.after < row.last_position and not _is_young(db, row, start.after):
            raise ResumeWindowExpired(limits.STREAM_RESUME_MINUTES)
        position = start.after
    elif start.is_from_start:
        position = 0
        if not row.is_hot:
            swept = row
    return Opening(position, row.last_position, row.status == "sealed", swept)


def _is_young(db: DbSession, row: SessionRow, after: int) -> bool:
    """Whether all that follows the position lies within the window."""
    if not row.is_hot and _count_kept(db, row.id, after) < row.last_position - after:
        return False
    oldest = _oldest_ms(db, row.id, after)
    window = timedelta(minutes=limits.STREAM_RESUME_MINUTES)
    return oldest is None or oldest >= clock.to_ms(clock.now() - window)


def _count_kept(db: DbSession, session_id: str, after: int) -> int:
    """How many positions behind this one are told by rows that no sweep drops."""
    counts = [
        select(func.count()).where(col(table.session_id) == session_id, col(table.position) > after)
        for table in (TagRow, SessionStatusRow)
    ]
    return sum(db.exec(count).one() for count in counts)


def _oldest_ms(db: DbSession, session_id: str, after: int) -> int | None:
    """When the first of what follows was stored; None where nothing tells."""
    first, n = col(EventBatchRow.first_position), col(EventBatchRow.n)
    batch = (
        select(EventBatchRow.received_ms)
        .where(EventBatchRow.session_id == session_id)
        .where(first > after - limits.EVENTS_PER_BATCH, first + n > after + 1)
        .order_by(first)
        .limit(1)
    )
    tagged_at = _first_behind(db, TagRow, TagRow.created_at, session_id, after)
    changed_at = _first_behind(db, SessionStatusRow, SessionStatusRow.at, session_id, after)
    told = [
        db.exec(batch).first(),
        _first_behind(db, FrameRow, FrameRow.received_ms, session_id, after),
        tagged_at and clock.to_ms(tagged_at),
        changed_at and clock.to_ms(changed_at),
    ]
    return min((ms for ms in told if ms is not None), default=None)


def _first_behind(db: DbSession, table: type[_Positioned], told: Any, session_id: str, after: int) -> Any:
    """What the first row of a table behind a position says: of each kind the first is the oldest."""
    position = col(table.position)
    rows = select(told).where(col(table.session_id) == session_id, position > after)
    return db.exec(rows.order_by(position).limit(1)).first()
