"""Removal of purged sessions from all exports that have them. Spec §4.5; contract §2, §7.

Hosted datasets and those in folders of this machine are rewritten; clients' buckets are out of reach. A
running export drops the sessions by itself, and the purge waits for that.
"""

import logging
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from recorder import clock
from recorder.errors import DestinationNotAllowed, InvalidDestination, NotFound, RecorderError
from recorder.exports.planning.plan import Plan
from recorder.exports.results import expiry
from recorder.exports.results.rewriting import rewrite_export
from recorder.exports.runner.export_lease import ExportBusy, ExportClaim, claim_export, lock_export
from recorder.exports.runner.session_index import (
    delete_export_index_rows,
    delete_session_index_rows,
    find_indexed_exports,
    find_purged_indexed_sessions,
    index_export_sessions,
    list_unindexed_exports,
)
from recorder.exports.runner.shard_store import read_stored_export_plan
from recorder.models.export import ExportRow
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
    #: Exports whose files the service cannot rewrite, by session.
    out_of_reach: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def remove_from_exports(
    runtime: Runtime, held: HeldLease, workspace_id: str, *, session_ids: Collection[str]
) -> SessionsLeftInExports:
    """Remove sessions from the exports that have them; it may be called again.

    Args:
        runtime: the deployment.
        held: lease of the caller's run.
        workspace_id: workspace of the sessions.
        session_ids: sessions whose purge has begun.

    Raises:
        LeaseLost: if another run took the lease.
        Unavailable: if the database or the store of plans does not answer.
    """
    removal = SessionsLeftInExports()
    _index_exports_for_removal(runtime, held, workspace_id)
    ids = sorted(session_ids)
    with runtime.database.transaction(write=False) as db:
        exports = find_indexed_exports(db, ids)
    for export_id, present in exports.items():
        held.require_time()
        try:
            result = _remove_from_export(runtime, held, export_id, present)
        except LeaseLost:
            raise
        except Exception as error:  # one damaged export must not keep sessions in the others
            removal.errors |= dict.fromkeys(present, error)
            continue
        match result:
            case "waits":
                removal.waiting.update(present)
            case "out_of_reach":
                for session_id in present:
                    removal.out_of_reach[session_id].add(export_id)
    return removal


def _index_exports_for_removal(runtime: Runtime, held: HeldLease, workspace_id: str) -> None:
    """Store the sessions of exports whose plans were made by an earlier release."""
    open_transaction = partial(held.transaction, runtime.database)
    with runtime.database.transaction(write=False) as db:
        rows = list(list_unindexed_exports(db, workspace_id))
    for row in rows:
        plan = _read_plan_for_removal(runtime, row)
        if plan is not None:
            index_export_sessions(open_transaction, row.id, plan.sessions["session_id"])
        with open_transaction() as db:
            locked = lock_export(db, row.id)
            if locked is not None:
                locked.is_indexed = True
                db.add(locked)


def _read_plan_for_removal(runtime: Runtime, row: ExportRow) -> Plan | None:
    try:
        return None if row.plan_key is None else read_stored_export_plan(runtime.blobs, row.plan_key)
    except KeyError:
        return None


def _remove_from_export(runtime: Runtime, held: HeldLease, export_id: str, session_ids: list[str]) -> _Result:
    open_transaction = partial(held.transaction, runtime.database)
    with runtime.database.transaction(write=False) as db:
        row = db.get(ExportRow, export_id)
    if row is None or (row.status == "failed" and not row.files_left):
        delete_export_index_rows(open_transaction, export_id)
        return "removed"
    if row.status == "failed":
        return "waits"  # for the run that removes the files
    if row.status != "completed":
        plan = _read_plan_for_removal(runtime, row)
        if plan is None or set(session_ids) & set(plan.sessions["session_id"]):
            return "waits"
        result: _Result = "removed"
    elif row.expired_at is not None or row.plan_key is None:
        at = row.expired_at or clock.now()
        return "removed" if expiry.delete_expired_export_files(runtime, held, export_id, at=at) else "waits"
    elif row.destination["kind"] in _OURS:
        result = _rewrite_export_for_removal(runtime, held, row)
    else:
        result = "out_of_reach"
    if result != "waits":
        with open_transaction() as db:
            delete_session_index_rows(db, export_id, session_ids)
    return result


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
            log.warning("export %s is no dataset of ours any more: %s", row.id, error)
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
