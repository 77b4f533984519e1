"""Sealing batches that refer to purged sessions: their rows may reach the lake after the deletion."""

from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta
from itertools import product

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.governance import PurgeRow
from recorder.models.operations import OPEN_BATCH, SealBatchRow
from recorder.storage.conditions import in_tenant
from recorder.storage.lake_schemas import format_lake_date
from recorder.storage.list_pages import stream_rows

#: Done batches are kept for a day; an older one cannot name a session that was hidden since.
_BATCHES_SINCE = timedelta(days=2)


class ReferringBatches:
    """Sealing batches that name sessions which are purged."""

    def __init__(self, db: DbSession, purges: list[PurgeRow]) -> None:
        """Read the batches of the sessions' workspaces and modes.

        They may name millions of other sessions: they are read as a stream, and only these sessions are kept.
        """
        wanted = {purge.session_id for purge in purges}
        since = min((purge.requested_at for purge in purges), default=clock.now()) - _BATCHES_SINCE
        #: Lake partitions of their rows, by session.
        self.dates: defaultdict[str, set[str]] = defaultdict(set)
        self._open: set[str] = set()
        self._done: list[tuple[str, str, int, int]] = []
        batch = SealBatchRow
        columns = select(batch.slot, batch.number, batch.created_at, batch.session_ids)
        done = columns.where(batch.state == "done", col(batch.created_at) > since)
        # In the order of their index, which they are read by.
        not_done = columns.where(OPEN_BATCH).order_by(col(batch.slot), col(batch.number))
        for tenant, part in product({purge.tenant for purge in purges}, (done, not_done)):
            statement = part.where(*in_tenant(batch, tenant))
            for slot, number, created_at, session_ids in stream_rows(db, statement):
                named = wanted.intersection(session_ids)
                for session_id in named:
                    self.dates[session_id].add(format_lake_date(created_at))
                if part is not_done:
                    self._open |= named
                elif named:
                    self._done.append((tenant.workspace_id, tenant.mode, slot, number))

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
