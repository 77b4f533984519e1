"""Paths of the memory graph: node sequences that are alike. Spec §2.6.

A variant is one exact sequence of nodes (a trace variant of process mining); a path is a group of variants
around a leader, the first and most frequent one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import xxhash

from recorder.memory.graph.cosine import FeatureCounts, Features, LeaderIndex, LeaderSimilarity
from recorder.memory.graph.nodes import GraphScope, Node, free_id
from recorder.memory.steps.targets import signed


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
    """A path; `number` counts from 0 in the order of creation, `nodes` are those of its usual variant."""

    number: int
    path_id: str
    #: Variant key of the leader.
    leader: int
    nodes: tuple[int, ...]
    #: Number of the path that stands for this one since a rebuild.
    merged_into: int | None = None


def variant_key(node_ids: Iterable[str]) -> int:
    """Content key of a sequence of nodes, the same in whatever order they were made."""
    return signed(xxhash.xxh64_intdigest("\n".join(node_ids).encode()))


class PathIndex:
    """The variants and paths of one graph; a variant keeps the path it was given."""

    def __init__(self, scope: GraphScope) -> None:
        self.scope = scope
        self.variants: dict[int, Variant] = {}
        self.paths: list[Path] = []
        self._features = FeatureCounts()
        self._leaders = LeaderIndex()
        #: Path number of each of them: a path that was merged leads no more.
        self._led: list[int] = []
        self._ids: set[str] = set()

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
        """Take back stored variants `(variant_key, nodes, path number, sessions)` and paths, in order."""
        features = self._features.of([sequence for _, sequence, _, _ in variants], nodes)
        for (key, sequence, path, sessions), numbers in zip(variants, features, strict=True):
            self.variants[key] = Variant(key, sequence, path, 0, numbers)
            self.count(key, sessions)
        for stored in paths:
            if stored.merged_into is None:
                self._lead(stored, self.variants[stored.leader].features)
            else:
                self._keep(stored)

    def count(self, key: int, sessions: int) -> None:
        """Add so many sessions (or take away, if negative) to a variant."""
        variant = self.variants[key]
        variant.sessions += sessions
        self._features.count(variant.features, sessions)

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
        features = self._features.of([counted[key][0] for key in unseen], nodes)
        for key, numbers in zip(unseen, features, strict=True):
            self.variants[key] = Variant(key, counted[key][0], -1, 0, numbers)
        for key, (_, sessions) in counted.items():
            self.count(key, sessions)
        return [self.variants[key] for key in unseen], self._group(unseen, nodes)

    def regroup(
        self, counted: dict[int, tuple[tuple[int, ...], int]], leaders: Iterable[Path], nodes: Sequence[Node]
    ) -> None:
        """Take in all variants of a graph at once, at the weights that they have together.

        Leaders that are alike are merged into the older, the other variants join the nearest, most frequent
        first; then each path is shown by the most frequent of its variants.

        Args:
            counted: by variant key its node numbers and how many sessions took it; of equally many the first
                goes first.
            leaders: the paths that there were, in order; empty to begin without any.
            nodes: all nodes, by number.
        """
        keys = sorted(counted, key=lambda key: -counted[key][1])
        features = self._features.of([counted[key][0] for key in keys], nodes)
        for key, numbers in zip(keys, features, strict=True):
            self.variants[key] = Variant(key, counted[key][0], -1, 0, numbers)
            self.count(key, counted[key][1])
        self._lead_again(leaders)
        self._group([key for key in keys if self.variants[key].path < 0], nodes)
        # Once more, since the first ones have not met the last leaders: now a second rebuild changes nothing.
        likeness = self._similarity_to_leaders()
        leading = {self.paths[number].leader for number in self._led}
        for key in keys:
            if key not in leading:
                self.variants[key].path = self._led[likeness.nearest(self.variants[key].features) or 0]
        shown: dict[int, int] = {}
        for key in keys:
            shown.setdefault(self.variants[key].path, key)
        for number, key in shown.items():
            self.paths[number] = replace(self.paths[number], nodes=self.variants[key].nodes)

    def _lead_again(self, leaders: Iterable[Path]) -> None:
        likeness = self._similarity_to_leaders()
        led: dict[int, int] = {}
        for path in leaders:
            if path.merged_into is not None:
                self._keep(path)
                continue
            variant = self.variants[path.leader]
            near = likeness.nearest(variant.features)
            into = self._led[near] if near is not None else led.get(path.leader)
            if into is not None:
                self._keep(replace(path, merged_into=into))
                continue
            self._lead(path, variant.features)
            likeness.add(variant.features)
            led[path.leader] = variant.path = path.number

    def _group(self, unseen: Sequence[int], nodes: Sequence[Node]) -> list[Path]:
        if not unseen:
            return []
        first = len(self.paths)
        likeness = self._similarity_to_leaders()
        for key in unseen:
            variant = self.variants[key]
            index = likeness.nearest(variant.features)
            if index is None:
                index = len(self._led)
                self._new_path(variant, nodes)
                likeness.add(variant.features)
            variant.path = self._led[index]
        return self.paths[first:]

    def _new_path(self, variant: Variant, nodes: Sequence[Node]) -> None:
        node_ids = [nodes[number].node_id for number in variant.nodes]
        path_id = free_id("pth", self.scope, self._ids, node_ids)
        path = Path(len(self.paths), path_id, variant.variant_key, variant.nodes)
        self._lead(path, variant.features)

    def _keep(self, path: Path) -> None:
        self.paths.append(path)
        self._ids.add(path.path_id)

    def _lead(self, path: Path, features: Features) -> None:
        self._keep(path)
        self._led.append(path.number)
        self._leaders.add(features)

    def _similarity_to_leaders(self) -> LeaderSimilarity:
        return LeaderSimilarity(self._leaders, *self._features.weights())
