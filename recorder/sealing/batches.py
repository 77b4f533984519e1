"""Numbered batches of sealing lanes: sessions chosen, claimed, and split into halves. Design §3.

The batches of a lane are numbered in SQL and written to the lake in that order. A batch that a killed run
left open is claimed again under the same number.
"""

from dataclasses import dataclass
from itertools import accumulate

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.operations import SealBatchRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.sealing import breaker
from recorder.sealing.lanes import Lane, is_batch_paused, list_open_lane_batches
from recorder.sealing.portions import count_pixels_for_portions
from recorder.storage.conditions import in_tenant
from recorder.storage.lake_schemas import format_lake_date
from recorder.storage.leases import HeldLease
from recorder.tenant import Tenant


@dataclass(frozen=True)
class SealingBatchLimits:
    """Size at which a batch ends, so that memory and the time of one commit stay bounded."""

    sessions: int = 100
    events: int = 20_000
    frames: int = 1_000
    #: Width × height of all pictures: a batch waits until each is decoded.
    pixels: int = 1_000_000_000


@dataclass(frozen=True)
class ClaimedBatch:
    """Numbered batch of one lane, with its sessions in sealing order."""

    lane: Lane
    number: int
    session_ids: list[str]
    first_seal_seq: int
    #: Partition of the lake that takes its rows.
    date: str
    #: Fencing number of the lease under which it was claimed; part of the names of files.
    fence: int
    #: State, number of failures, and number of runs that were killed during the work on it.
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
        return self.lane.tenant.workspace_id

    @property
    def mode(self) -> str:
        """Mode of its sessions."""
        return self.lane.tenant.mode

    def seal_seq(self, session_id: str) -> int:
        """Return the session's number in the order in which its lane is sealed."""
        return self.first_seal_seq + self.session_ids.index(session_id)


def claim_sealing_batch(
    db: DbSession,
    lane: Lane,
    lease: HeldLease,
    *,
    limits: SealingBatchLimits | None = None,
    is_resumed: bool = False,
) -> ClaimedBatch | None:
    """Claim the lane's next batch: the lowest open one, else a new one; return None if nothing waits.

    Call it in a transaction that holds the lease.

    Args:
        db: a write transaction.
        lane: the lane.
        lease: the lane's lease.
        limits: size of a new batch.
        is_resumed: whether the run paused the batch itself, and may go on before the pause is over.
    """
    open_rows = list_open_lane_batches(db, lane=lane, limit=1)
    row = (
        open_rows[0]
        if open_rows
        else _add_batch(db, lane, _choose_sealing_batch_sessions(db, lane, limits or SealingBatchLimits()))
    )
    if row is None:
        return None
    if not is_resumed and is_batch_paused(row, clock.now()):
        return None
    kills, is_retry = row.begun - row.ended, row.begun > 0
    row.begun += 1
    db.add(row)
    return ClaimedBatch(
        lane=lane,
        number=row.number,
        session_ids=row.session_ids,
        first_seal_seq=row.first_seal_seq,
        date=format_lake_date(row.created_at),
        fence=lease.fence,
        state=row.state,
        failures=row.failures,
        kills=kills,
        is_retry=is_retry,
    )


def read_batch_row(db: DbSession, batch: ClaimedBatch) -> SealBatchRow:
    """Return the row of a claimed batch."""
    return db.get_one(SealBatchRow, (batch.workspace_id, batch.mode, batch.lane.slot, batch.number))


def split_sealing_batch(db: DbSession, batch: ClaimedBatch) -> None:
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
    row = read_batch_row(db, batch)
    row.state, row.ended = "done", row.begun
    db.add(row)


def _add_batch(db: DbSession, lane: Lane, session_ids: list[str]) -> SealBatchRow | None:
    """Add a batch with the lane's next number; return None without sessions."""
    if not session_ids:
        return None
    key = (lane.tenant.workspace_id, lane.tenant.mode, lane.slot)
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


def _choose_sealing_batch_sessions(db: DbSession, lane: Lane, limits: SealingBatchLimits) -> list[str]:
    """Choose the sessions of a new batch: those that wait longest, within the bounds of a batch."""
    row = SessionRow
    waiting = (
        select(row.id, row.event_count, row.frame_count, row.seal_failures)
        .where(*in_tenant(row, lane.tenant), row.seal_slot == lane.slot)
        .where(col(row.waiting_since).is_not(None))
    )
    is_open = breaker.read_open_breaker(db) is not None
    if is_open:
        waiting = waiting.where(row.seal_failures < breaker.MAX_SESSION_FAILURES)
    chosen: list[str] = []
    events = frames = 0
    oldest = waiting.order_by(col(row.waiting_since), col(row.id)).limit(limits.sessions)
    for session_id, event_count, frame_count, failures in db.exec(oldest):
        events, frames = events + event_count, frames + frame_count
        # A session that failed before is sealed alone, so that it delays no other.
        if chosen and (failures or events > limits.events or frames > limits.frames):
            break
        chosen.append(session_id)
        if failures:
            break
    if frames and len(chosen) > 1:
        chosen = _limit_batch_pixels(db, chosen, limits.pixels)
    return chosen if chosen or not is_open else _choose_deferred(db, lane)


def _limit_batch_pixels(db: DbSession, session_ids: list[str], limit: int) -> list[str]:
    """Return the first sessions, at least one, whose pictures have no more pixels together."""
    pixels_of = count_pixels_for_portions(db, session_ids)
    sums = accumulate(pixels_of.get(session_id, 0) for session_id in session_ids)
    return session_ids[: max(1, sum(pixels <= limit for pixels in sums))]


def _choose_deferred(db: DbSession, lane: Lane) -> list[str]:
    """Choose the deferred session that was tried least often, if one may be tried now."""
    row = SessionRow
    statement = (
        select(row.id)
        .where(*in_tenant(row, lane.tenant), row.seal_slot == lane.slot)
        .where(col(row.waiting_since).is_not(None))
        .order_by(col(row.seal_failures), col(row.waiting_since), col(row.id))
        .limit(1)
    )
    deferred = db.exec(statement).first()
    return [deferred] if deferred is not None and breaker.take_breaker_retry(db) else []
