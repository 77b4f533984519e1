"""Scheduler of the workspaces of one run: the one that used the least time is next. Design §3."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from recorder.fair_scheduling import LeastCostScheduler
from recorder.tenant import Tenant


class TenantRow(Protocol):
    """Row of a workspace and mode."""

    id: str

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the row."""


_AnyRow = TypeVar("_AnyRow", bound=TenantRow)


class WorkspaceScheduler(LeastCostScheduler[Tenant]):
    """Scheduler whose costs are the seconds that the work of each workspace and mode took in this run."""

    def __init__(self) -> None:
        super().__init__()
        #: Seconds of a piece of work, the newest pieces more than the earlier ones.
        self._piece_s: dict[Tenant, float] = {}

    def set_waiting(self, owners: Iterable[Tenant]) -> None:
        """Set the workspaces that wait."""
        super().set_waiting(owners)
        self._piece_s = {tenant: self._piece_s.get(tenant, 0.0) for tenant in self.sort_waiting()}

    def choose(self, tenants: Iterable[Tenant]) -> Tenant | None:
        """Return the one of all waiting workspaces that is next; None if there are none."""
        self.set_waiting(tenants)
        return next(iter(self.sort_waiting()), None)

    def sort(self, rows: Sequence[_AnyRow]) -> list[_AnyRow]:
        """Return rows in the order in which all workspaces get the same time.

        The work on each row begins when the workspace has used what it used so far, and what its rows before
        this one will take.

        Args:
            rows: all rows that are due, in the order in which each workspace's are done.
        """
        self.set_waiting(row.tenant for row in rows)
        ranks = {tenant: rank for rank, tenant in enumerate(self.sort_waiting())}
        counts: Counter[Tenant] = Counter()
        turns = {}
        for row in rows:
            begins_s = self.get_cost(row.tenant) + counts[row.tenant] * self._piece_s[row.tenant]
            counts[row.tenant] += 1
            turns[row.id] = (begins_s, counts[row.tenant], ranks[row.tenant])
        return sorted(rows, key=lambda row: turns[row.id])

    def add_time(self, tenant: Tenant, seconds: float) -> None:
        """Add the time that a piece of work of a workspace took."""
        self.add_cost(tenant, seconds)
        self._piece_s[tenant] = ((self._piece_s.get(tenant) or seconds) + seconds) / 2
