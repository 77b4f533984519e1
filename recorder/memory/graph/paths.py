"""Paths of the memory graph: node sequences that are alike. Spec §2.6.

A variant is one exact sequence of nodes (a trace variant of process mining); a path is a group of variants,
shown by the one that most of its sessions are near. A new variant joins the path of the variant it is most
like; variants that are like none are grouped among themselves. A rebuild groups all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from recorder.memory.graph.arrays import Ints
from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.capacity import EDGE_BYTES, NUMBER_BYTES, PATH_BYTES, VARIANT_BYTES
from recorder.memory.graph.communities import PATH_COSINE, find_nearest_neighbours, group_variants
from recorder.memory.graph.features import FeatureCounts
from recorder.memory.graph.nodes import Node, make_unused_graph_id
from recorder.memory.graph.shown_way import ShownWayVariants, choose_shown_way
from recorder.memory.steps.action_tokens import make_signed_key
from recorder.tenant import GraphScope

#: Path of the sessions without any step: none.
NO_PATH = -1
#: Most frequent variants of a path that new variants are compared with.
_EXEMPLARS = 8
#: Features of exemplars of which vectors are made at once, about 60 bytes each.
_FEATURES_AT_ONCE = 500_000
#: Bits of the number of a node in the number of an edge.
_NODE_BITS = 31
#: Nodes of variants whose features are numbered at once.
_NODES_AT_ONCE = 50_000


@dataclass(slots=True)
class Variant:
    """An exact sequence of nodes; `sessions` counts those that took it."""

    variant_key: int
    nodes: tuple[int, ...]
    #: Number of its path, or NO_PATH.
    path: int
    sessions: int
    #: Numbers of its features.
    features: Ints


@dataclass(frozen=True, slots=True)
class Path:
    """A path; `number` counts from 0 in the order of creation, `nodes` are those of its shown way."""

    number: int
    path_id: str
    #: Variant key of the shown way.
    leader: int
    nodes: tuple[int, ...]
    #: Number of the path that stands for this one since a rebuild.
    merged_into: int | None = None


def variant_key(node_ids: Iterable[str]) -> int:
    """Hash a sequence of nodes: the key is the same in whatever order they were made."""
    return make_signed_key(xxhash.xxh64_intdigest("\n".join(node_ids).encode()))


def _split_by_nodes(sequences: Sequence[tuple[int, ...]]) -> Iterator[slice]:
    """Yield parts of sequences with as many nodes as a few batches have: their features take 100 MB."""
    start = nodes = 0
    for index, sequence in enumerate(sequences):
        nodes += len(sequence)
        if nodes >= _NODES_AT_ONCE:
            yield slice(start, index + 1)
            start, nodes = index + 1, 0
    yield slice(start, len(sequences))


class PathIndex:
    """The variants and paths of one graph; a variant keeps the path it was given."""

    def __init__(self, scope: GraphScope, bounds: GraphBounds = GRAPH_BOUNDS) -> None:
        self.scope = scope
        self._bounds = bounds
        self.variants: dict[int, Variant] = {}
        self.paths: list[Path] = []
        self._features = FeatureCounts()
        #: By path number the keys of its most frequent variants, the first of them the most frequent.
        self._exemplars: dict[int, list[int]] = {}
        self._ids: set[str] = set()
        self._listed_bytes = 0
        #: Pairs of nodes that follow each other in a variant.
        self._edges: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Estimated memory of variants, paths and features."""
        objects = VARIANT_BYTES * len(self.variants) + PATH_BYTES * len(self.paths)
        return objects + self._listed_bytes + EDGE_BYTES * len(self._edges) + self._features.nbytes

    @property
    def sessions(self) -> int:
        """Return the number of counted sessions."""
        return self._features.sessions

    def restore(
        self,
        variants: Sequence[tuple[int, tuple[int, ...], int, int]],
        paths: Iterable[Path],
        nodes: Sequence[Node],
    ) -> None:
        """Load stored variants `(variant_key, nodes, path number, sessions)` and paths, in order."""
        for some in _split_by_nodes([sequence for _, sequence, _, _ in variants]):
            part = variants[some]
            features = self._features.number_features([sequence for _, sequence, _, _ in part], nodes)
            for (key, sequence, path, sessions), numbers in zip(part, features, strict=True):
                self._keep_variant(Variant(key, sequence, path, 0, numbers))
                self.count(key, sessions)
        for stored in paths:
            self._keep_path(stored)

    def count(self, key: int, sessions: int) -> None:
        """Add so many sessions (or take away, if negative) to a variant."""
        variant = self.variants[key]
        variant.sessions += sessions
        self._features.count(variant.features, sessions)
        self._rank(variant)

    def add(
        self, counted: dict[int, tuple[tuple[int, ...], int]], nodes: Sequence[Node]
    ) -> tuple[list[Variant], list[Path]]:
        """Count sessions by variant; unseen variants join the nearest path or make new ones.

        Args:
            counted: by variant key its node numbers and how many sessions took it.
            nodes: all nodes, by number.

        Returns:
            The variants and the paths that are new.
        """
        unseen = [key for key in counted if key not in self.variants]
        unseen.sort(key=lambda key: (-counted[key][1], key))
        features = self._features.number_features([counted[key][0] for key in unseen], nodes)
        for key, numbers in zip(unseen, features, strict=True):
            self._keep_variant(Variant(key, counted[key][0], NO_PATH, 0, numbers))
        for key, (_, sessions) in counted.items():
            self.count(key, sessions)
        first = len(self.paths)
        apart = self._join([key for key in unseen if counted[key][0]])
        for keys in self._group_similar_variants(apart):
            self._add_path(keys, nodes)
        return [self.variants[key] for key in unseen], self.paths[first:]

    def group(
        self, counted: dict[int, tuple[tuple[int, ...], int]], nodes: Sequence[Node]
    ) -> list[list[int]]:
        """Take in all variants of a graph at once; returns the keys of each group of them.

        Args:
            counted: by variant key its node numbers and how many sessions took it; of equally many the first
                goes first.
            nodes: all nodes, by number.
        """
        keys = sorted(counted, key=lambda key: -counted[key][1])
        features = self._features.number_features([counted[key][0] for key in keys], nodes)
        for key, numbers in zip(keys, features, strict=True):
            self._keep_variant(Variant(key, counted[key][0], NO_PATH, 0, numbers))
            self.count(key, counted[key][1])
        return self._group_similar_variants([key for key in keys if counted[key][0]])

    def choose_leader(self, keys: Sequence[int]) -> Variant:
        """Return the variant that shows the way of a group, which is given with the most frequent first."""
        variants = [self.variants[key] for key in keys]
        if len(variants) == 1:
            return variants[0]
        ways = ShownWayVariants.of(
            [variant.nodes for variant in variants], [variant.sessions for variant in variants]
        )
        return variants[choose_shown_way(ways).row]

    def _keep_variant(self, variant: Variant) -> None:
        self.variants[variant.variant_key] = variant
        self._listed_bytes += NUMBER_BYTES * len(variant.nodes) + variant.features.nbytes
        nodes = np.array(variant.nodes, dtype=np.int64)
        self._edges.update((nodes[:-1] << _NODE_BITS | nodes[1:]).tolist())

    def _keep_path(self, path: Path) -> None:
        self.paths.append(path)
        self._ids.add(path.path_id)
        self._listed_bytes += NUMBER_BYTES * len(path.nodes)

    def _join(self, unseen: Sequence[int]) -> list[int]:
        """Give variants the path of what they are like; returns those that are like nothing."""
        known = self._list_exemplars()
        if not unseen or not known:
            return list(unseen)
        vectors = self._features.vectors([self.variants[key].features for key in unseen])
        nearest, cosines = np.zeros(len(unseen), dtype=np.int64), np.full(len(unseen), -1.0)
        for some in self._split_by_features(known):
            rows = self._features.vectors([self.variants[known[index]].features for index in some])
            positions, values = find_nearest_neighbours(rows, vectors)
            # Of equals the first.
            is_nearer = values > cosines
            nearest[is_nearer] = some.start + positions[is_nearer]
            cosines[is_nearer] = values[is_nearer]
        apart = []
        for key, index, cosine in zip(unseen, nearest.tolist(), cosines.tolist(), strict=True):
            if cosine < PATH_COSINE:
                apart.append(key)
            else:
                self.variants[key].path = self.variants[known[index]].path
                self._rank(self.variants[key])
        return apart

    def _split_by_features(self, keys: Sequence[int]) -> Iterator[range]:
        """Yield the positions of variants in parts of which the vectors take some 30 MB."""
        start = features = 0
        for index, key in enumerate(keys):
            features += len(self.variants[key].features)
            if features >= _FEATURES_AT_ONCE:
                yield range(start, index + 1)
                start, features = index + 1, 0
        if start < len(keys):
            yield range(start, len(keys))

    def _list_exemplars(self) -> list[int]:
        """Return the variants that new ones are compared with; of too many those that most sessions took."""
        known = [key for keys in self._exemplars.values() for key in keys]
        if len(known) > self._bounds.path_exemplars:
            known.sort(key=lambda key: (-self.variants[key].sessions, key))
        return known[: self._bounds.path_exemplars]

    def _group_similar_variants(self, keys: Sequence[int]) -> list[list[int]]:
        if not keys:
            return []
        variants = [self.variants[key] for key in keys]
        vectors = self._features.vectors([variant.features for variant in variants])
        groups = group_variants(
            vectors,
            [variant.nodes for variant in variants],
            [variant.sessions for variant in variants],
            self._bounds,
        )
        order = np.argsort(groups, kind="stable")
        ends = np.flatnonzero(np.diff(groups[order])) + 1
        return [[keys[index] for index in part.tolist()] for part in np.split(order, ends)]

    def _add_path(self, keys: Sequence[int], nodes: Sequence[Node]) -> None:
        """Make a path of these variants, whose nodes are those of the variant that leads them."""
        leader = self.choose_leader(keys)
        node_ids = [nodes[number].node_id for number in leader.nodes]
        path_id = make_unused_graph_id("pth", self.scope, self._ids, node_ids)
        path = Path(len(self.paths), path_id, leader.variant_key, leader.nodes)
        self._keep_path(path)
        for key in keys:
            self.variants[key].path = path.number
            self._rank(self.variants[key])

    def _rank(self, variant: Variant) -> None:
        """Keep the most frequent variants of a path as its exemplars."""
        if variant.path == NO_PATH:
            return
        keys = self._exemplars.setdefault(variant.path, [])
        if variant.variant_key not in keys:
            if len(keys) == _EXEMPLARS and self._is_rarer_variant(variant, self.variants[keys[-1]]):
                return
            keys.append(variant.variant_key)
        keys.sort(key=lambda key: (-self.variants[key].sessions, key))
        del keys[_EXEMPLARS:]

    @staticmethod
    def _is_rarer_variant(variant: Variant, other: Variant) -> bool:
        return (-variant.sessions, variant.variant_key) > (-other.sessions, other.variant_key)
