"""Sealing batches that refer to purged sessions: their rows may reach the lake after the deletion."""

from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.governance import PurgeRow
from recorder.models.operations import SealBatchRow

#: Done batches are kept for a day; an older one cannot name a session that was hidden since.
_BATCHES_SINCE = timedelta(days=2)


class ReferringBatches:
    """Sealing batches that name sessions which are purged."""

    def __init__(self, db: DbSession, purges: list[PurgeRow]) -> None:
        """Read the batches of the sessions' lanes."""
        wanted = {purge.session_id for purge in purges}
        since = min((purge.requested_at for purge in purges), default=clock.now()) - _BATCHES_SINCE
        #: Lake partitions of their rows, by session.
        self.dates: defaultdict[str, set[str]] = defaultdict(set)
        self._open: set[str] = set()
        self._done: list[tuple[str, str, int, int]] = []
        batch = SealBatchRow
        for tenant in {purge.tenant for purge in purges}:
            of_tenant = (batch.workspace_id == tenant.workspace_id, batch.mode == tenant.mode)
            is_recent = (col(batch.created_at) > since) | (batch.state != "done")
            for row in db.exec(select(batch).where(*of_tenant, is_recent)):
                named = wanted.intersection(row.session_ids)
                for session_id in named:
                    self.dates[session_id].add(row.created_at.strftime("%Y-%m-%d"))
                if row.state != "done":
                    self._open |= named
                elif named:
                    self._done.append((row.workspace_id, row.mode, row.slot, row.number))

    def is_open(self, purge: PurgeRow) -> bool:
        """Return whether a batch that is not done yet names the session."""
        return purge.session_id in self._open

    def forget_sessions(self, db: DbSession, session_ids: Collection[str]) -> None:
        """Remove ids from done batches, whose numbers lead from them to anonymous rows of graphs.

        The ids of others stay: a purge that has not come so far yet finds its partitions by them.
        """
        for key in self._done:
            row = db.get(SealBatchRow, key, with_for_update=True, populate_existing=True)
            if row is not None and row.state == "done":
                row.session_ids = [each for each in row.session_ids if each not in session_ids]
                db.add(row)
