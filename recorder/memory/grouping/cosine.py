"""How alike a variant is to the leaders of paths: cosine over three grains of features. Spec §2.6."""

import numpy as np

from recorder.memory.grouping.features import GRAINS, LEAST_GRAIN, Features
from recorder.memory.grouping.inverted_index import Floats, Ints, Postings

#: Cosine from which on a variant joins a path.
PATH_COSINE = 0.55


class Leaders:
    """The features of leaders, in the order in which they were added."""

    def __init__(self) -> None:
        self.grains = tuple(Postings() for _ in range(GRAINS))

    def add(self, features: Features) -> None:
        """Add one more."""
        for postings, own in zip(self.grains, features, strict=True):
            postings.add(own.tolist())


class Likeness:
    """Cosine to every leader under the weights of one moment."""

    def __init__(self, leaders: Leaders, squared: Floats, grain_weights: Floats) -> None:
        self._leaders = leaders
        self._squared = squared
        self._grain_weights: list[float] = grain_weights.tolist()
        self._norms = [np.sqrt(postings.totals(squared)) for postings in leaders.grains]

    def nearest(self, features: Features) -> int | None:
        """Place of the most similar leader at or above the threshold; the older one of equals."""
        if not len(self._norms[0]):
            return None
        norms = [self._norm(own) for own in features]
        own_length = sum(weight for weight, norm in zip(self._grain_weights, norms, strict=True) if norm)
        if not own_length:
            return None
        cosine = np.zeros(len(self._norms[0]))
        length = np.zeros(len(self._norms[0]))
        for grain, weight in enumerate(self._grain_weights):
            own, norm, theirs = features[grain], norms[grain], self._norms[grain]
            length += weight * (theirs > 0)
            if norm:
                # Most features of a large graph are pruned: what weighs nothing need not be looked up.
                heavy = own[self._squared[own] > 0]
                shared = self._leaders.grains[grain].overlaps(heavy.tolist(), self._squared[heavy])
                alike = np.divide(shared, theirs * norm, out=np.zeros_like(shared), where=theirs > 0)
                cosine += weight * alike
        # Rounded: the order in which floats were summed must decide neither ties nor the threshold.
        cosine = np.round(cosine / np.sqrt(np.maximum(length, LEAST_GRAIN) * own_length), 9)
        best = int(np.argmax(cosine))
        return best if cosine[best] >= PATH_COSINE else None

    def add(self, features: Features) -> None:
        """Count in a leader that was just added to them."""
        for grain, own in enumerate(features):
            self._norms[grain] = np.append(self._norms[grain], self._norm(own))

    def _norm(self, own: Ints) -> float:
        return float(np.sqrt(self._squared[own].sum()))
