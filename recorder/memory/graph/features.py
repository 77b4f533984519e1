"""Features of node sequences: binary 1- and 2-grams at three grains, parts of their screens. Spec §2.6.

A feature weighs sqrt(ln(1 + 1/df)): plain inverse document frequency would let rare features dominate. Each
grain counts by how well it separates sessions: where all are on one screen, screens have no weight.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recorder.memory.graph.arrays import Floats, Ints, mark_changes, sort_distinct
from recorder.memory.graph.capacity import FEATURE_BYTES
from recorder.memory.graph.nodes import Node

#: Features are left out that fewer sessions have than this share of all, and than this number.
PRUNE_SHARE, PRUNE_SESSIONS = 0.01, 3
#: Longer sequences are compared by their beginning; they are stored whole.
MAX_COMPARED_NODES = 512
#: Screen, action, node, part of a screen.
GRAINS = 4
#: Of each screen the smallest hashes count, a sample: 16 group sessions as well as 256.
_SCREEN_PARTS = 16
#: Least weight of a grain, so that sessions which are all alike can be compared.
LEAST_GRAIN = 0.001


class FeatureCounts:
    """Numbers of the features of one graph, and the count of sessions that have each."""

    def __init__(self) -> None:
        self.sessions = 0
        self._numbers: dict[tuple[int, int], int] = {}
        #: The grain of each feature, by its number.
        self._grain_of: array[int] = array("q")
        self._counts: Ints = np.zeros(1024, dtype=np.int64)

    def count(self, features: Ints, sessions: int) -> None:
        """Add so many sessions with these features (or take away, if negative)."""
        self.sessions += sessions
        self._counts[features] += sessions

    @property
    def nbytes(self) -> int:
        """Estimated memory of the numbered features."""
        return FEATURE_BYTES * len(self._numbers)

    @property
    def grains(self) -> Ints:
        """Return the grain of each feature, by number."""
        return np.array(self._grain_of, dtype=np.int64)

    def weights(self) -> tuple[Floats, Floats]:
        """Return the present squared weight of each feature, by number, and the weight of each grain."""
        squared = self._squared_weights()
        return squared, self._grain_weights(squared)

    def number_features(self, sequences: Sequence[tuple[int, ...]], nodes: Sequence[Node]) -> list[Ints]:
        """Return the numbered features of each sequence."""
        if not sequences:
            return []
        cut = [np.array(sequence[:MAX_COMPARED_NODES], dtype=np.int64) for sequence in sequences]
        owners = np.repeat(np.arange(len(cut)), [len(sequence) for sequence in cut])
        flat = np.concatenate(cut)
        first_with: dict[int, int] = {}
        acts = np.array([first_with.setdefault(node.act, node.number) for node in nodes], dtype=np.int64)
        screens = np.array([node.screen for node in nodes], dtype=np.int64)
        values = (screens[flat], acts[flat], flat)
        grams = [_list_gram_features(owners, value, grain) for grain, value in enumerate(values)]
        parts = [*grams, _list_screen_parts(owners, flat, nodes)]
        numbered = [self._number_grams(grams, grain) for grain, (_, grams) in enumerate(parts)]
        # One number for each pair: sorting pairs as such is many times slower.
        base = max(len(self._numbers), 1)
        pairs = [owners * base + numbers for (owners, _), numbers in zip(parts, numbered, strict=True)]
        sequence, feature = np.divmod(sort_distinct(np.concatenate(pairs)), base)
        return np.split(feature, np.searchsorted(sequence, np.arange(1, len(cut))))

    def vectors(self, features: Sequence[Ints]) -> Any:
        """Return a sparse matrix with a row of length 1 for each; 0 where all features are left out."""
        # Not at the top: what only records sessions need not load it.
        from scipy.sparse import csr_array

        squared, grain_weights = self.weights()
        count, sizes = len(features), [len(numbers) for numbers in features]
        numbers = np.concatenate([np.zeros(0, dtype=np.int64), *features])
        blocks = np.repeat(np.arange(count) * GRAINS, sizes) + self.grains[numbers]
        weights = squared[numbers]
        norms = np.bincount(blocks, weights=weights, minlength=count * GRAINS).reshape(-1, GRAINS)
        lengths = ((norms > 0) @ grain_weights)[:, np.newaxis]
        scales = np.divide(grain_weights, norms * lengths, out=np.zeros_like(norms), where=norms > 0)
        weights *= scales.ravel()[blocks]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        vectors = csr_array((np.sqrt(weights), numbers, starts), shape=(count, max(len(squared), 1)))
        vectors.eliminate_zeros()
        return vectors

    def _grain_weights(self, squared: Floats) -> Floats:
        """Return how well each grain separates sessions: the share of its weight that two do not share."""
        share = self._counts[: len(squared)] / max(self.sessions, 1)
        by_grain = np.bincount(self.grains, weights=squared * share, minlength=GRAINS)
        common = np.bincount(self.grains, weights=squared * share**2, minlength=GRAINS)
        apart = 1 - np.divide(common, by_grain, out=np.ones(GRAINS), where=by_grain > 0)
        # Rounded: the order in which floats were summed must not decide.
        weights: Floats = np.round(np.maximum(apart, LEAST_GRAIN), 9)
        return weights

    def _squared_weights(self) -> Floats:
        counts = self._counts[: len(self._numbers)]
        weights: Floats = np.log1p(self.sessions / np.maximum(counts, 1))
        is_kept = (counts > 0) & (counts >= min(PRUNE_SHARE * self.sessions, PRUNE_SESSIONS))
        return np.where(is_kept, weights, 0.0)

    def _number_grams(self, grams: Ints, grain: int) -> Ints:
        """Return the feature number of each gram of a grain; new grams get the next numbers."""
        distinct, positions = np.unique(grams, return_inverse=True)
        return np.array(
            [self._find_feature_number(gram, grain) for gram in distinct.tolist()], dtype=np.int64
        )[positions]

    def _find_feature_number(self, gram: int, grain: int) -> int:
        number = self._numbers.setdefault((grain, gram), len(self._numbers))
        if number == len(self._grain_of):
            self._grain_of.append(grain)
        if number >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return number


def _list_gram_features(owners: Ints, values: Ints, grain: int) -> tuple[Ints, Ints]:
    """Return 1- and 2-grams of runs of equal values, packed into one number: grain, first, second."""
    starts = mark_changes(owners, values)
    owners, values = owners[starts], values[starts]
    together: npt.NDArray[np.bool_] = owners[1:] == owners[:-1]
    head = np.int64(grain) << 60
    ones = head | (values + 1) << 30
    twos = head | (values[:-1][together] + 1) << 30 | (values[1:][together] + 1)
    return np.concatenate([owners, owners[1:][together]]), np.concatenate([ones, twos])


def _list_screen_parts(owners: Ints, flat: Ints, nodes: Sequence[Node]) -> tuple[Ints, Ints]:
    """Return the parts of the screens of each owner's nodes."""
    base = max(len(nodes), 1)
    owners, numbers = np.divmod(sort_distinct(owners * base + flat), base)
    used, positions = np.unique(numbers, return_inverse=True)
    parts = [np.array(nodes[number].features[:_SCREEN_PARTS], dtype=np.int64) for number in used.tolist()]
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    repeated = sizes[positions]
    offsets = np.arange(int(repeated.sum())) - np.repeat(np.cumsum(repeated) - repeated, repeated)
    shown = np.concatenate(parts) if parts else flat
    return np.repeat(owners, repeated), shown[np.repeat(starts[positions], repeated) + offsets]
