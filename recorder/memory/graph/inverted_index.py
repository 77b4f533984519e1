"""An inverted index over sets of features: which earlier sets share how much with a new one."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class InvertedIndex:
    """Numbered sets of integer features; a look-up touches only the sets that share a feature."""

    def __init__(self) -> None:
        self._lists: dict[int, array[int]] = {}
        self._flat: array[int] = array("q")
        self._sizes: array[int] = array("q")

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, features: Sequence[int]) -> None:
        """Keep a set under the next number."""
        number = len(self._sizes)
        for feature in features:
            numbers = self._lists.get(feature)
            if numbers is None:
                numbers = self._lists[feature] = array("q")
            numbers.append(number)
        self._flat.extend(features)
        self._sizes.append(len(features))

    def overlaps(self, features: Sequence[int], weights: Floats | None = None) -> Floats:
        """Return, for every set, the summed weight (default: the number) of the features it shares.

        Args:
            features: the features of a set.
            weights: one for each of `features`.
        """
        postings = [
            (index, self._lists[feature]) for index, feature in enumerate(features) if feature in self._lists
        ]
        if not postings:
            return np.zeros(len(self), dtype=np.float64)
        numbers = np.concatenate([np.frombuffer(numbers, dtype=np.int64) for _, numbers in postings])
        repeated = None
        if weights is not None:
            places = [index for index, _ in postings]
            repeated = np.repeat(weights[places], [len(numbers) for _, numbers in postings])
        return np.bincount(numbers, weights=repeated, minlength=len(self)).astype(np.float64)

    def totals(self, weight_of: Floats | None = None) -> Floats:
        """Return, for every set, the summed weight (default: the number) of its own features.

        Args:
            weight_of: weight by feature; features are then small numbers from 0.
        """
        sizes = np.array(self._sizes, dtype=np.int64)
        if weight_of is None:
            return sizes.astype(np.float64)
        owners = np.repeat(np.arange(len(self)), sizes)
        flat = np.array(self._flat, dtype=np.int64)
        return np.bincount(owners, weights=weight_of[flat], minlength=len(self)).astype(np.float64)
