"""Small exports: claimed by one process that stays at work, so that none waits for a process to start.

One process at a time holds the writer lease. It tries each small export once; large ones and those
whose first try did not end get a run of their own.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import cast

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.datasets.formats import FORMATS
from recorder.exports.planning.selection import SelectionSize, measure_export_selection
from recorder.exports.runner.export_lease import (
    LEASE_MS,
    ExportBusy,
    ExportClaim,
    claim_export,
    lock_export,
    make_lease_free_condition,
)
from recorder.models.export import CLIENT_DESTINATIONS, ExportRow
from recorder.models.export_request import ExportFormat, SplitRule
from recorder.models.operations import LeaseRow
from recorder.storage.database import Database
from recorder.storage.leases import HeldLease, hold_lease, is_unexpired, make_unexpired_condition

#: Exports that are written side by side, of one workspace, and to stores that others run. A slow store or one
#: workspace's queue never takes all of them.
SLOTS = 4
SLOTS_OF_WORKSPACE = 2
SLOTS_OF_CLOUDS = 2
#: After so long without a renewal another process may take the writer lease.
WRITER_LEASE_MS = 30_000

_WRITER_LEASE, _LEAVING = "small-exports", "small-exports-leaving"
#: A run that leaves finishes what it writes in this time.
_LEAVING_MS = 150_000
# About two seconds of work on one core, and 300 MB of memory.
SMALL_SESSIONS = 2_000
SMALL_EVENTS = 50_000
SMALL_FRAMES = 5_000
SMALL_BYTES = 64 * 2**20
#: A file takes 10 to 25 ms, however little it holds: 1,390 files with 1,200 sessions took 34 s.
SMALL_SHARDS = 100
_LOOKED_AT = 50


def take_small_export_writer_lease(db: DbSession, owner: str) -> HeldLease | None:
    """Take the lease of the process that writes small exports; None while another one holds it."""
    return hold_lease(db, _WRITER_LEASE, owner, ttl_ms=WRITER_LEASE_MS)


def find_small_export_writer(db: DbSession) -> str | None:
    """Return the name of the run that writes small exports now; None where there is none."""
    row = db.get(LeaseRow, _WRITER_LEASE)
    return row.owner if row is not None and is_unexpired(row, clock.now_ms()) else None


def pass_on_small_export_writer_lease(db: DbSession, lease: HeldLease) -> None:
    """Release the writer lease for the next run, and note that this run is still at work.

    Needs a write transaction.
    """
    lease.release(db)
    hold_lease(db, _LEAVING, lease.lease.owner, ttl_ms=_LEAVING_MS)


def list_small_export_writers(db: DbSession) -> list[str]:
    """Return the names of the runs that write small exports now: the lease holder, and one that leaves."""
    held = select(LeaseRow.owner).where(
        col(LeaseRow.name).in_((_WRITER_LEASE, _LEAVING)), make_unexpired_condition(clock.now_ms())
    )
    return list(db.exec(held))


def claim_next_small_export(
    database: Database,
    owner: str,
    at_work: Collection[ExportRow],
    served: Mapping[str, float],
    *,
    lease_ms: int = LEASE_MS,
) -> tuple[ExportRow, ExportClaim] | None:
    """Claim the next queued export that no run has tried; return None if none may be claimed.

    The workspace that was served longest ago comes first, and in it the oldest export.

    Args:
        database: database.
        owner: name of the run.
        at_work: exports that the run writes now.
        served: order in which the last exports of workspaces were claimed.
        lease_ms: time after which another run may take over from one that no longer renews.
    """
    counts = Counter(row.workspace_id for row in at_work)
    full_workspaces = [workspace_id for workspace_id, count in counts.items() if count >= SLOTS_OF_WORKSPACE]
    are_clouds_full = sum(map(is_small_export_in_cloud, at_work)) >= SLOTS_OF_CLOUDS
    with database.transaction(write=False) as db:
        if not _has_queued_small_exports(db):
            return None
        waiting = _list_first_export_tries(db, but_of=full_workspaces, with_clouds=not are_clouds_full)
    for row in sorted(waiting, key=lambda row: (served.get(row.workspace_id, -1.0), row.id)):
        with database.transaction(write=True) as db:
            locked = lock_export(db, row.id)
            if locked is None or not awaits_small_export_writer(locked):
                continue
            try:
                return locked, claim_export(database, db, locked.id, owner=owner, lease_ms=lease_ms)
            except ExportBusy:
                continue
    return None


def awaits_small_export_writer(row: ExportRow) -> bool:
    """Return whether an export waits for the process that writes small exports."""
    return row.status == "queued" and row.attempt == 0 and not row.has_own_run


def is_small_export_in_cloud(row: ExportRow) -> bool:
    """Return whether the files of an export go to a store that others run."""
    return row.destination["kind"] in CLIENT_DESTINATIONS


def is_small_export(database: Database, row: ExportRow) -> bool:
    """Return whether the sessions of an export recorded so little that it is written in about two seconds."""
    with database.transaction(write=False) as db:
        size = measure_export_selection(db, row.tenant, row.spec, most_sessions=SMALL_SESSIONS)
    return (
        size.sessions <= SMALL_SESSIONS
        and size.events <= SMALL_EVENTS
        and size.frames <= SMALL_FRAMES
        and size.bytes <= SMALL_BYTES
        and bound_small_export_shards(row, size) <= SMALL_SHARDS
    )


def bound_small_export_shards(row: ExportRow, size: SelectionSize) -> int:
    """Return the most files that an export of this size may have.

    So few bytes are in one bucket. A file has the sessions of one workflow and split, and a session is in one
    file of each kind.
    """
    # Rows of an earlier release have no `split`.
    rule = SplitRule.model_validate(row.spec.get("split", {"validation": 0, "test": 0}))
    splits = sum(share > 0 for share in (1 - rule.validation - rule.test, rule.validation, rule.test))
    has_frames = size.frames > 0
    kinds = [kind for kind in FORMATS[cast(ExportFormat, row.format)].kinds if has_frames or kind != "frames"]
    return min(size.workflows * splits, size.sessions) * len(kinds)


def release_small_export_claim(claim: ExportClaim) -> None:
    """Give a claimed export back, for a run of its own.

    Raises:
        LeaseLost: if another run took over.
    """
    with claim.transaction_in_any_status() as (db, row):
        row.has_own_run = True
        claim.lease.release(db)


def give_small_export_own_run(db: DbSession, export_id: str) -> bool:
    """Mark an export that waits for a run of its own; return False if another process has claimed it.

    Needs a write transaction.
    """
    row = lock_export(db, export_id)
    if (
        row is None
        or db.exec(select(make_lease_free_condition()).where(ExportRow.id == export_id)).one() is not True
    ):
        return False
    row.has_own_run = True
    db.add(row)
    return True


def _has_queued_small_exports(db: DbSession) -> bool:
    """Return whether any export is queued; cheap enough to ask several times a second."""
    return db.exec(select(ExportRow.id).where(ExportRow.status == "queued").limit(1)).first() is not None


def _list_first_export_tries(db: DbSession, *, but_of: Collection[str], with_clouds: bool) -> list[ExportRow]:
    """Return the oldest first tries of each workspace, except these.

    Those to stores that others run are left out unless `with_clouds`, so that they hide no others.
    """
    conditions = [
        col(ExportRow.status) == "queued",
        col(ExportRow.attempt) == 0,
        ~col(ExportRow.has_own_run),
        col(ExportRow.awaited_sessions).is_(None),
        col(ExportRow.workspace_id).not_in(but_of),
        make_lease_free_condition(),
    ]
    if not with_clouds:
        conditions.append(col(ExportRow.destination)["kind"].as_string().not_in(CLIENT_DESTINATIONS))
    rank = func.row_number().over(partition_by=col(ExportRow.workspace_id), order_by=col(ExportRow.id))
    ranked = select(ExportRow.id, rank.label("rank")).where(*conditions).subquery()
    first = (
        select(ranked.c.id)
        .where(ranked.c.rank <= SLOTS_OF_WORKSPACE)
        .order_by(ranked.c.rank, ranked.c.id)
        .limit(_LOOKED_AT)
    )
    return list(db.exec(select(ExportRow).where(col(ExportRow.id).in_(first))))
