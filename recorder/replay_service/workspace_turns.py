"""Turns of workspaces in a drain run of replays: the one that used the least time is first. Design §3."""

from collections import Counter
from collections.abc import Sequence

from recorder.models.replay import ReplayRow
from recorder.tenant import Tenant


class WorkspaceTurns:
    """Seconds that the replays of each waiting workspace and mode took in this run."""

    def __init__(self) -> None:
        self._used_s: dict[Tenant, float] = {}

    def sort(self, rows: Sequence[ReplayRow]) -> list[ReplayRow]:
        """Return one replay of each workspace, then the second of each; those that used less time first.

        A workspace that did not wait before has used as much as the others, and precedes its equals.

        Args:
            rows: all replays that are due, in the order in which each workspace's are done.
        """
        before = self._used_s
        waiting = {row.tenant for row in rows}
        least = min((used for tenant, used in before.items() if tenant in waiting), default=0.0)
        self._used_s = {tenant: max(least, before.get(tenant, 0.0)) for tenant in waiting}
        counts: Counter[Tenant] = Counter()
        turns = {}
        for row in rows:
            counts[row.tenant] += 1
            turns[row.id] = (counts[row.tenant], self._used_s[row.tenant], row.tenant in before)
        return sorted(rows, key=lambda row: turns[row.id])

    def add_time(self, tenant: Tenant, seconds: float) -> None:
        """Add the time that a replay of a workspace took."""
        self._used_s[tenant] = self._used_s.get(tenant, 0.0) + seconds
