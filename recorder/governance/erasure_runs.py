"""Runs on open erasures: searches, a range at a time, and ends of those whose purges have ended. Contract §7.

Workspaces take turns by the time that their searches used. An erasure that fails, whatever its error, stops
no other one.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import and_, col, delete, exists, or_, select

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.governance.content_inventory import list_inventory_tables_to_rewrite
from recorder.governance.erasure_search import make_subject_matcher, search_next_range
from recorder.governance.erasure_subjects import SubjectMatcher
from recorder.governance.erasures import describe_erasure
from recorder.governance.purging.due_steps import LONGEST_REQUEST
from recorder.models.governance import ErasureNodeRow, ErasureRow, PurgeRow, is_purge_open
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, lease_for_block
from recorder.tenant import Tenant
from recorder.workspace_scheduler import WorkspaceScheduler

log = logging.getLogger("recorder.erasures")

LEASE = "erasures"
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
#: Rows of one transaction: on SQLite no other request can write while it lasts.
_NODES_CHUNK = 5_000
_HELD = {
    "code": "held",
    "message": "Some sessions are under a legal hold and were left alone. Ask again when the hold has ended.",
}


def has_unfinished_erasures(db: DbSession) -> bool:
    """Return whether a search of an erasure is due, or one waits neither for a purge nor for a table."""
    waiting = select(ErasureRow.id).where(or_(_make_search_condition(), _make_ready_condition()))
    return db.exec(waiting.limit(1)).first() is not None


class ErasureRun:
    """Work of one run on open erasures, under its lease."""

    def __init__(
        self,
        runtime: Runtime,
        held: HeldLease,
        remove_texts: Callable[[], bool],
        *,
        longest_request: timedelta = LONGEST_REQUEST,
    ) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            held: lease of the run.
            remove_texts: removes what quotes recorded content outside the list of purges; called once before
                erasures end. They stay open where it returns False.
            longest_request: time after its request when an erasure is searched again.
        """
        self._runtime = runtime
        self._held = held
        self._remove_texts = remove_texts
        self._longest_request = longest_request
        self._scheduler = WorkspaceScheduler()
        self._matchers: dict[str, SubjectMatcher] = {}
        #: Errors of erasures that this run does not try again, by id.
        self.errors: dict[str, Exception] = {}
        #: Number of erasures that ended.
        self.ended = 0

    def search_next_range(self) -> bool:
        """Search one range of one erasure; return False if no search is due."""
        with self._runtime.database.transaction(write=False) as db:
            row = self._choose_erasure(db)
        if row is None:
            return False
        began_s = time.monotonic()
        with self._note_error(row.id):
            matcher = self._matchers.get(row.id) or make_subject_matcher(self._runtime, row)
            self._matchers[row.id] = matcher
            if not search_next_range(
                self._runtime, self._held, row, matcher, longest_request=self._longest_request
            ):
                del self._matchers[row.id]
        self._scheduler.add_time(Tenant(row.workspace_id, row.mode), time.monotonic() - began_s)
        return True

    def end_erasures(self) -> None:
        """End the erasures whose purges have ended, and whose tables are rewritten."""
        with self._runtime.database.transaction(write=False) as db:
            ready = list(
                db.exec(select(ErasureRow.id).where(_make_ready_condition()).order_by(col(ErasureRow.id)))
            )
        texts_gone: bool | None = None
        for erasure_id in ready:
            with self._note_error(erasure_id):
                if texts_gone is None and _are_purges_over(self._runtime, erasure_id):
                    texts_gone = self._remove_texts()
                if texts_gone is not False:
                    self.ended += _end_erasure(self._runtime, self._held, erasure_id)
        if self.ended:
            # Versions of the rows that are deleted now stay in the log until it is emptied. What is read at
            # the moment keeps it; then the next purge or rewrite empties it.
            self._runtime.database.truncate_log()

    def _choose_erasure(self, db: DbSession) -> ErasureRow | None:
        """Return the first erasure with a due search, of the workspace and mode that used the least time."""
        row = ErasureRow
        first = func.min(row.id)
        is_left = (_make_search_condition(), col(row.id).not_in(list(self.errors)))
        statement = select(row.workspace_id, row.mode, first).where(*is_left)
        groups = db.exec(statement.group_by(row.workspace_id, row.mode).order_by(first)).all()
        ids = {Tenant(workspace_id, mode): erasure_id for workspace_id, mode, erasure_id in groups}
        tenant = self._scheduler.choose(list(ids))
        return None if tenant is None else db.get_one(ErasureRow, ids[tenant])

    @contextmanager
    def _note_error(self, erasure_id: str) -> Iterator[None]:
        """Keep the error of an erasure instead of raising it.

        Raises:
            LeaseLost: if another run took over.
        """
        try:
            yield
        except LeaseLost:
            raise
        except Exception as error:
            log.warning("erasure %s failed and is tried again: %r", erasure_id, error)
            self._matchers.pop(erasure_id, None)
            self.errors[erasure_id] = error


@contextmanager
def open_erasure_run(
    runtime: Runtime,
    owner: str,
    *,
    remove_texts: Callable[[], bool] = lambda: True,
    longest_request: timedelta = LONGEST_REQUEST,
    lease_ms: int = _LEASE_MS,
) -> Iterator[ErasureRun | None]:
    """Hold the lease of erasures for the block; yield None while another run is at work.

    Args:
        runtime: the deployment.
        owner: name of the run.
        remove_texts: see `ErasureRun`.
        longest_request: see `ErasureRun`.
        lease_ms: duration of the lease.
    """
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=lease_ms) as held:
        if held is None:
            yield None
            return
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            yield ErasureRun(runtime, held, remove_texts, longest_request=longest_request)


def run_erasures(runtime: Runtime, owner: str, *, longest_request: timedelta = LONGEST_REQUEST) -> int | None:
    """Search the sessions of open erasures, and end those whose purges have ended.

    Args:
        runtime: the deployment.
        owner: name of the run.
        longest_request: see `ErasureRun`.

    Returns:
        The number of erasures that ended; None if another run is at work.

    Raises:
        LeaseLost: if another run took over.
        Unavailable: if the database does not answer; the next run goes on.
        Exception: the first error of an erasure, once all others were tried.
    """
    with open_erasure_run(runtime, owner, longest_request=longest_request) as run:
        if run is None:
            return None
        while run.search_next_range():
            pass
        run.end_erasures()
        for error in run.errors.values():
            raise error
        return run.ended


def end_erasures(runtime: Runtime, owner: str) -> int:
    """End the erasures whose tables are rewritten; return their number. One that fails is tried again."""
    with open_erasure_run(runtime, owner) as run:
        if run is None:
            return 0
        run.end_erasures()
        return run.ended


def _make_search_condition() -> Any:
    """Return the condition that a search of an erasure is due."""
    is_due = or_(col(ErasureRow.second_search_at).is_(None), col(ErasureRow.second_search_at) <= clock.now())
    return and_(col(ErasureRow.is_searched).is_(False), is_due)


def _make_ready_condition() -> Any:
    """Return the condition that an erasure waits neither for a search, nor for a purge, nor for a table."""
    stale = func.coalesce(ErasureRow.stale_tables, "")
    return and_(col(ErasureRow.is_searched), ~_make_erasure_purge_condition(), stale == "")


def _make_erasure_purge_condition() -> Any:
    """Return the condition that an erasure waits for purges: its own, and those that hid sessions from it.

    These began before the searches ended, which found no rows that they had deleted. Each kind has an index.
    """
    searched_at = func.coalesce(ErasureRow.second_search_at, ErasureRow.created_at)
    is_own = col(PurgeRow.erasure_id) == ErasureRow.id
    is_earlier = and_(
        col(PurgeRow.workspace_id) == ErasureRow.workspace_id,
        or_(col(PurgeRow.mode) == ErasureRow.mode, col(ErasureRow.mode) == "live"),
        col(PurgeRow.requested_at) <= searched_at,
    )
    return or_(exists().where(is_purge_open(), is_own), exists().where(is_purge_open(), is_earlier))


def _are_purges_over(runtime: Runtime, erasure_id: str) -> bool:
    """Return whether an erasure found sessions, all are purged, and its table rewrites are not requested."""
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(ErasureRow, erasure_id)
        has_sessions = row.counts.get("sessions", 0) > 0
        is_over = row.is_searched and row.stale_tables is None and not _is_erasure_purging(db, erasure_id)
        return has_sessions and is_over


def _is_erasure_purging(db: DbSession, erasure_id: str) -> bool:
    purging = select(ErasureRow.id).where(ErasureRow.id == erasure_id, _make_erasure_purge_condition())
    return db.exec(purging).first() is not None


def _end_erasure(runtime: Runtime, held: HeldLease, erasure_id: str) -> bool:
    """End an erasure whose sessions are all purged, and their tables rewritten; return whether it ended."""
    with runtime.database.transaction(write=False) as db:
        if not db.get_one(ErasureRow, erasure_id).is_searched or _is_erasure_purging(db, erasure_id):
            return False
    # Before the tables are rewritten, so that no dead row names them either.
    _delete_erasure_nodes(runtime, held, erasure_id)
    with held.transaction(runtime.database) as db:
        row = db.get_one(ErasureRow, erasure_id, populate_existing=True)
        if _is_erasure_purging(db, erasure_id):
            return False
        is_sqlite = runtime.database.is_sqlite
        if row.stale_tables is None and not (is_sqlite and not row.counts.get("sessions")):
            # Rewritten pages must not hold an earlier version of this row with the subject, or with ids of
            # sessions, which an earlier release left in it.
            row.subject, row.newest_id, row.searched_id = b"", None, None
            row.stale_tables = " ".join(list_inventory_tables_to_rewrite(is_sqlite=is_sqlite))
            db.add(row)
        if row.stale_tables:
            return False
        ended = {**describe_erasure(row).model_dump(mode="json"), "completed_at": clock.to_iso(clock.now())}
        ended |= {"status": "failed", "error": _HELD} if row.held else {"status": "completed"}
        # The mode of the request: a test key reads back what test keys asked for.
        origin = Origin(row.workspace_id, "system", "privacy", mode=row.mode)
        record_audit_entry(
            db, origin, "privacy.erase", resource_type="erasure", resource_id=erasure_id, details=ended
        )
        db.delete(row)
        return True


def _delete_erasure_nodes(runtime: Runtime, held: HeldLease, erasure_id: str) -> None:
    """Delete the nodes of an erasure in short transactions: its counts have their number."""
    row = ErasureNodeRow
    some = select(row.node_id).where(row.erasure_id == erasure_id).limit(_NODES_CHUNK)
    chosen = (col(row.erasure_id) == erasure_id, col(row.node_id).in_(some))
    deleted = _NODES_CHUNK
    while deleted == _NODES_CHUNK:
        with held.transaction(runtime.database) as db:
            deleted = db.exec(delete(row).where(*chosen)).rowcount
