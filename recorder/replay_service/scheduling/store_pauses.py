"""Replays and recoveries of a replay drain run that wait because a store did not answer."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from recorder.errors import Unavailable
from recorder.tenant import Tenant
from recorder.workspace_scheduler import TenantRow

#: Time for a store to answer again.
STORE_TIME = timedelta(minutes=10)
_STORE_S = STORE_TIME.total_seconds()
#: Message of the error after that time.
STORE_TIME_OVER = (
    "A store did not answer, or a stored file was missing or damaged, "
    f"for {STORE_TIME.seconds // 60} minutes; replay it again."
)
#: Pauses after a store did not answer: of the replay or recovery, and of its workspace and mode.
_ROW_PAUSE_S, _TENANT_PAUSE_S = 30.0, 10.0
#: Rows in a pause at a time, in all and of one workspace and mode.
_MOST_PAUSED, _MOST_OF_TENANT = 1_000, 500
#: A row that was not tried for so long after its pause is forgotten: it was cancelled or deleted.
_FORGOTTEN_S = 3_600.0


@dataclass
class _Pause:
    """Pause of a row, with the times of its first failed read and of its next attempt."""

    tenant: Tenant
    since_s: float
    until_s: float


class StorePauses:
    """Rows that wait for a store, each with the time of its next attempt, and their workspaces."""

    def __init__(self, *, read_clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without pauses.

        Args:
            read_clock: returns the seconds of a monotonic clock.
        """
        self._read_clock = read_clock
        self._pauses: dict[str, _Pause] = {}
        #: When the pauses of workspaces end.
        self._tenants: dict[Tenant, float] = {}

    def list_ids(self) -> list[str]:
        """Return the ids of the rows whose next attempt is not due."""
        return [row_id for row_id, _ in self._list_waiting()]

    def list_tenants(self) -> list[Tenant]:
        """Return the workspaces and modes that wait, those of which many rows wait among them."""
        now_s = self._read_clock()
        self._tenants = {tenant: until_s for tenant, until_s in self._tenants.items() if until_s > now_s}
        counts = Counter(pause.tenant for _, pause in self._list_waiting())
        full = (tenant for tenant, count in counts.items() if count >= _MOST_OF_TENANT)
        return list(dict.fromkeys([*self._tenants, *full]))

    def add_pause(self, row: TenantRow) -> None:
        """Let a row wait until its next attempt, and its workspace for a shorter time.

        Raises:
            Unavailable: if many rows of several workspaces wait for a store.
        """
        waiting = self._list_waiting()
        if len(waiting) >= _MOST_PAUSED and {pause.tenant for _, pause in waiting} - {row.tenant}:
            raise Unavailable("The blob store")
        now_s = self._read_clock()
        before = self._pauses.get(row.id)
        since_s = now_s if before is None else before.since_s
        self._pauses[row.id] = _Pause(row.tenant, since_s, now_s + _ROW_PAUSE_S)
        self._tenants[row.tenant] = now_s + _TENANT_PAUSE_S

    def has_waited(self, row_id: str) -> bool:
        """Return whether the first failed read of a row was as long ago as a store is given."""
        pause = self._pauses.get(row_id)
        return pause is not None and self._read_clock() - pause.since_s >= _STORE_S

    def forget(self, row_id: str) -> None:
        """Forget a row: it ended, or its store answered."""
        self._pauses.pop(row_id, None)

    def _list_waiting(self) -> list[tuple[str, _Pause]]:
        """Return the rows whose next attempt is not due; forget those that were cancelled or deleted."""
        now_s = self._read_clock()
        self._pauses = {
            row_id: pause for row_id, pause in self._pauses.items() if pause.until_s + _FORGOTTEN_S > now_s
        }
        return [(row_id, pause) for row_id, pause in self._pauses.items() if pause.until_s > now_s]
