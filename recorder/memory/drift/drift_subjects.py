"""Subjects of drift: the paths, nodes and edges of a graph, and the variants with each. Docs: docs/drift.md.

Pure. A subject has a number within one reading of a graph; state that outlasts a reading holds ids.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from recorder.memory.graph.arrays import Ints, mark_changes, sort_distinct
from recorder.memory.graph.paths import NO_PATH

SubjectKind = Literal["path", "node", "edge"]
KINDS: tuple[SubjectKind, ...] = ("path", "node", "edge")
PATH, NODE, EDGE = range(3)


@dataclass(frozen=True, slots=True)
class DriftSubject:
    """A path or a node by its number in the graph, or an edge by the numbers of both ends."""

    kind: SubjectKind
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DriftSubjects:
    """One row for each subject of a graph, with the variants that have it."""

    #: Index in KINDS.
    kind: Ints
    #: Number of the path or the node, or of the source of an edge; and of the target of an edge, else -1.
    first: Ints
    second: Ints
    #: The variants of subject i are `variants[starts[i]:starts[i + 1]]`; `owner` is the subject of each.
    starts: Ints
    variants: Ints
    owner: Ints
    #: The nodes of variant i are `variant_nodes[variant_start[i]:variant_start[i + 1]]`, in their order.
    variant_start: Ints
    variant_nodes: Ints

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def variant_count(self) -> int:
        """Return the number of variants."""
        return len(self.variant_start) - 1

    def nodes_of_variant(self, variant: int) -> tuple[int, ...]:
        """Return the nodes of a variant in their order."""
        return tuple(
            self.variant_nodes[self.variant_start[variant] : self.variant_start[variant + 1]].tolist()
        )

    def describe(self, number: int) -> DriftSubject:
        """Return the subject with this number."""
        ends = (int(self.first[number]), int(self.second[number]))
        kind = KINDS[self.kind[number]]
        return DriftSubject(kind, ends if kind == "edge" else ends[:1])

    def find(self, subject: DriftSubject) -> int | None:
        """Return the number of a subject; None if no variant has it."""
        second = subject.key[1] if subject.kind == "edge" else -1
        is_kind = self.kind == KINDS.index(subject.kind)
        rows = np.flatnonzero(is_kind & (self.first == subject.key[0]) & (self.second == second))
        return int(rows[0]) if len(rows) else None

    def count(self, sessions_of_variant: Ints) -> Ints:
        """Return the number of sessions that have each subject, from the number that took each variant."""
        weights = sessions_of_variant[self.variants]
        return np.bincount(self.owner, weights=weights, minlength=len(self)).astype(np.int64)

    def variants_with(self, number: int) -> npt.NDArray[np.bool_]:
        """Return for each variant whether it has a subject."""
        has = np.zeros(self.variant_count, dtype=np.bool_)
        has[self.variants[self.starts[number] : self.starts[number + 1]]] = True
        return has

    def nodes_around(self, number: int) -> frozenset[int]:
        """Return a node and those before and after it, both ends of an edge, or the nodes of a path."""
        subject = self.describe(number)
        if subject.kind == "edge":
            return frozenset(subject.key)
        is_edge, is_node = self.kind == EDGE, self.kind == NODE
        if subject.kind == "node":
            (node,) = subject.key
            before, after = (
                self.first[is_edge & (self.second == node)],
                self.second[is_edge & (self.first == node)],
            )
            return frozenset([node, *before.tolist(), *after.tolist()])
        is_visited = is_node[self.owner] & self.variants_with(number)[self.variants]
        return frozenset(self.first[sort_distinct(self.owner[is_visited])].tolist())


def list_drift_subjects(variant_path: Ints, variant_start: Ints, variant_nodes: Ints) -> DriftSubjects:
    """Return the subjects of variants.

    Args:
        variant_path: the path of each variant, or `NO_PATH`.
        variant_start: offsets of the nodes of each variant, and the end of the last.
        variant_nodes: nodes of all variants, no two equal neighbours within one.
    """
    count = len(variant_path)
    owners = np.repeat(np.arange(count), np.diff(variant_start))
    is_joined = owners[1:] == owners[:-1]
    base = int(variant_nodes.max(initial=0)) + 1
    edges = variant_nodes[:-1][is_joined] * base + variant_nodes[1:][is_joined]
    on_path = np.flatnonzero(variant_path != NO_PATH)
    kinds = [
        _pair_with_variants(variant_path[on_path], on_path, count),
        _pair_with_variants(variant_nodes, owners, count),
        _pair_with_variants(edges, owners[1:][is_joined], count),
    ]
    kind = np.repeat(np.arange(len(kinds)), [len(keys) for keys, _ in kinds])
    keys = np.concatenate([keys for keys, _ in kinds])
    variants = np.concatenate([variants for _, variants in kinds])
    is_first = mark_changes(kind, keys)
    starts = np.flatnonzero(is_first)
    is_edge = kind[starts] == EDGE
    source, target = np.divmod(keys[starts], base)
    return DriftSubjects(
        kind=kind[starts],
        first=np.where(is_edge, source, keys[starts]),
        second=np.where(is_edge, target, -1),
        starts=np.append(starts, len(kind)),
        variants=variants,
        owner=np.cumsum(is_first) - 1,
        variant_start=variant_start,
        variant_nodes=variant_nodes,
    )


def _pair_with_variants(keys: Ints, variants: Ints, count: int) -> tuple[Ints, Ints]:
    """Return distinct pairs of a key and a variant, ascending: equal ones, as loops make them, count once.

    One number is sorted for each pair: to sort columns of four takes three times as long and twice as much
    memory.
    """
    distinct = sort_distinct(keys)
    pairs = sort_distinct(np.searchsorted(distinct, keys) * count + variants)
    places, variants = np.divmod(pairs, max(count, 1))
    return distinct[places], variants
