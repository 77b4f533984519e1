"""Bytes that connections keep in memory because of their clients: a cap for all of them together."""

from collections import defaultdict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class HeldBytes(Generic[Holder]):
    """Bytes of parts of connections, in one process; used from its event loop.

    Beyond the cap, the owner that holds most loses the part that it has held longest, until an eighth
    of the cap is free.
    """

    def __init__(self, most: int, *, measure: Callable[[Holder], int], end: Callable[[Holder], None]) -> None:
        """Create it without parts.

        Args:
            most: bytes of all parts together.
            measure: returns the bytes that a part holds now.
            end: frees a part.
        """
        self._most = most
        self._measure = measure
        self._end = end
        #: Owner and bytes of each part; the oldest is the first.
        self._held: dict[Holder, tuple[str, int]] = {}
        self._total = 0

    def hold(self, part: Holder, owner: str) -> None:
        """Count the bytes of a part until `drop`; a part that was counted before keeps its position."""
        count = self._measure(part)
        self._total += count - self._held.get(part, ("", 0))[1]
        self._held[part] = (owner, count)
        if self._total > self._most:
            self._end_largest()

    def drop(self, part: Holder) -> None:
        """Count a part no longer, if it was counted."""
        self._total -= self._held.pop(part, ("", 0))[1]

    def _end_largest(self) -> None:
        """Measure all parts, since clients may have taken some bytes; if they are too many, free an eighth.

        To free no more than the excess would cost a measurement of all parts for each part that follows.
        """
        totals: dict[str, int] = {}
        parts_of: defaultdict[str, deque[Holder]] = defaultdict(deque)
        for part, (owner, _) in self._held.items():
            count = self._measure(part)
            self._held[part] = (owner, count)
            totals[owner] = totals.get(owner, 0) + count
            parts_of[owner].append(part)
        self._total = sum(totals.values())
        if self._total <= self._most:
            return
        largest_first = [(-total, owner) for owner, total in totals.items()]
        heapify(largest_first)
        while self._total > self._most * 7 // 8:
            total, owner = heappop(largest_first)
            oldest = parts_of[owner].popleft()
            heappush(largest_first, (total + self._held[oldest][1], owner))
            self.drop(oldest)
            self._end(oldest)
