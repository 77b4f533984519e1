"""An inverted index over sets of features: which earlier sets share how much with a new one."""

from array import array
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from recorder.memory.graph.arrays import Floats

#: Estimated bytes of a list of one number under a feature, and of each further number.
_LIST_BYTES, _POSTING_BYTES = 200, 8


class InvertedIndex:
    """Numbered sets of integer features; a look-up touches only the sets that share a feature."""

    def __init__(self) -> None:
        self._lists: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._sizes: array[int] = array("q")
        self._postings = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def nbytes(self) -> int:
        """Estimated memory."""
        return _LIST_BYTES * len(self._lists) + _POSTING_BYTES * self._postings

    def add(self, features: Sequence[int]) -> None:
        """Keep a set under the next number."""
        number = len(self._sizes)
        for feature in features:
            self._lists[feature].append(number)
        self._sizes.append(len(features))
        self._postings += len(features)

    def overlaps(self, features: Sequence[int]) -> Floats:
        """Return, for every set, the number of the features it shares."""
        joined = b"".join(self._lists[feature] for feature in features if feature in self._lists)
        return np.bincount(np.frombuffer(joined, dtype=np.int64), minlength=len(self)).astype(np.float64)

    def totals(self) -> Floats:
        """Return the number of features of every set."""
        return np.array(self._sizes, dtype=np.float64)
