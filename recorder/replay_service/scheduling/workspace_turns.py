"""Turns of workspaces in a drain run: the one that used the least time is first. Design §3."""

from collections import Counter
from collections.abc import Collection, Sequence

from recorder.models.replay import ReplayRow
from recorder.tenant import Tenant


class WorkspaceTurns:
    """Seconds that the work of each waiting workspace and mode took in this run."""

    def __init__(self) -> None:
        self._used_s: dict[Tenant, float] = {}
        #: Seconds of a piece of work, the newest pieces more than the earlier ones.
        self._piece_s: dict[Tenant, float] = {}

    def set_waiting(self, tenants: Collection[Tenant]) -> None:
        """Forget workspaces that do not wait any more, and add those that did not wait before.

        A new one has used as much as the one that used least, so that it does not hold up the others.
        """
        waiting = set(tenants)
        least = min((used for tenant, used in self._used_s.items() if tenant in waiting), default=0.0)
        self._used_s = {tenant: max(least, self._used_s.get(tenant, 0.0)) for tenant in waiting}
        self._piece_s = {tenant: self._piece_s.get(tenant, 0.0) for tenant in waiting}

    def find_next(self, tenants: Sequence[Tenant]) -> Tenant | None:
        """Return the one of these waiting workspaces that used the least time; None if there are none."""
        return min(tenants, key=self._used_s.__getitem__, default=None)

    def sort(self, rows: Sequence[ReplayRow]) -> list[ReplayRow]:
        """Return the replays in the order in which all workspaces get the same time.

        Each replay begins when the workspace has used what it used so far, and what its replays before this
        one will take. A workspace that did not wait before precedes those that used as much.

        Args:
            rows: all replays that are due, in the order in which each workspace's are done.
        """
        before = self._used_s
        self.set_waiting({row.tenant for row in rows})
        counts: Counter[Tenant] = Counter()
        turns = {}
        for row in rows:
            begins_s = self._used_s[row.tenant] + counts[row.tenant] * self._piece_s[row.tenant]
            counts[row.tenant] += 1
            turns[row.id] = (begins_s, counts[row.tenant], row.tenant in before)
        return sorted(rows, key=lambda row: turns[row.id])

    def add_time(self, tenant: Tenant, seconds: float) -> None:
        """Add the time that a piece of work of a workspace took."""
        self._used_s[tenant] = self._used_s.get(tenant, 0.0) + seconds
        self._piece_s[tenant] = ((self._piece_s.get(tenant) or seconds) + seconds) / 2
