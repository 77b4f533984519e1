"""Numbered batches of sealing lanes: claimed, divided, done. Design §3.

The batches of a lane are numbered in SQL and written to the lake in that order. A batch that a killed run
left open is claimed again under the same number.
"""

from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.operations import SealBatchRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.storage.leases import HeldLease
from recorder.tenant import Tenant

# A batch ends at the first of these, so that memory and the time of one commit stay bounded.
_BATCH_SESSIONS = 100
_BATCH_EVENTS = 20_000
_BATCH_FRAMES = 1_000

#: Names of the lanes' leases begin so.
LANE_PREFIX = "seal:"
# As text, so that the partial index serves it.
_IS_OPEN = text("state <> 'done'")


@dataclass(frozen=True, order=True)
class Lane:
    """Workflows of one workspace and mode that are sealed in one order."""

    workspace_id: str
    mode: str
    slot: int

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the lane."""
        return Tenant(self.workspace_id, self.mode)

    @property
    def name(self) -> str:
        """Name of the lane's lease, and of its numbers in the lake."""
        return f"{LANE_PREFIX}{self.workspace_id}:{self.mode}:{self.slot}"

    @classmethod
    def of_name(cls, name: str) -> "Lane":
        """Return the lane whose lease has this name."""
        workspace_id, mode, slot = name.removeprefix(LANE_PREFIX).split(":")
        return cls(workspace_id, mode, int(slot))


@dataclass(frozen=True)
class ClaimedBatch:
    """A numbered batch of one lane, with the sessions that it seals, in order."""

    lane: Lane
    number: int
    session_ids: list[str]
    first_seal_seq: int
    #: Partition of the lake that takes its rows.
    date: str
    #: Fencing number of the lease under which it was claimed; part of the names of files.
    fence: int
    #: State, and how often the work on it failed or was killed before.
    state: str
    failures: int
    kills: int
    #: Whether a run worked on it before, so that some of its rows may be in the lake already.
    is_retry: bool

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of its sessions."""
        return self.lane.tenant

    @property
    def workspace_id(self) -> str:
        """Workspace of its sessions."""
        return self.lane.workspace_id

    @property
    def mode(self) -> str:
        """Mode of its sessions."""
        return self.lane.mode

    def seal_seq(self, session_id: str) -> int:
        """Return the session's number in the order in which its lane is sealed."""
        return self.first_seal_seq + self.session_ids.index(session_id)


def claim_batch(
    db: DbSession, lane: Lane, lease: HeldLease, *, is_resumed: bool = False
) -> ClaimedBatch | None:
    """Claim the lane's next batch: the lowest open one, else a new one; None where nothing waits.

    Call it in a transaction that holds the lease.

    Args:
        is_resumed: whether the run paused the batch itself, and may go on before the pause is over.
    """
    found = open_batches(db, lane=lane, limit=1)
    row = found[0] if found else _add_batch(db, lane, _next_sessions(db, lane))
    if row is None:
        return None
    if not is_resumed and row.not_before is not None and row.not_before > clock.now():
        return None
    kills, is_retry = row.begun - row.ended, row.begun > 0
    row.begun += 1
    db.add(row)
    return ClaimedBatch(
        lane=lane,
        number=row.number,
        session_ids=row.session_ids,
        first_seal_seq=row.first_seal_seq,
        date=row.created_at.strftime("%Y-%m-%d"),
        fence=lease.fence,
        state=row.state,
        failures=row.failures,
        kills=kills,
        is_retry=is_retry,
    )


def read_batch(db: DbSession, batch: ClaimedBatch) -> SealBatchRow:
    """Return the row of a claimed batch."""
    return db.get_one(SealBatchRow, (batch.workspace_id, batch.mode, batch.lane.slot, batch.number))


def split_batch(db: DbSession, batch: ClaimedBatch) -> None:
    """Replace a batch by two halves (or by one of the same session), which the lane works on next.

    The batch itself is done without having sealed anything: no row of it may be in the lake.
    """
    ids = batch.session_ids
    half = (len(ids) + 1) // 2
    for part in (ids[:half], ids[half:]):
        added = _add_batch(db, batch.lane, part)
        if added is not None and len(part) > 1:
            # It was tried often enough: the next failure, or kill, divides it again.
            added.failures, added.begun = max(0, batch.failures - 1), max(0, batch.kills - 1)
    row = read_batch(db, batch)
    row.state, row.ended = "done", row.begun
    db.add(row)


def _add_batch(db: DbSession, lane: Lane, session_ids: list[str]) -> SealBatchRow | None:
    """Number a new batch of a lane; None without sessions."""
    if not session_ids:
        return None
    key = (lane.workspace_id, lane.mode, lane.slot)
    counter = db.get(SealCounterRow, key, with_for_update=True)
    if counter is None:
        counter = SealCounterRow(workspace_id=key[0], mode=key[1], slot=key[2])
    counter.batch_number += 1
    row = SealBatchRow(
        workspace_id=key[0],
        mode=key[1],
        slot=key[2],
        number=counter.batch_number,
        session_ids=session_ids,
        first_seal_seq=counter.seal_seq + 1,
        created_at=clock.now(),
    )
    counter.seal_seq += len(session_ids)
    db.add(counter)
    db.add(row)
    return row


def _next_sessions(db: DbSession, lane: Lane) -> list[str]:
    """Choose the sessions of a new batch: those that wait longest, within the bounds of a batch."""
    row = SessionRow
    statement = (
        select(row.id, row.event_count, row.frame_count, row.seal_failures)
        .where(row.workspace_id == lane.workspace_id, row.mode == lane.mode, row.seal_slot == lane.slot)
        .where(col(row.waiting_since).is_not(None))
        .order_by(col(row.waiting_since), col(row.id))
        .limit(_BATCH_SESSIONS)
    )
    chosen: list[str] = []
    events = frames = 0
    for session_id, event_count, frame_count, failures in db.exec(statement):
        events, frames = events + event_count, frames + frame_count
        # One that failed before is sealed alone: it shall not keep others waiting.
        if chosen and (failures or events > _BATCH_EVENTS or frames > _BATCH_FRAMES):
            break
        chosen.append(session_id)
        if failures:
            break
    return chosen


def open_batches(db: DbSession, *, lane: Lane | None = None, limit: int | None = None) -> list[SealBatchRow]:
    """Return the batches that are not done, of one lane or of all, by lane and number."""
    row = SealBatchRow
    order = (col(row.workspace_id), col(row.mode), col(row.slot), col(row.number))
    statement = select(row).where(_IS_OPEN).order_by(*order)
    if lane is not None:
        statement = statement.where(
            row.workspace_id == lane.workspace_id, row.mode == lane.mode, row.slot == lane.slot
        )
    return list(db.exec(statement.limit(limit)))


def lane_of(batch: SealBatchRow) -> Lane:
    """Return the lane of a batch."""
    return Lane(batch.workspace_id, batch.mode, batch.slot)
