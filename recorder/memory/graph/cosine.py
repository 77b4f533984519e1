"""Cosine similarity of node sequences over binary 1- and 2-grams at three grains. Spec §2.6.

A feature weighs sqrt(ln(1 + 1/df)): plain inverse document frequency would let rare features dominate. Each
grain counts by how well it separates sessions: where all are on one screen, screens have no weight.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recorder.memory.graph.inverted_index import Floats, Ints, InvertedIndex
from recorder.memory.graph.nodes import Node

#: Features of fewer sessions than this share are left out, once there are so many sessions.
PRUNE_SHARE, PRUNE_SESSIONS = 0.01, 200
#: Longer sequences are compared by their beginning; they are stored whole.
MAX_COMPARED_NODES = 512
#: Screen, action, node.
GRAINS = 3
#: Least weight of a grain, so that sessions which are all alike can be compared.
LEAST_GRAIN = 0.001

Features = tuple[Ints, Ints, Ints]


class FeatureCounts:
    """Numbers the features of one graph, and counts the sessions that have each."""

    def __init__(self) -> None:
        self.sessions = 0
        self._numbers: dict[int, int] = {}
        #: The grain of each feature, by its number.
        self._grain_of: array[int] = array("q")
        self._counts: Ints = np.zeros(1024, dtype=np.int64)

    def count(self, features: Features, sessions: int) -> None:
        """Add so many sessions with these features (or take away, if negative)."""
        self.sessions += sessions
        for numbers in features:
            self._counts[numbers] += sessions

    def weights(self) -> tuple[Floats, Floats]:
        """Return the present squared weight of each feature, by number, and the weight of each grain."""
        squared = self._squared_weights()
        return squared, self._grain_weights(squared)

    def of(self, sequences: Sequence[tuple[int, ...]], nodes: Sequence[Node]) -> list[Features]:
        """Return the numbered features of each sequence, one sorted array for each grain."""
        if not sequences:
            return []
        cut = [np.array(sequence[:MAX_COMPARED_NODES], dtype=np.int64) for sequence in sequences]
        owners = np.repeat(np.arange(len(cut)), [len(sequence) for sequence in cut])
        flat = np.concatenate(cut)
        first_with: dict[int, int] = {}
        acts = np.array([first_with.setdefault(node.act, node.number) for node in nodes], dtype=np.int64)
        screens = np.array([node.screen for node in nodes], dtype=np.int64)
        values = (screens[flat], acts[flat], flat)
        grains = [self._numbered(owners, value, grain, len(cut)) for grain, value in enumerate(values)]
        return list(zip(*grains, strict=True))

    def _grain_weights(self, squared: Floats) -> Floats:
        """Return how well each grain separates sessions: the share of its weight that two do not share."""
        share = self._counts[: len(squared)] / max(self.sessions, 1)
        grains = np.frombuffer(self._grain_of, dtype=np.int64)
        by_grain = np.bincount(grains, weights=squared * share, minlength=GRAINS)
        common = np.bincount(grains, weights=squared * share**2, minlength=GRAINS)
        apart = 1 - np.divide(common, by_grain, out=np.ones(GRAINS), where=by_grain > 0)
        # Rounded: the order in which floats were summed must not decide.
        weights: Floats = np.round(np.maximum(apart, LEAST_GRAIN), 9)
        return weights

    def _squared_weights(self) -> Floats:
        counts = self._counts[: len(self._numbers)]
        weights: Floats = np.log1p(self.sessions / np.maximum(counts, 1))
        kept = counts > 0
        if self.sessions >= PRUNE_SESSIONS:
            kept &= counts >= PRUNE_SHARE * self.sessions
        return np.where(kept, weights, 0.0)

    def _numbered(self, owners: Ints, values: Ints, grain: int, count: int) -> list[Ints]:
        owners, grams = _grams(owners, values, grain)
        distinct, places = np.unique(grams, return_inverse=True)
        numbers = np.array([self._number(gram, grain) for gram in distinct.tolist()], dtype=np.int64)
        # One number for each pair: sorting pairs as such is many times slower.
        base = max(len(self._numbers), 1)
        sequence, feature = np.divmod(np.unique(owners * base + numbers[places]), base)
        return np.split(feature, np.searchsorted(sequence, np.arange(1, count)))

    def _number(self, gram: int, grain: int) -> int:
        number = self._numbers.setdefault(gram, len(self._numbers))
        if number == len(self._grain_of):
            self._grain_of.append(grain)
        if number >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return number


def _grams(owners: Ints, values: Ints, grain: int) -> tuple[Ints, Ints]:
    """1- and 2-grams of runs of equal values, packed into one number each: grain, first, second."""
    starts = np.ones(len(values), dtype=np.bool_)
    starts[1:] = (owners[1:] != owners[:-1]) | (values[1:] != values[:-1])
    owners, values = owners[starts], values[starts]
    together: npt.NDArray[np.bool_] = owners[1:] == owners[:-1]
    head = np.int64(grain) << 60
    ones = head | (values + 1) << 30
    twos = head | (values[:-1][together] + 1) << 30 | (values[1:][together] + 1)
    return np.concatenate([owners, owners[1:][together]]), np.concatenate([ones, twos])


#: Cosine from which on a variant joins a path.
PATH_COSINE = 0.55


class LeaderIndex:
    """The features of leaders, in the order in which they were added."""

    def __init__(self) -> None:
        self.grains = tuple(InvertedIndex() for _ in range(GRAINS))

    def add(self, features: Features) -> None:
        """Add one more."""
        for postings, numbers in zip(self.grains, features, strict=True):
            postings.add(numbers.tolist())


class LeaderSimilarity:
    """Cosine to every leader under the weights of one moment."""

    def __init__(self, leaders: LeaderIndex, squared: Floats, grain_weights: Floats) -> None:
        self._leaders = leaders
        self._squared = squared
        self._grain_weights: list[float] = grain_weights.tolist()
        self._norms = [np.sqrt(postings.totals(squared)) for postings in leaders.grains]

    def nearest(self, features: Features) -> int | None:
        """Place of the most similar leader at or above the threshold; the older one of equals."""
        if not len(self._norms[0]):
            return None
        norms = [self._norm(numbers) for numbers in features]
        own_length = sum(weight for weight, norm in zip(self._grain_weights, norms, strict=True) if norm)
        if not own_length:
            return None
        cosine = np.zeros(len(self._norms[0]))
        length = np.zeros(len(self._norms[0]))
        for grain, weight in enumerate(self._grain_weights):
            numbers, norm, theirs = features[grain], norms[grain], self._norms[grain]
            length += weight * (theirs > 0)
            if norm:
                # Most features of a large graph are pruned: what weighs nothing need not be looked up.
                heavy = numbers[self._squared[numbers] > 0]
                shared = self._leaders.grains[grain].overlaps(heavy.tolist(), self._squared[heavy])
                alike = np.divide(shared, theirs * norm, out=np.zeros_like(shared), where=theirs > 0)
                cosine += weight * alike
        # Rounded: the order in which floats were summed must decide neither ties nor the threshold.
        cosine = np.round(cosine / np.sqrt(np.maximum(length, LEAST_GRAIN) * own_length), 9)
        best = int(np.argmax(cosine))
        return best if cosine[best] >= PATH_COSINE else None

    def add(self, features: Features) -> None:
        """Count in a leader that was just added to them."""
        for grain, numbers in enumerate(features):
            self._norms[grain] = np.append(self._norms[grain], self._norm(numbers))

    def _norm(self, numbers: Ints) -> float:
        return float(np.sqrt(self._squared[numbers].sum()))
