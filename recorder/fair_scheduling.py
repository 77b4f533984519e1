"""Fair scheduling among owners, round robin or by cost: much work of one owner delays no other."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
Owner = TypeVar("Owner", bound=Hashable)


class RoundRobinQueue(Generic[_Item]):
    """Queue that serves owners one after another; the items of an owner keep their order."""

    def __init__(self) -> None:
        #: Owners in the order of their turns, each with at least one item.
        self._waiting: dict[str, deque[_Item]] = {}

    def __iter__(self) -> Iterator[_Item]:
        for items in self._waiting.values():
            yield from items

    def list_items(self, owner: str) -> Sequence[_Item]:
        """Return the items of an owner."""
        return self._waiting.get(owner, ())

    def add(self, owner: str, item: _Item) -> None:
        """Add the last item of an owner; an owner without others becomes the last."""
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self, may_take: Callable[[str, _Item], bool] = lambda *_: True) -> tuple[str, _Item] | None:
        """Remove and return the next item, whose owner becomes the last.

        Args:
            may_take: returns whether an item of an owner may be taken now; others are skipped.

        Returns:
            The owner and the item; None if there is none that may be taken.
        """
        for owner, items in self._waiting.items():
            for index, item in enumerate(items):
                if may_take(owner, item):
                    del items[index], self._waiting[owner]
                    if items:
                        self._waiting[owner] = items
                    return owner, item
        return None


def compute_workspace_share(slots: int) -> int:
    """Return how many of some slots one workspace may take: half of them, at least one.

    The other half stays for other workspaces, which then never wait for the work of one alone.
    """
    return max(1, slots // 2)


@dataclass
class _Account:
    """Cost of an owner's work, and the numbers of its last turn and of the moment since when it waits."""

    cost: float
    last_turn: int = 0
    waits_since: int = 0


class LeastCostScheduler(Generic[Owner]):
    """Scheduler that counts the cost of each owner's work; the waiting owner whose work cost least is next.

    Of owners with equal costs, the one whose last turn was longest ago is next, then the one that waits for
    longest. The cost of an owner that no longer waits is remembered while it is higher than the least of
    those that wait.
    """

    def __init__(self) -> None:
        self._waiting: dict[Owner, _Account] = {}
        self._absent: dict[Owner, _Account] = {}
        self._now = 0

    def set_waiting(self, owners: Iterable[Owner]) -> None:
        """Set the owners that wait.

        One that did not wait before has used at least as much as the one that used least, so that it does not
        hold up the others.
        """
        self._now += 1
        waiting = list(dict.fromkeys(owners))
        stayed = [self._waiting[owner] for owner in waiting if owner in self._waiting]
        # If no owner waits any longer, earlier work has delayed none.
        known = self._waiting | self._absent if stayed else {}
        least = _find_least_cost(stayed)
        accounts: dict[Owner, _Account] = {}
        for owner in waiting:
            account = known.pop(owner, None) or _Account(least)
            if owner not in self._waiting:
                account.cost, account.waits_since = max(least, account.cost), self._now
            accounts[owner] = account
        self._waiting = accounts
        self._absent = {owner: account for owner, account in known.items() if account.cost > least}

    def sort_waiting(self) -> list[Owner]:
        """Return the waiting owners in the order of their turns."""
        return sorted(self._waiting, key=self._rank)

    def find_next(self, owners: Iterable[Owner]) -> Owner | None:
        """Return the one of these waiting owners that is next; None if there are none."""
        return min(owners, key=self._rank, default=None)

    def get_cost(self, owner: Owner) -> float:
        """Return the cost of the work of a waiting owner."""
        return self._waiting[owner].cost

    def add_cost(self, owner: Owner, cost: float) -> None:
        """Add the cost of a piece of work of an owner, which had a turn."""
        account = self._waiting.get(owner) or self._absent.get(owner)
        if account is None:
            account = self._absent[owner] = _Account(_find_least_cost(self._waiting.values()))
        self._now += 1
        account.cost += cost
        account.last_turn = self._now

    def _rank(self, owner: Owner) -> tuple[float, int, int]:
        """Return the sort key of a waiting owner."""
        account = self._waiting[owner]
        return account.cost, account.last_turn, account.waits_since


def _find_least_cost(accounts: Iterable[_Account]) -> float:
    """Return the least cost among the accounts of owners."""
    return min((account.cost for account in accounts), default=0.0)
