"""Removal of purged sessions from all exports that have them. Spec §4.5; contract §2, §7.

Hosted datasets and those in folders of this machine are rewritten; clients' buckets are out of reach. A
running export drops the sessions by itself, and the purge waits for that.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import (
    DestinationNotAllowed,
    InvalidDestination,
    NotFound,
    RecorderError,
    Unavailable,
)
from recorder.errors.panics import convert_panics
from recorder.exports.planning.plan import Plan
from recorder.exports.results import expiry
from recorder.exports.results.rewriting import rewrite_export
from recorder.exports.runner.export_lease import ExportBusy, ExportClaim, claim_export, lock_export
from recorder.exports.runner.session_index import (
    delete_export_index_rows,
    delete_session_index_rows,
    find_indexed_sessions,
    find_next_indexed_export,
    find_purged_indexed_sessions,
    index_export_sessions,
    list_unindexed_exports,
)
from recorder.exports.runner.shard_store import read_stored_export_plan
from recorder.models.export import ExportRow
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseLost

log = logging.getLogger("recorder.exports")

#: Times that an export is rewritten again because another session was purged at that moment.
_TRIES = 3
_OURS = ("signed_url", "local")

_Result = Literal["removed", "waits", "out_of_reach"]


@dataclass
class SessionsLeftInExports:
    """Sessions that some exports still hold, with the reason."""

    #: Sessions that are still in an export that runs, or whose store does not answer.
    waiting: set[str] = field(default_factory=set)
    #: Sessions that are still in an export because of an error.
    errors: dict[str, Exception] = field(default_factory=dict)
    #: Sessions in exports that were left to the next call when the time was up.
    unvisited: set[str] = field(default_factory=set)
    #: The export that was visited last when the time was up; None if all were visited.
    last_export_id: str | None = None


def remove_from_exports(
    runtime: Runtime,
    held: HeldLease,
    workspace_id: str,
    *,
    session_ids: Collection[str],
    after: str | None = None,
    is_time_up: Callable[[], bool] = lambda: False,
) -> SessionsLeftInExports:
    """Remove sessions from the exports that have them; it may be called again.

    Args:
        runtime: the deployment.
        held: lease of the caller's run.
        workspace_id: workspace of the sessions.
        session_ids: sessions whose purge has begun.
        after: id of the export that the call before visited last: this call goes on with the next older one.
        is_time_up: whether to leave further exports to the next call.

    Raises:
        LeaseLost: if another run took the lease.
        Unavailable: if the database or the store of plans does not answer.
    """
    removal = SessionsLeftInExports()
    ids = sorted(session_ids)
    unread = _index_exports_for_removal(runtime, held, workspace_id)
    for export_id, present in _iterate_exports_for_removal(runtime, ids, after):
        if removal.last_export_id is not None and is_time_up():
            with runtime.database.transaction(write=False) as db:
                left = find_indexed_sessions(db, ids)
            removal.unvisited = left - removal.waiting - removal.errors.keys()
            break
        removal.last_export_id = export_id
        held.require_time()
        try:
            with convert_panics():
                result = _remove_from_export(runtime, held, export_id, present)
        except LeaseLost:
            raise
        except Exception as error:  # one damaged export must not keep sessions in the others
            removal.errors |= dict.fromkeys(present, error)
            continue
        if result == "waits":
            removal.waiting.update(present)
    else:
        removal.last_export_id = None
    if unread is not None:  # any of the sessions may be in that export
        others = set(ids) - removal.waiting - removal.unvisited - removal.errors.keys()
        removal.errors |= dict.fromkeys(others, unread)
    return removal


def _iterate_exports_for_removal(
    runtime: Runtime, session_ids: list[str], after: str | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield exports that contain some of the sessions, with those: exports before `after` first."""
    for before, last_id in ((None, ""),) if after is None else ((after, ""), (None, after)):
        while True:
            with runtime.database.transaction(write=False) as db:
                export = find_next_indexed_export(db, session_ids, before=before)
            if export is None or export[0] < last_id:
                break
            yield export
            before = export[0]


def _index_exports_for_removal(runtime: Runtime, held: HeldLease, workspace_id: str) -> Exception | None:
    """Store the sessions of exports whose plans were made by an earlier release.

    Returns:
        The last error of a damaged plan; None if all were read.

    Raises:
        LeaseLost: if another run took the lease.
        Unavailable: if the database or the store of plans does not answer.
    """
    unread: Exception | None = None
    open_transaction = partial(held.transaction, runtime.database)
    with runtime.database.transaction(write=False) as db:
        rows = list(list_unindexed_exports(db, workspace_id))
    for row in rows:
        held.require_time()
        try:
            with convert_panics():
                plan = _read_plan_for_removal(runtime, row)
        except Unavailable:
            raise
        except Exception as error:  # one damaged plan must not keep sessions in the other exports
            log.warning("the plan of export %s is damaged: %r", row.id, error)
            unread = error
            continue
        if plan is not None:
            index_export_sessions(open_transaction, row.id, plan.sessions["session_id"])
        with open_transaction() as db:
            locked = lock_export(db, row.id)
            if locked is not None:
                locked.is_indexed = True
                db.add(locked)
    return unread


def _read_plan_for_removal(runtime: Runtime, row: ExportRow) -> Plan | None:
    try:
        return None if row.plan_key is None else read_stored_export_plan(runtime.blobs, row.plan_key)
    except KeyError:
        return None


def _remove_from_export(runtime: Runtime, held: HeldLease, export_id: str, session_ids: list[str]) -> _Result:
    open_transaction = partial(held.transaction, runtime.database)
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, export_id)
    if row is not None and row.status == "failed" and row.files_left:
        return "waits"  # for the run that removes the files
    # Of failed exports, only hosted ones whose files no run could remove have a plan then.
    if row is None or (row.status == "failed" and row.plan_key is None):
        delete_export_index_rows(open_transaction, export_id)
        return "removed"
    if row.status not in ("completed", "failed"):
        plan = _read_plan_for_removal(runtime, row)
        if plan is None or set(session_ids) & set(plan.sessions["session_id"]):
            return "waits"
        result: _Result = "removed"
    elif row.status == "failed" or row.expired_at is not None or row.plan_key is None:
        at = row.expired_at or clock.now()
        return "removed" if expiry.delete_expired_export_files(runtime, held, export_id, at=at) else "waits"
    elif row.destination["kind"] in _OURS:
        result = _rewrite_export_for_removal(runtime, held, row)
    else:
        result = "out_of_reach"
    if result != "waits":
        with open_transaction() as db:
            delete_session_index_rows(db, export_id, session_ids)
            if result == "out_of_reach":
                # With these rows, by which alone a later run would find the export.
                _count_unreached_export(db, export_id, session_ids)
    return result


def _count_unreached_export(db: DbSession, export_id: str, session_ids: Collection[str]) -> None:
    """Add an export that the service cannot rewrite to the counts of the erasures of its sessions."""
    purges = select(PurgeRow.erasure_id).where(col(PurgeRow.session_id).in_(session_ids))
    # Locked in the order of their ids, as everywhere, and before their erasures.
    locked = purges.order_by(col(PurgeRow.session_id)).with_for_update()
    for erasure_id in sorted({each for each in db.exec(locked) if each is not None}):
        erasure = db.get(ErasureRow, erasure_id, with_for_update=True, populate_existing=True)
        if erasure is not None:
            erasure.exports = sorted({*erasure.exports, export_id})
            db.add(erasure)


def _rewrite_export_for_removal(runtime: Runtime, held: HeldLease, row: ExportRow) -> _Result:
    try:
        with held.transaction(runtime.database) as db:
            owner = f"{held.lease.owner}-{held.fence}"
            claim = claim_export(runtime.database, db, row.id, owner=owner, lease_ms=held.ttl_ms)
    except ExportBusy:
        return "waits"
    try:
        with claim.kept_alive():
            return _rewrite_claimed_for_removal(runtime, claim, row)
    finally:
        claim.give_back()


def _rewrite_claimed_for_removal(runtime: Runtime, claim: ExportClaim, row: ExportRow) -> _Result:
    is_hosted = row.destination["kind"] == "signed_url"
    for attempt in range(1, _TRIES + 1):
        with claim.transaction_in_any_status() as (db, current):
            purged = find_purged_indexed_sessions(db, row.id)
        plan = _read_plan_for_removal(runtime, current)
        try:
            if plan is None:
                raise NotFound("plan")
            rewrite_export(runtime, claim, plan, purged)
            return "removed"
        except LeaseLost:
            raise
        except NotFound as error:
            log.warning("export %s is no dataset of the service any more: %s", row.id, error)
            if is_hosted:
                expiry.delete_claimed_export_files(runtime, claim, at=clock.now())
            return "removed" if is_hosted else "out_of_reach"
        except (DestinationNotAllowed, InvalidDestination) as error:
            log.warning("export %s is not rewritten: %s", row.id, error)
            return "waits" if is_hosted else "out_of_reach"
        except RecorderError as error:
            # Rows of another session may be gone by now, whose purge has begun: it is dropped too.
            log.warning("export %s is not rewritten yet: %s", row.id, error)
        except Exception:
            log.exception("export %s is not rewritten yet", row.id)
        log.info("try %d of %d of export %s failed", attempt, _TRIES, row.id)
    return "waits"
