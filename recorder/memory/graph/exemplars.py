"""Exemplar screens of nodes: which of them is most like the screen of a new micro-state. Spec §2.6."""

from collections.abc import Sequence

import numpy as np

from recorder.memory.graph.arrays import Floats
from recorder.memory.graph.inverted_index import InvertedIndex

#: Jaccard similarity of two screens from which on they are one (the knee of the measurements: .907 NMI).
SCREEN_JACCARD = 0.60
#: Up to so many exemplars are compared one by one.
_FEW_EXEMPLARS = 8


class ExemplarIndex:
    """At most so many exemplar screens, the oldest, searched for the nearest one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.numbers: list[int] = []
        #: The screens while they are few, and their postings from then on: most acts have few exemplars.
        self._few: list[Sequence[int]] = []
        self._postings: InvertedIndex | None = None
        #: Number of postings that were read so far.
        self.comparisons = 0

    def nearest(self, features: Sequence[int], jaccard_min: float = SCREEN_JACCARD) -> int | None:
        """Return the number of the most similar exemplar above the threshold; of several, the oldest."""
        if not self.numbers:
            return None
        shared, totals = self._compare(features)
        union = totals + len(features) - shared
        # Two screens of which nothing is known are alike.
        jaccard = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
        best = int(np.argmax(jaccard))
        return self.numbers[best] if jaccard[best] >= jaccard_min else None

    def add(self, number: int, features: Sequence[int]) -> int:
        """Keep an exemplar if there is room; return the estimated memory that it takes."""
        if len(self.numbers) >= self._most:
            return 0
        self.numbers.append(number)
        if self._postings is not None:
            before = self._postings.nbytes
            self._postings.add(features)
            return self._postings.nbytes - before
        self._few.append(features)
        if len(self._few) <= _FEW_EXEMPLARS:
            return 0
        self._postings = InvertedIndex()
        for few in self._few:
            self._postings.add(few)
        self._few.clear()
        return self._postings.nbytes

    def _compare(self, features: Sequence[int]) -> tuple[Floats, Floats]:
        """Return for each exemplar the number of features that it shares, and that it has."""
        if self._postings is None:
            wanted = frozenset(features)
            shared = np.array([len(wanted.intersection(few)) for few in self._few], dtype=np.float64)
            return shared, np.array([len(few) for few in self._few], dtype=np.float64)
        shared = self._postings.overlaps(features)
        self.comparisons += int(shared.sum())
        return shared, self._postings.totals()
