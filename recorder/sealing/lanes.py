"""Sealing lanes: which run seals which workflows, and the numbered batches of each lane. Design §3.

A lane is a workspace, a mode and a slot of the workflow. One run at a time works on a lane, under its
lease. The batches of a lane are numbered in SQL and written to the lake in that order. A batch that a killed
run left open is taken up again under the same number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text, tuple_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.errors import Conflict
from recorder.models.outbox import LeaseRow, SealBatchRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.storage.leases import Lease, renew_lease, take_lease

# A batch ends at the first of these, so that memory and the time of one commit stay bounded.
_BATCH_SESSIONS = 100
_BATCH_EVENTS = 20_000
_BATCH_FRAMES = 1_000

_PREFIX = "seal:"
# As text, so that the partial index serves it.
_IS_OPEN = text("state <> 'done'")
# Runs choose their lane one after the other, so that a workspace cannot take more lanes than it may.
_CHOICE = "seal-choice"


class LeaseLost(Conflict):
    """The lease of the lane ran out and another run took it; this run must not write any more."""

    code = "lease_lost"

    def __init__(self) -> None:
        super().__init__("The lease of this sealing lane ran out and another run took it.")


@dataclass(frozen=True, order=True)
class Lane:
    """Workflows of one workspace and mode that are sealed in one order."""

    workspace_id: str
    mode: str
    slot: int

    @property
    def name(self) -> str:
        """Name of the lane's lease, and of its numbers in the lake."""
        return f"{_PREFIX}{self.workspace_id}:{self.mode}:{self.slot}"

    @classmethod
    def of_name(cls, name: str) -> "Lane":
        """Return the lane whose lease has this name."""
        workspace_id, mode, slot = name.removeprefix(_PREFIX).split(":")
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


def waiting_lanes(db: DbSession) -> Iterator[tuple[Lane, datetime]]:
    """Yield each lane in which sessions wait, with the time since when the first of them does.

    Costs one index look-up a lane, however many sessions wait.
    """
    row = SessionRow
    columns = (row.workspace_id, row.mode, col(row.seal_slot), col(row.waiting_since))
    statement = select(*columns).where(col(row.waiting_since).is_not(None)).order_by(*columns).limit(1)
    found = db.exec(statement).first()
    while found is not None:
        workspace_id, mode, slot, since = found
        assert slot is not None and since is not None
        yield Lane(workspace_id, mode, slot), since
        behind = tuple_(row.workspace_id, row.mode, col(row.seal_slot)) > (workspace_id, mode, slot)
        found = db.exec(statement.where(behind)).first()


def has_waiting(db: DbSession) -> bool:
    """Return whether any session waits to be sealed; cheap enough to ask many times a second."""
    statement = select(SessionRow.id).where(col(SessionRow.waiting_since).is_not(None)).limit(1)
    return db.exec(statement).first() is not None or _open_batches(db, limit=1) != []


def has_work(db: DbSession) -> bool:
    """Return whether a session waits to be sealed, or hot rows wait to be swept."""
    return has_waiting(db) or bool(due_for_sweep(db, limit=1))


def longest_wait_s(db: DbSession, *, runs: int) -> float | None:
    """Return for how many seconds the first free lane has waited for a run; None where none waits.

    A run that has nothing to do takes a free lane at once, so a lane that waits longer finds all runs busy.
    """
    free = _free_lanes(db, "", runs, frozenset())
    return max(0.0, (clock.now() - free[0][1]).total_seconds()) if free else None


def free_lanes(
    db: DbSession, owner: str, *, runs: int, except_for: frozenset[Lane] = frozenset()
) -> list[Lane]:
    """Return the lanes that the run may take now, the one that has waited longest first.

    A lane waits since its first session was stopped, or since a run last gave it back, whichever is later:
    a lane with a long queue comes after those that waited while it was served. While other workspaces wait,
    one workspace holds at most half of the runs' lanes (at least one).

    Args:
        owner: name of the run.
        runs: how many runs seal side by side.
        except_for: lanes that the run may not take.
    """
    return [lane for lane, _ in _free_lanes(db, owner, runs, except_for)]


def take_lane(
    db: DbSession, owner: str, *, runs: int, ttl_ms: int, except_for: frozenset[Lane] = frozenset()
) -> tuple[Lane, Lease] | None:
    """Take the lease of the first of the free lanes; None where there is none."""
    # Locks the row, so that the choices of several runs follow one another.
    take_lease(db, _CHOICE, "", now_ms=0, ttl_ms=0)
    for lane in free_lanes(db, owner, runs=runs, except_for=except_for):
        lease = take_lease(db, lane.name, owner, now_ms=clock.now_ms(), ttl_ms=ttl_ms)
        if lease is not None:
            return lane, lease
    return None


def held_lanes(db: DbSession, *, except_owner: str | None = None) -> dict[Lane, str]:
    """Return the lanes that runs work on now, with the name of the run."""
    now_ms = clock.now_ms()
    statement = select(LeaseRow).where(
        col(LeaseRow.name) > _PREFIX, col(LeaseRow.name) < "seal;", col(LeaseRow.expires_ms) > now_ms
    )
    rows = db.exec(statement.execution_options(populate_existing=True))
    return {Lane.of_name(row.name): row.owner for row in rows if row.owner != except_owner}


def hold(db: DbSession, lease: Lease, ttl_ms: int) -> None:
    """Keep the lease of a lane; call it in every transaction that writes.

    Raises:
        LeaseLost: if another run took the lane.
    """
    if not renew_lease(db, lease, now_ms=clock.now_ms(), ttl_ms=ttl_ms):
        raise LeaseLost


def note_served(db: DbSession, lane: Lane) -> None:
    """Note that a run gives the lane back now."""
    counter = db.get(SealCounterRow, (lane.workspace_id, lane.mode, lane.slot))
    if counter is not None:
        counter.served_at = clock.now()
        db.add(counter)


def claim_batch(db: DbSession, lane: Lane, lease: Lease) -> ClaimedBatch | None:
    """Claim the lane's next batch: the lowest open one, else a new one; None where nothing waits.

    Call it in a transaction that holds the lease.
    """
    open_batches = _open_batches(db, lane=lane, limit=1)
    row = open_batches[0] if open_batches else _add_batch(db, lane, _next_sessions(db, lane))
    if row is None or (row.not_before is not None and row.not_before > clock.now()):
        return None
    kills = row.begun - row.ended
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
    _add_batch(db, batch.lane, ids[:half])
    _add_batch(db, batch.lane, ids[half:])
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


def _open_batches(db: DbSession, *, lane: Lane | None = None, limit: int | None = None) -> list[SealBatchRow]:
    row = SealBatchRow
    order = (col(row.workspace_id), col(row.mode), col(row.slot), col(row.number))
    statement = select(row).where(_IS_OPEN).order_by(*order)
    if lane is not None:
        statement = statement.where(
            row.workspace_id == lane.workspace_id, row.mode == lane.mode, row.slot == lane.slot
        )
    return list(db.exec(statement.limit(limit)))


def _free_lanes(
    db: DbSession, owner: str, runs: int, except_for: frozenset[Lane]
) -> list[tuple[Lane, datetime]]:
    now = clock.now()
    open_batches = _open_batches(db)
    paused = {_lane_of(batch) for batch in open_batches if batch.not_before and batch.not_before > now}
    since = {_lane_of(batch): batch.created_at for batch in open_batches}
    since.update(waiting_lanes(db))
    held = held_lanes(db, except_owner=owner)
    free = since.keys() - paused - except_for - held.keys()
    if not free:
        return []
    served = _served_times(db, {lane.workspace_id for lane in free})
    waits = {lane: max(since[lane], served.get(lane) or since[lane]) for lane in free}
    ordered = sorted(free, key=lambda lane: (waits[lane], lane))
    most = max(1, runs // 2)
    holders = [lane.workspace_id for lane in held]
    below = [lane for lane in ordered if holders.count(lane.workspace_id) < most]
    if not below and len({lane.workspace_id for lane in ordered}) == 1:
        below = ordered  # no other workspace waits: this one may have the other runs too
    return [(lane, waits[lane]) for lane in below]


def _served_times(db: DbSession, workspace_ids: set[str]) -> dict[Lane, datetime]:
    row = SealCounterRow
    statement = select(row).where(
        col(row.workspace_id).in_(sorted(workspace_ids)), col(row.served_at).is_not(None)
    )
    return {
        Lane(found.workspace_id, found.mode, found.slot): found.served_at
        for found in db.exec(statement)
        if found.served_at is not None
    }


def _lane_of(batch: SealBatchRow) -> Lane:
    return Lane(batch.workspace_id, batch.mode, batch.slot)


def due_for_sweep(db: DbSession, *, limit: int) -> list[SessionRow]:
    """Return sealed sessions whose stream can no longer be resumed, so that the lake alone may serve them."""
    before = clock.now() - timedelta(minutes=limits.STREAM_RESUME_MINUTES)
    row = SessionRow
    statement = (
        select(row)
        .where(col(row.is_hot), row.status == "sealed", col(row.sealed_at) < before)
        .where(col(row.waiting_since).is_(None), col(row.seal_error_code).is_(None))
        .limit(limit)
    )
    return list(db.exec(statement))
