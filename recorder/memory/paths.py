"""Paths of the memory graph: node sequences that are alike. Spec §2.6.

A variant is one exact sequence of nodes (a trace variant of process mining); a path is a group of variants
around a leader, the first and most frequent one. Likeness is the cosine of binary 1- and 2-grams over
screens, actions and nodes, weighted by sqrt(ln(1 + 1/df)): plain idf would let rare features dominate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from recorder.memory.nodes import GraphScope, Node, content_id
from recorder.memory.postings import Floats, Ints, Postings
from recorder.memory.tokens import signed

#: Cosine from which on a variant joins a path.
PATH_COSINE = 0.60
#: Features of fewer sessions than this share are left out, once there are so many sessions.
PRUNE_SHARE, PRUNE_SESSIONS = 0.01, 200
#: Longer sequences are compared by their beginning; they are stored whole.
MAX_COMPARED_NODES = 512
_GRAINS = 3

Features = tuple[Ints, Ints, Ints]


@dataclass(slots=True)
class Variant:
    """An exact sequence of nodes; `sessions` counts those that took it."""

    variant_key: int
    nodes: tuple[int, ...]
    path: int
    sessions: int
    #: Numbers of its features at each grain: screen, action, node.
    features: Features


@dataclass(frozen=True, slots=True)
class Path:
    """A path; `number` counts from 0 in the order of creation."""

    number: int
    path_id: str
    leader: int
    nodes: tuple[int, ...]


def variant_key(node_ids: Iterable[str]) -> int:
    """Content key of a sequence of nodes, the same in whatever order they were made."""
    return signed(xxhash.xxh64_intdigest("\n".join(node_ids).encode()))


class PathIndex:
    """The variants and paths of one graph; a variant keeps the path it was given."""

    def __init__(self, scope: GraphScope) -> None:
        self.scope = scope
        self.variants: dict[int, Variant] = {}
        self.paths: list[Path] = []
        self.sessions = 0
        self._feature_numbers: dict[int, int] = {}
        self._counts: Ints = np.zeros(1024, dtype=np.int64)
        self._leaders = tuple(Postings() for _ in range(_GRAINS))

    def restore(
        self,
        variants: Sequence[tuple[int, tuple[int, ...], int, int]],
        paths: Iterable[Path],
        nodes: Sequence[Node],
    ) -> None:
        """Take back stored variants `(variant_key, nodes, path number, sessions)` and paths, in order."""
        features = self._features([sequence for _, sequence, _, _ in variants], nodes)
        for (key, sequence, path, sessions), own in zip(variants, features, strict=True):
            self.variants[key] = Variant(key, sequence, path, 0, own)
            self.count(key, sessions)
        for stored in paths:
            self._lead(stored, self.variants[stored.leader].features)

    def count(self, key: int, sessions: int) -> None:
        """Add so many sessions (or take away, if negative) to a variant."""
        variant = self.variants[key]
        variant.sessions += sessions
        self.sessions += sessions
        for features in variant.features:
            self._counts[features] += sessions

    def add(
        self, counted: dict[int, tuple[tuple[int, ...], int]], nodes: Sequence[Node]
    ) -> tuple[list[Variant], list[Path]]:
        """Count sessions by variant; unseen variants meet the leaders, most frequent first.

        Args:
            counted: by variant key its node numbers and how many sessions took it.
            nodes: all nodes, by number.

        Returns:
            The variants and the paths that are new.
        """
        unseen = [key for key in counted if key not in self.variants]
        unseen.sort(key=lambda key: (-counted[key][1], key))
        features = self._features([counted[key][0] for key in unseen], nodes)
        for key, own in zip(unseen, features, strict=True):
            self.variants[key] = Variant(key, counted[key][0], -1, 0, own)
        for key, (_, sessions) in counted.items():
            self.count(key, sessions)
        return [self.variants[key] for key in unseen], self._group(unseen, nodes)

    def _group(self, unseen: Sequence[int], nodes: Sequence[Node]) -> list[Path]:
        if not unseen:
            return []
        first = len(self.paths)
        likeness = _Likeness(self._leaders, self._squared_weights())
        for key in unseen:
            variant = self.variants[key]
            path = likeness.nearest(variant.features)
            if path is None:
                path = self._new_path(variant, nodes)
                likeness.add(variant.features)
            variant.path = path
        return self.paths[first:]

    def _new_path(self, variant: Variant, nodes: Sequence[Node]) -> int:
        scope = self.scope
        path_id = content_id(
            "pth",
            scope.workspace_id,
            scope.mode,
            scope.workflow,
            [nodes[number].node_id for number in variant.nodes],
        )
        path = Path(len(self.paths), path_id, variant.variant_key, variant.nodes)
        self._lead(path, variant.features)
        return path.number

    def _lead(self, path: Path, features: Features) -> None:
        self.paths.append(path)
        for postings, own in zip(self._leaders, features, strict=True):
            postings.add(own.tolist())

    def _squared_weights(self) -> Floats:
        counts = self._counts[: len(self._feature_numbers)]
        weights: Floats = np.log1p(self.sessions / np.maximum(counts, 1))
        kept = counts > 0
        if self.sessions >= PRUNE_SESSIONS:
            kept &= counts >= PRUNE_SHARE * self.sessions
        return np.where(kept, weights, 0.0)

    def _features(self, sequences: Sequence[tuple[int, ...]], nodes: Sequence[Node]) -> list[Features]:
        """The numbered features of each sequence, one sorted array for each grain."""
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

    def _numbered(self, owners: Ints, values: Ints, grain: int, count: int) -> list[Ints]:
        owners, grams = _grams(owners, values, grain)
        distinct, places = np.unique(grams, return_inverse=True)
        numbers = np.array([self._feature_number(gram) for gram in distinct.tolist()], dtype=np.int64)
        pairs = np.unique(np.stack([owners, numbers[places]]), axis=1) if len(grams) else _NO_PAIRS
        return np.split(pairs[1], np.searchsorted(pairs[0], np.arange(1, count)))

    def _feature_number(self, gram: int) -> int:
        number = self._feature_numbers.setdefault(gram, len(self._feature_numbers))
        if number >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return number


_NO_PAIRS: Ints = np.zeros((2, 0), dtype=np.int64)


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


class _Likeness:
    """Cosine to every leader under the weights of one moment."""

    def __init__(self, leaders: Sequence[Postings], squared: Floats) -> None:
        self._leaders = leaders
        self._squared = squared
        self._norms = [np.sqrt(postings.totals(squared)) for postings in leaders]

    def nearest(self, features: Features) -> int | None:
        """Number of the most similar leader at or above the threshold; the older one of equals."""
        if not len(self._norms[0]):
            return None
        norms = [self._norm(own) for own in features]
        cosine = np.zeros(len(self._norms[0]))
        for own, norm, postings, theirs in zip(features, norms, self._leaders, self._norms, strict=True):
            if norm:
                shared = postings.overlaps(own.tolist(), self._squared[own])
                cosine += np.divide(shared, theirs * norm, out=np.zeros_like(shared), where=theirs > 0)
        grains = sum((theirs > 0).astype(np.int64) for theirs in self._norms)
        own_grains = sum(norm > 0 for norm in norms)
        if not own_grains:
            return None
        # Rounded: the order in which floats were summed must decide neither ties nor the threshold.
        cosine = np.round(cosine / np.sqrt(np.maximum(grains, 1) * own_grains), 9)
        best = int(np.argmax(cosine))
        return best if cosine[best] >= PATH_COSINE else None

    def add(self, features: Features) -> None:
        """Count in a leader that was just added to the postings."""
        for grain, own in enumerate(features):
            self._norms[grain] = np.append(self._norms[grain], self._norm(own))

    def _norm(self, own: Ints) -> float:
        return float(np.sqrt(self._squared[own].sum()))
