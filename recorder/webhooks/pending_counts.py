"""Numbers of pending attempts by webhook. Contract §6.

Counting 10,000 attempts takes 3 ms, so a number is counted about once a minute; between two counts it is
changed by what this worker adds and ends.
"""

import secrets
from collections.abc import Collection, Iterable

from cachetools import TLRUCache
from sqlalchemy import ColumnClause, func, literal_column
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.webhook import DeliveryRow

_CACHED = 100_000
#: A number gets at least so old, and up to so many seconds older: not all are counted at the same time.
_AGE_S = 30
_OLDER_S = 60
# As text in the statement: a partial index is not found by a bound value.
_PENDING: ColumnClause[str] = literal_column("'pending'")


class PendingCounts:
    """Numbers of pending attempts of webhooks; what other workers add or end is seen at the next count."""

    def __init__(self) -> None:
        #: One-item lists, since a new value in the cache would get a new age.
        self._counts: TLRUCache[str, list[int]] = TLRUCache(
            _CACHED, ttu=lambda _id, _count, now: now + _AGE_S + secrets.randbelow(_OLDER_S)
        )

    def read(self, db: DbSession, webhook_ids: Collection[str]) -> dict[str, int]:
        """Return the numbers of these webhooks; unknown and old ones are counted."""
        known = {key: count[0] for key in webhook_ids if (count := self._counts.get(key)) is not None}
        unknown = [webhook_id for webhook_id in webhook_ids if webhook_id not in known]
        counted = _count_pending_attempts(db, unknown) if unknown else {}
        for webhook_id, number in counted.items():
            self._counts[webhook_id] = [number]
        return known | counted

    def add(self, webhook_ids: Iterable[str]) -> None:
        """Count an attempt that was added for each of these ids."""
        self._change(webhook_ids, 1)

    def remove(self, webhook_ids: Iterable[str]) -> None:
        """Count an attempt that ended, and that no other one follows, for each of these ids."""
        self._change(webhook_ids, -1)

    def _change(self, webhook_ids: Iterable[str], change: int) -> None:
        """Add to the counts of pending attempts of these webhooks, as far as they are cached."""
        for webhook_id in webhook_ids:
            count = self._counts.get(webhook_id)
            if count is not None:
                count[0] += change


def _count_pending_attempts(db: DbSession, webhook_ids: Collection[str]) -> dict[str, int]:
    is_counted = (col(DeliveryRow.status) == _PENDING, col(DeliveryRow.webhook_id).in_(webhook_ids))
    statement = select(DeliveryRow.webhook_id, func.count()).where(*is_counted)
    counted = dict(db.exec(statement.group_by(DeliveryRow.webhook_id)).all())
    return {webhook_id: counted.get(webhook_id, 0) for webhook_id in webhook_ids}
