"""Removal of replays and recoveries: of purged sessions, which they quote, and old ones. Contract §2, §8."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TypeVar

from sqlalchemy import exists, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import limits
from recorder.ids import first_id_at
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.session import SessionRow
from recorder.replay_service.requests.replays import release_recoveries_of_attempts
from recorder.storage.conditions import in_tenant
from recorder.storage.database import Database
from recorder.tenant import Tenant

# Replays that one transaction removes, with their steps and the deliveries of three events of each.
_AT_ONCE = 10
#: Steps that it removes, or those of one replay.
_STEPS_AT_ONCE = 5_000
#: Old replays or recoveries that one transaction lists.
_PAGE = 20
_Row = TypeVar("_Row", RecoveryRow | ReplayRow, ReplayRow)


@dataclass(frozen=True)
class RemovedReplays:
    """Ids of removed replays or recoveries, and the sessions that these replays recorded.

    Attributes:
        ids: ids of the replays or recoveries.
        recorded: for each recorded session those that led to it, a purged one first.
    """

    ids: list[str]
    recorded: dict[str, list[str]]


def remove_some_replays(db: DbSession, session_ids: Collection[str]) -> RemovedReplays:
    """Remove replays and recoveries that sessions have a part in; return ids of some, none at the end.

    Attempts of its recoveries are among them. Events and deliveries are left to the caller. Needs a write
    transaction.
    """
    recovered = or_(
        col(RecoveryRow.session_id).in_(session_ids), col(RecoveryRow.point_session_id).in_(session_ids)
    )
    some_recoveries = select(RecoveryRow).where(recovered).order_by(col(RecoveryRow.id)).limit(_AT_ONCE)
    # Recoveries are locked before their attempts, everywhere.
    recoveries = db.exec(some_recoveries.with_for_update()).all()
    purged = frozenset(session_ids)
    recovered_by = {
        row.id: row.session_id if row.session_id in purged else row.point_session_id for row in recoveries
    }
    involved = or_(
        col(ReplayRow.session_id).in_(session_ids),
        col(ReplayRow.against_session_id).in_(session_ids),
        col(ReplayRow.cause).in_(recovered_by),
    )
    some = select(ReplayRow).where(involved).order_by(col(ReplayRow.id)).limit(_AT_ONCE)
    units = [[row] for row in db.exec(some.with_for_update())]
    replays = [row for unit in _take_up_to_steps(units, _STEPS_AT_ONCE) for row in unit]
    if not replays:
        db.exec(delete(RecoveryRow).where(col(RecoveryRow.id).in_(recovered_by)))
        return RemovedReplays(list(recovered_by), {})
    recorded = {}
    for row in replays:
        sources = (row.session_id, row.against_session_id, recovered_by.get(row.cause or ""))
        if row.result_session_id is not None:
            known = [source for source in sources if source is not None]
            recorded[row.result_session_id] = sorted(known, key=lambda source: source not in purged)
    ids = [row.id for row in replays]
    _delete_replays(db, ids)
    release_recoveries_of_attempts(db, *replays)
    return RemovedReplays(ids, recorded)


def iterate_old_replays(database: Database, tenant: Tenant, *, at: datetime) -> Iterator[list[str]]:
    """Yield pages of ids of a workspace's recoveries, then of its replays, whose days may be over.

    Attempts of recoveries are left out: they go with these. So are replays whose recorded session exists:
    purges find it by them.
    """
    for table, prefix in ((RecoveryRow, "rcv"), (ReplayRow, "rpl")):
        before = at - timedelta(days=limits.REPLAY_DAYS)
        is_old = [
            *in_tenant(table, tenant),
            # By the index, since all that ended before were created before.
            col(table.id) < first_id_at(prefix, before),
            col(table.finished_at) < before,
        ]
        if table is ReplayRow:
            is_old.append(~exists().where(col(RecoveryRow.id) == ReplayRow.cause))
            is_old.append(~exists().where(col(SessionRow.id) == ReplayRow.result_session_id))
        statement = select(table.id).where(*is_old).order_by(col(table.id)).limit(_PAGE)
        last_id = ""
        while True:
            with database.transaction(write=False) as db:
                ids = list(db.exec(statement.where(col(table.id) > last_id)))
            if not ids:
                break
            yield ids
            last_id = ids[-1]


def find_removable_replays(
    db: DbSession,
    ids: Collection[str],
    *,
    list_held: Callable[[set[str]], set[str]],
    locks: bool = True,
) -> list[list[RecoveryRow | ReplayRow]]:
    """Return old recoveries with their attempts, and old replays alone, none of which quotes a held session.

    A recovery is left out with an attempt whose recorded session exists.

    Args:
        db: a transaction.
        ids: ids of recoveries and replays that `iterate_old_replays` found.
        list_held: returns the sessions among the given ones that are held.
        locks: whether the rows are locked, which takes a write transaction.
    """
    by_id = select(RecoveryRow).where(col(RecoveryRow.id).in_(ids)).order_by(col(RecoveryRow.id))
    recoveries = db.exec(by_id.with_for_update() if locks else by_id).all()
    involved = or_(col(ReplayRow.id).in_(ids), col(ReplayRow.cause).in_([row.id for row in recoveries]))
    of_these = select(ReplayRow).where(involved).order_by(col(ReplayRow.id))
    replays = db.exec(of_these.with_for_update() if locks else of_these).all()
    attempts = {row.id: [replay for replay in replays if replay.cause == row.id] for row in recoveries}
    units: list[list[RecoveryRow | ReplayRow]] = [[row, *attempts[row.id]] for row in recoveries]
    units += [[replay] for replay in replays if replay.cause not in attempts]
    recorded = [row.result_session_id for row in replays if row.result_session_id is not None]
    left = set(db.exec(select(SessionRow.id).where(col(SessionRow.id).in_(recorded))))
    held = list_held(
        {session_id for unit in units for row in unit for session_id in _list_quoted_sessions(row)}
    )

    def is_kept(row: RecoveryRow | ReplayRow) -> bool:
        has_recording = isinstance(row, ReplayRow) and row.result_session_id in left
        return has_recording or not held.isdisjoint(_list_quoted_sessions(row))

    return [unit for unit in units if not any(map(is_kept, unit))]


def _list_quoted_sessions(row: RecoveryRow | ReplayRow) -> list[str]:
    """Return the sessions that a replay or recovery names."""
    if isinstance(row, RecoveryRow):
        names = [row.session_id, row.point_session_id]
    else:
        names = [row.session_id, row.against_session_id, row.result_session_id]
    return [name for name in names if name is not None]


def remove_replays(
    db: DbSession,
    units: Sequence[Sequence[RecoveryRow | ReplayRow]],
    *,
    most_steps: int = _STEPS_AT_ONCE,
) -> list[str]:
    """Remove some of these recoveries and replays, at least one unit; return the ids.

    Needs a write transaction.

    Args:
        db: the transaction.
        units: rows that are removed together.
        most_steps: steps that it removes, or those of one unit.
    """
    rows = [row for unit in _take_up_to_steps(units, most_steps) for row in unit]
    _delete_replays(db, [row.id for row in rows if isinstance(row, ReplayRow)])
    recovery_ids = [row.id for row in rows if isinstance(row, RecoveryRow)]
    db.exec(delete(RecoveryRow).where(col(RecoveryRow.id).in_(recovery_ids)))
    return [row.id for row in rows]


def _take_up_to_steps(units: Sequence[Sequence[_Row]], most_steps: int) -> Sequence[Sequence[_Row]]:
    """Return the first units, at least one, whose replays have no more steps together than this."""
    sums = accumulate(sum(row.steps or 0 for row in unit if isinstance(row, ReplayRow)) for unit in units)
    return units[: max(1, sum(total <= most_steps for total in sums))]


def _delete_replays(db: DbSession, ids: Collection[str]) -> None:
    db.exec(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_(ids)))
    db.exec(delete(ReplayRow).where(col(ReplayRow.id).in_(ids)))
