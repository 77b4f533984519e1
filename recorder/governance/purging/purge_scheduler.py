"""Scheduler of due purges: hard deletes first, and workspaces by the time that they used. Contract §2.

A hard delete has five minutes, and one workspace may have a million purges of its retention. So each round
works on purges of one workspace and mode, and the next one is chosen after it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.governance import OPEN_HARD_DELETE, OPEN_PURGE, PurgeRow
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.waiting_rows import WaitingRows
from recorder.workspace_scheduler import WorkspaceScheduler

#: Purges of one round: their lake rows are deleted together, so that each file is rewritten once.
_AT_ONCE = 2_000

_PURGES = WaitingRows(PurgeRow, OPEN_PURGE, "due_at", is_timed=True, key="session_id", is_of_active=False)
_HARD_DELETES = replace(_PURGES, condition=OPEN_HARD_DELETE)


class PurgeScheduler:
    """Scheduler that chooses the purges of each round of one run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        #: Apart, so that many purges of a workspace do not delay its hard deletes.
        self._schedulers = {_PURGES: WorkspaceScheduler(), _HARD_DELETES: WorkspaceScheduler()}
        self._last = _PURGES

    @contextmanager
    def take(self) -> Iterator[list[PurgeRow]]:
        """Yield due purges of one workspace and mode for a round, which is the block; none if none is due."""
        with self._runtime.database.transaction(write=False) as db:
            rows, purges = self._choose_purges(db)
        began_s = time.monotonic()
        try:
            yield purges
        finally:
            self._last = rows
            if purges:
                self._schedulers[rows].add_time(purges[0].tenant, time.monotonic() - began_s)

    def _choose_purges(self, db: DbSession) -> tuple[WaitingRows[PurgeRow], list[PurgeRow]]:
        """Return due purges of the tenant that used the least time, every second round from hard deletes."""
        # Every second round is of all purges: a flood of hard deletes must not delay the others.
        for rows in (_HARD_DELETES, _PURGES) if self._last is _PURGES else (_PURGES,):
            tenant = self._schedulers[rows].choose(rows.list_tenants(db))
            if tenant is not None:
                due = select(PurgeRow).where(*in_tenant(PurgeRow, tenant), rows.make_conditions())
                due = due.order_by(col(PurgeRow.due_at), col(PurgeRow.session_id))
                return rows, list(db.exec(due.limit(_AT_ONCE)))
        return _PURGES, []
