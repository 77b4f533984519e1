"""Who seals, and what comes next: the lease, and the numbered batches of each lane. Design §3 (truth in SQL).

A lane is a workspace and mode. Its batches are numbered in SQL and written to the lake in that order; a batch
that a killed run left open is done again, with the same sessions under the same number.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlmodel import Session as DbSession
from sqlmodel import col, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder import clock, limits
from recorder.errors import Conflict
from recorder.models.outbox import SealBatchRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.storage.leases import Lease, is_lease_held, renew_lease, take_lease

LEASE = "sealing"
#: A killed run is followed by another after this long at the latest.
LEASE_MS = 30_000
# A batch ends at the first of these, so that memory and the time of one commit stay bounded.
_BATCH_SESSIONS = 100
_BATCH_EVENTS = 20_000
_BATCH_FRAMES = 1_000


class LeaseLost(Conflict):
    """Another run seals now; this one must stop without another write."""

    code = "lease_lost"

    def __init__(self) -> None:
        super().__init__("The sealing lease ran out and another run took it.")


@dataclass(frozen=True)
class ClaimedBatch:
    """A numbered batch of one lane, with the sessions that it seals, in order."""

    workspace_id: str
    mode: str
    number: int
    session_ids: list[str]
    first_seal_seq: int
    #: Partition of the lake that takes its rows.
    date: str
    #: Fence of the lease under which it was claimed.
    fence: int

    @property
    def lane(self) -> str:
        """Under which name the lake counts these batches."""
        return f"seal:{self.workspace_id}:{self.mode}"

    def seal_seq(self, session_id: str) -> int:
        """The session's place in the order in which its lane was sealed."""
        return self.first_seal_seq + self.session_ids.index(session_id)


def take(db: DbSession, owner: str) -> Lease | None:
    """Take the right to seal; None while another run has it."""
    return take_lease(db, LEASE, owner, now_ms=clock.now_ms(), ttl_ms=LEASE_MS)


def hold(db: DbSession, lease: Lease) -> None:
    """Stay the one who seals; call it in every transaction that writes.

    Raises:
        LeaseLost: if another run took over.
    """
    if not renew_lease(db, lease, now_ms=clock.now_ms(), ttl_ms=LEASE_MS):
        raise LeaseLost


def is_sealing(db: DbSession) -> bool:
    """Whether a run holds the lease."""
    return is_lease_held(db, LEASE, now_ms=clock.now_ms())


def has_work(db: DbSession) -> bool:
    """Whether a session waits to be sealed, or hot rows wait to be swept."""
    return has_stopped(db) or bool(due_for_sweep(db, limit=1))


def has_stopped(db: DbSession) -> bool:
    """Whether a session waits to be sealed; cheap enough to ask many times a second."""
    return db.exec(_waiting().limit(1)).first() is not None


def has_open_batch(db: DbSession) -> bool:
    """Whether a killed run left a batch to be done again."""
    return db.exec(_open_batches()).first() is not None


def due_for_sweep(db: DbSession, *, limit: int) -> list[str]:
    """Sealed sessions whose stream can no longer be resumed, so that the lake alone may serve them."""
    before = clock.now() - timedelta(minutes=limits.STREAM_RESUME_MINUTES)
    statement = (
        select(SessionRow.id)
        .where(col(SessionRow.is_hot), SessionRow.status == "sealed", col(SessionRow.sealed_at) < before)
        .limit(limit)
    )
    return list(db.exec(statement))


def claim(db: DbSession, lease: Lease) -> ClaimedBatch | None:
    """The next batch to seal, in any lane; None when nothing waits.

    Raises:
        LeaseLost: if another run took over.
    """
    hold(db, lease)
    row = db.exec(_open_batches()).first() or _new_batch(db)
    if row is None:
        return None
    return ClaimedBatch(
        workspace_id=row.workspace_id,
        mode=row.mode,
        number=row.number,
        session_ids=row.session_ids,
        first_seal_seq=row.first_seal_seq,
        date=row.created_at.strftime("%Y-%m-%d"),
        fence=lease.fence,
    )


def finish(db: DbSession, batch: ClaimedBatch) -> None:
    """Mark a batch as done: its lane may go on to the next number."""
    row = db.get_one(SealBatchRow, (batch.workspace_id, batch.mode, batch.number))
    row.is_done = True
    db.add(row)


def _new_batch(db: DbSession) -> SealBatchRow | None:
    oldest = db.exec(_waiting().order_by(col(SessionRow.stopped_at)).limit(1)).first()
    if oldest is None:
        return None
    session_ids = _next_sessions(db, oldest.workspace_id, oldest.mode)
    key = (oldest.workspace_id, oldest.mode)
    counter = db.get(SealCounterRow, key) or SealCounterRow(workspace_id=key[0], mode=key[1])
    counter.batch_number += 1
    row = SealBatchRow(
        workspace_id=key[0],
        mode=key[1],
        number=counter.batch_number,
        session_ids=session_ids,
        first_seal_seq=counter.seal_seq + 1,
        created_at=clock.now(),
    )
    counter.seal_seq += len(session_ids)
    db.add(counter)
    db.add(row)
    return row


def _next_sessions(db: DbSession, workspace_id: str, mode: str) -> list[str]:
    statement = (
        select(SessionRow.id, SessionRow.event_count, SessionRow.frame_count)
        .where(SessionRow.workspace_id == workspace_id, SessionRow.mode == mode)
        .where(SessionRow.status == "stopped", col(SessionRow.deleted_at).is_(None))
        .order_by(col(SessionRow.stopped_at), col(SessionRow.id))
        .limit(_BATCH_SESSIONS)
    )
    chosen: list[str] = []
    events = frames = 0
    for session_id, event_count, frame_count in db.exec(statement):
        events, frames = events + event_count, frames + frame_count
        if chosen and (events > _BATCH_EVENTS or frames > _BATCH_FRAMES):
            break
        chosen.append(session_id)
    return chosen


def _open_batches() -> SelectOfScalar[SealBatchRow]:
    return select(SealBatchRow).where(~col(SealBatchRow.is_done)).limit(1)


def _waiting() -> SelectOfScalar[SessionRow]:
    return select(SessionRow).where(SessionRow.status == "stopped", col(SessionRow.deleted_at).is_(None))
