"""Lanes of sealing: the lanes that wait, the choice of the next one, run leases, changes of sealing slots.

A lane is one workspace, mode and sealing slot; its sessions are sealed in one order. A run seals while it
holds one of the `RECORDER_SEAL_RUNS` run leases. Design §3.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Conflict
from recorder.fair_scheduling import compute_workspace_share
from recorder.models.operations import LeaseRow, SealBatchRow, SealCounterRow
from recorder.models.session import SessionRow
from recorder.models.workspace import DeploymentRow
from recorder.sealing import breaker
from recorder.storage.conditions import in_tenant
from recorder.storage.deployment import compute_sealing_slot
from recorder.storage.leases import HeldLease, hold_lease, make_unexpired_condition, take_lease
from recorder.tenant import Tenant

#: Names of the lanes' leases begin so.
_LANE_PREFIX = "seal:"
# Runs choose their lane one after the other, so that a workspace cannot take more lanes than it may.
_CHOICE_LEASE = "seal-choice"
_RUN_LEASE_PREFIX = "seal-run:"
# As text, so that the partial index serves it.
_IS_OPEN = text("state <> 'done'")
#: More failures than a session can have.
_MANY_FAILURES = 2**31 - 1
#: More than a run pauses a batch, or lets it wait for its store.
_LONGEST_PAUSE = timedelta(minutes=1)
_LANE_COLUMNS: tuple[Any, ...] = (
    *(col(SessionRow.workspace_id), col(SessionRow.mode)),
    *(col(SessionRow.seal_slot), col(SessionRow.waiting_since)),
)
# One lane after another: the first session of the lane after that of the session before. As expressions, not
# as columns: SQLite then looks all three up in the index.
_FIRST_OF_EACH_LANE = text("""
    WITH RECURSIVE first(id) AS (
        SELECT (
            SELECT id FROM sessions
            WHERE waiting_since IS NOT NULL AND seal_failures < :failures_below
            ORDER BY workspace_id, mode, seal_slot, waiting_since LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT later.id FROM sessions AS later
            WHERE later.waiting_since IS NOT NULL AND later.seal_failures < :failures_below
              AND (later.workspace_id, later.mode, later.seal_slot)
                > (before.workspace_id || '', before.mode || '', before.seal_slot + 0)
            ORDER BY later.workspace_id, later.mode, later.seal_slot, later.waiting_since LIMIT 1
        )
        FROM first JOIN sessions AS before ON before.id = first.id
    )
    SELECT workspace_id, mode, seal_slot, waiting_since FROM first JOIN sessions ON sessions.id = first.id
""").columns(*_LANE_COLUMNS)


@dataclass(frozen=True, order=True)
class Lane:
    """Workspace, mode and slot whose sessions are sealed in one order."""

    tenant: Tenant
    slot: int

    @property
    def name(self) -> str:
        """Name of the lane's lease, and of its numbers in the lake."""
        return f"{_LANE_PREFIX}{self.tenant.workspace_id}:{self.tenant.mode}:{self.slot}"

    @classmethod
    def of_batch(cls, batch: SealBatchRow) -> "Lane":
        """Return the lane of a batch."""
        return cls(Tenant(batch.workspace_id, batch.mode), batch.slot)

    @classmethod
    def of_name(cls, name: str) -> "Lane":
        """Return the lane whose lease has this name."""
        workspace_id, mode, slot = name.removeprefix(_LANE_PREFIX).split(":")
        return cls(Tenant(workspace_id, mode), int(slot))


def list_open_lane_batches(
    db: DbSession, *, lane: Lane | None = None, limit: int | None = None
) -> list[SealBatchRow]:
    """Return the batches that are not done, of one lane or of all, by lane and number."""
    row = SealBatchRow
    order = (col(row.workspace_id), col(row.mode), col(row.slot), col(row.number))
    statement = select(row).where(_IS_OPEN).order_by(*order)
    if lane is not None:
        statement = statement.where(*in_tenant(row, lane.tenant), row.slot == lane.slot)
    return list(db.exec(statement.limit(limit)))


def take_run_lease(db: DbSession, owner: str, *, runs: int, ttl_ms: int) -> HeldLease | None:
    """Take the first free run lease; return None if all are taken."""
    for number in range(runs):
        lease = hold_lease(db, f"{_RUN_LEASE_PREFIX}{number}", owner, ttl_ms=ttl_ms)
        if lease is not None:
            return lease
    return None


def list_sealing_runs(db: DbSession) -> list[str]:
    """Return the names of the runs that hold a run lease now."""
    statement = select(LeaseRow.owner).where(
        col(LeaseRow.name).startswith(_RUN_LEASE_PREFIX),
        make_unexpired_condition(clock.now_ms()),
    )
    return list(db.exec(statement))


def is_batch_paused(batch: SealBatchRow, now: datetime) -> bool:
    """Return whether no other run may work on a batch yet.

    A pause that seems longer than any was begun before the clock was set back, and is over.
    """
    return batch.not_before is not None and now < batch.not_before <= now + _LONGEST_PAUSE


def list_waiting_lanes(db: DbSession) -> list[tuple[Lane, datetime]]:
    """Return each lane with waiting sessions, and when its first session began to wait.

    It is one statement, which costs an index look-up per lane, however many sessions wait. Deferred sessions
    count from the time at which one of them may be tried.
    """
    opened = breaker.read_open_breaker(db)
    is_waiting_for_retry = opened is not None and breaker.is_retry_awaited(opened.retry_ms, clock.now_ms())
    failures_below = breaker.MAX_SESSION_FAILURES if is_waiting_for_retry else _MANY_FAILURES
    rows = db.connection().execute(_FIRST_OF_EACH_LANE, {"failures_below": failures_below})
    return [(Lane(Tenant(workspace_id, mode), slot), since) for workspace_id, mode, slot, since in rows]


def has_waiting_sessions(db: DbSession) -> bool:
    """Return whether any session waits to be sealed; the query is cheap enough to run many times a second."""
    statement = select(SessionRow.id).where(col(SessionRow.waiting_since).is_not(None)).limit(1)
    return db.exec(statement).first() is not None or list_open_lane_batches(db, limit=1) != []


def compute_longest_wait_s(db: DbSession, *, runs: int) -> float | None:
    """Return for how many seconds the first free lane has waited for a run; None if no lane waits.

    A run that has nothing to do takes a free lane at once, so a lane that waits longer finds all runs busy.
    """
    free = _choose_free_lanes(list_ready_lanes(db), list_held_lanes(db), runs)
    return max(0.0, (clock.now() - free[0][1]).total_seconds()) if free else None


def list_ready_lanes(
    db: DbSession,
    *,
    except_for: frozenset[Lane] = frozenset(),
    resumable: Mapping[Lane, int] = MappingProxyType({}),
) -> list[tuple[Lane, datetime]]:
    """Return the lanes with work that is not paused, and since when each waits, the longest wait first.

    A lane waits since its first session was stopped, or since a run last released it, whichever is later:
    a lane with a long queue comes after those that waited while it was served.

    Args:
        db: a transaction.
        except_for: lanes that are left out.
        resumable: lanes that the run paused, with the fences of their leases at that time. The run may take
            those that no other run took since before their pause is over.
    """
    now = clock.now()
    unfinished = list_open_lane_batches(db)
    paused = {Lane.of_batch(batch) for batch in unfinished if is_batch_paused(batch, now)}
    since = {Lane.of_batch(batch): batch.created_at for batch in unfinished}
    since.update(list_waiting_lanes(db))
    paused -= _list_lanes_with_fences(db, {lane: resumable[lane] for lane in paused & resumable.keys()})
    ready = since.keys() - paused - except_for
    if not ready:
        return []
    served = _read_served_times(db, {lane.tenant.workspace_id for lane in ready})
    waits = {lane: max(since[lane], served.get(lane) or since[lane]) for lane in ready}
    return sorted(waits.items(), key=lambda item: (item[1], item[0]))


def list_takeable_lanes(
    db: DbSession, owner: str, ready: Sequence[tuple[Lane, datetime]], *, runs: int
) -> list[Lane]:
    """Return the ready lanes that the run may take now, in their order.

    While other workspaces wait, one workspace holds at most half of the runs' lanes (at least one);
    otherwise all but one.

    Args:
        db: a transaction.
        owner: name of the run.
        ready: the lanes with work.
        runs: how many runs seal side by side.
    """
    return [lane for lane, _ in _choose_free_lanes(ready, list_held_lanes(db, except_owner=owner), runs)]


def take_lane(
    db: DbSession, owner: str, ready: Sequence[tuple[Lane, datetime]], *, runs: int, ttl_ms: int
) -> tuple[Lane, HeldLease] | None:
    """Take the lease of the first ready lane that is free; return None if there is none.

    Args:
        db: a write transaction.
        owner: name of the run.
        ready: the lanes with work, as they were found before: only who holds lanes is read again.
        runs: how many runs seal side by side.
        ttl_ms: how long the lease lasts without renewal.
    """
    # Locks the row, so that the choices of several runs follow one another.
    take_lease(db, _CHOICE_LEASE, "", now_ms=0, ttl_ms=0)
    for lane in list_takeable_lanes(db, owner, ready, runs=runs):
        lease = hold_lease(db, lane.name, owner, ttl_ms=ttl_ms)
        if lease is not None:
            return lane, lease
    return None


def list_held_lanes(db: DbSession, *, except_owner: str | None = None) -> dict[Lane, str]:
    """Return the lanes that runs work on now, with the name of the run."""
    # Not by comparing names: collations of PostgreSQL pass over punctuation.
    statement = select(LeaseRow).where(
        col(LeaseRow.name).startswith(_LANE_PREFIX), make_unexpired_condition(clock.now_ms())
    )
    rows = db.exec(statement.execution_options(populate_existing=True))
    return {Lane.of_name(row.name): row.owner for row in rows if row.owner != except_owner}


def store_lane_service_time(db: DbSession, lane: Lane) -> None:
    """Store that a run releases the lane now."""
    counter = db.get(SealCounterRow, (lane.tenant.workspace_id, lane.tenant.mode, lane.slot))
    if counter is not None:
        counter.served_at = clock.now()
        db.add(counter)


def _choose_free_lanes(
    ready: Sequence[tuple[Lane, datetime]], held: Collection[Lane], runs: int
) -> list[tuple[Lane, datetime]]:
    """Return the ready lanes that no run holds and whose workspace may have another run."""
    holders = Counter(lane.tenant.workspace_id for lane in held)
    free = [(lane, since) for lane, since in ready if lane not in held]
    most = compute_workspace_share(runs)
    below = [(lane, since) for lane, since in free if holders[lane.tenant.workspace_id] < most]
    if not below and len({lane.tenant.workspace_id for lane, _ in free}) == 1:
        # No other workspace waits: this one may have more runs, but one stays free for others. A batch of
        # large pictures takes many seconds, which a session that stops in that time would wait.
        below = [item for item in free if holders[item[0].tenant.workspace_id] < max(1, runs - 1)]
    return below


def _list_lanes_with_fences(db: DbSession, fences: Mapping[Lane, int]) -> set[Lane]:
    """Return the lanes whose leases have the given fences."""
    if not fences:
        return set()
    names = [lane.name for lane in fences]
    statement = select(LeaseRow.name, LeaseRow.fence).where(col(LeaseRow.name).in_(names))
    return {lane for name, fence in db.exec(statement) if fences[lane := Lane.of_name(name)] == fence}


def _read_served_times(db: DbSession, workspace_ids: set[str]) -> dict[Lane, datetime]:
    """Return when each lane of these workspaces was sealed last."""
    row = SealCounterRow
    statement = select(row).where(
        col(row.workspace_id).in_(sorted(workspace_ids)), col(row.served_at).is_not(None)
    )
    return {
        Lane(Tenant(counter.workspace_id, counter.mode), counter.slot): counter.served_at
        for counter in db.exec(statement)
        if counter.served_at is not None
    }


class LanesOpen(Conflict):
    """A lane is being worked on, or a batch of it is open."""

    code = "lanes_open"

    def __init__(self) -> None:
        super().__init__(
            "The sealing slots cannot be changed while a sealing batch is open. Let the service run until "
            "all stopped sessions are sealed, stop it, and try again."
        )


def change_sealing_slots(db: DbSession, slots: int) -> int:
    """Divide the workflows of each workspace and mode into another number of sealing slots.

    The numbers of the new lanes go on above those of all old lanes of their workspace and mode, so that
    `seal_seq` rises within a workflow and the lake takes each batch.

    Returns:
        The number of slots before.

    Raises:
        LanesOpen: if a run works on a lane, or a batch is open.
    """
    deployment = db.get_one(DeploymentRow, 1, with_for_update=True)
    if list_held_lanes(db) or list_open_lane_batches(db, limit=1):
        raise LanesOpen
    before, deployment.seal_slots = deployment.seal_slots, slots
    db.add(deployment)
    counters = list(db.exec(select(SealCounterRow)))
    for workspace_id, mode in {(counter.workspace_id, counter.mode) for counter in counters}:
        replaced = [
            counter for counter in counters if (counter.workspace_id, counter.mode) == (workspace_id, mode)
        ]
        batch_number = max(counter.batch_number for counter in replaced)
        seal_seq = max(counter.seal_seq for counter in replaced)
        for counter in replaced:
            db.delete(counter)
        db.flush()
        for slot in range(slots):
            db.add(
                SealCounterRow(
                    workspace_id=workspace_id,
                    mode=mode,
                    slot=slot,
                    batch_number=batch_number,
                    seal_seq=seal_seq,
                )
            )
    for row in db.exec(select(SessionRow).where(col(SessionRow.waiting_since).is_not(None))):
        row.seal_slot = compute_sealing_slot(row.workflow, slots)
        db.add(row)
    return before
