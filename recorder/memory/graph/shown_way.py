"""Shown way of a path: its variant, edits from it to the others, and its optional nodes. Contract §4.

An edit is a node put in, left out or exchanged. Leaving out an optional node is free, and so is coming back
to a node: neither makes a session go another way. A node that most sessions leave out is not optional but a
detour: were it free, the longest variant with all detours would be shown instead of the usual one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.arrays import Bools, Ints

#: A node of the shown way is optional if this share of the sessions leave it out, at least, but not most.
OPTIONAL_SHARE = 0.10
#: Sessions with at most so many edits are on the shown way.
MAX_EDITS = 1
#: A path splits if so many of its sessions, and this share of them, are further away and near one other way.
SPLIT_SESSIONS, SPLIT_SHARE = 8, 0.10
#: Longer sequences are compared by their beginning.
_MAX_NODES = 128
#: The variants of a path that may be shown, and the most frequent ones, by which they are judged.
_CANDIDATES, _JUDGED = 10, 1_000
#: Variants whose nodes differ by so many, as by one exchanged, are alike.
_ALIKE_NODES = 2


@dataclass(frozen=True, slots=True)
class ShownWayVariants:
    """Variants as one array of nodes, padded, with the number of sessions of each."""

    nodes: Ints
    sizes: Ints
    sessions: Ints
    #: Whether a position holds a node that the variant visited before.
    again: Bools

    @classmethod
    def of(cls, sequences: Sequence[tuple[int, ...]], sessions: Sequence[int]) -> "ShownWayVariants":
        """Return the variants with these nodes and sessions."""
        sizes = np.array([min(len(sequence), _MAX_NODES) for sequence in sequences], dtype=np.int64)
        nodes = np.full((len(sequences), int(sizes.max(initial=0))), -1, dtype=np.int64)
        again = np.zeros(nodes.shape, dtype=np.bool_)
        for row, sequence in enumerate(sequences):
            seen: set[int] = set()
            for index, node in enumerate(sequence[:_MAX_NODES]):
                nodes[row, index] = node
                again[row, index] = node in seen
                seen.add(node)
        return cls(nodes, sizes, np.array(sessions, dtype=np.int64), again)

    def select_rows(self, rows: Ints) -> "ShownWayVariants":
        """Return some of the variants."""
        return ShownWayVariants(self.nodes[rows], self.sizes[rows], self.sessions[rows], self.again[rows])

    def sequence(self, row: int) -> Ints:
        """Return the nodes of a variant."""
        return self.nodes[row, : self.sizes[row]]


@dataclass(frozen=True, slots=True)
class ShownWay:
    """A shown way: its nodes, and which of them are optional."""

    row: int
    nodes: Ints
    optional: Bools
    #: Edits from it to each variant of the path.
    edits: Ints


def choose_shown_way(ways: ShownWayVariants) -> ShownWay:
    """Return the variant that most sessions are within one edit of; of several, that of most sessions.

    Args:
        ways: the variants of one path, the most frequent first.
    """
    judged = ways.select_rows(np.arange(min(len(ways.sizes), _JUDGED)))
    best, most = 0, -1
    for row in _list_candidates(judged):
        nodes = ways.sequence(row)
        edits = count_edits(nodes, list_optional_nodes(nodes, ways), judged)
        near = int(judged.sessions[edits <= MAX_EDITS].sum())
        if near > most:
            best, most = row, near
    nodes = ways.sequence(best)
    optional = list_optional_nodes(nodes, ways)
    return ShownWay(best, nodes, optional, count_edits(nodes, optional, ways))


def _list_candidates(ways: ShownWayVariants) -> list[int]:
    """Return the variants that most sessions are alike, the most frequent first."""
    count = len(ways.sizes)
    if count <= _CANDIDATES:
        return list(range(count))
    numbers, positions = np.unique(ways.nodes, return_inverse=True)
    visits = np.zeros((count, len(numbers)), dtype=np.float32)
    visits[np.arange(count)[:, None], positions.reshape(ways.nodes.shape)] = 1
    visits = visits[:, numbers >= 0]
    shared, distinct = visits @ visits.T, visits.sum(axis=1)
    is_alike = distinct[:, None] + distinct - 2 * shared <= _ALIKE_NODES
    best = np.argsort(-(is_alike @ ways.sessions), kind="stable")[:_CANDIDATES]
    return sorted(best.tolist())


def list_optional_nodes(nodes: Ints, ways: ShownWayVariants) -> Bools:
    """Return which of these nodes enough of the sessions leave out, but not most of them."""
    total = int(ways.sessions.sum())
    missed = [int(ways.sessions[~(ways.nodes == node).any(axis=1)].sum()) for node in nodes.tolist()]
    return find_optional_nodes(np.array(missed, dtype=np.int64), total)


def find_optional_nodes(left_out: Ints, total: int) -> Bools:
    """Return which nodes are optional if so many of all sessions leave each of them out."""
    optional: Bools = (left_out > 0) & (left_out >= OPTIONAL_SHARE * total) & (2 * left_out <= total)
    return optional


def count_edits(nodes: Ints, optional: Bools, ways: ShownWayVariants) -> Ints:
    """Return the edits from a way to each variant, computed for all at once.

    An edit is one of the Levenshtein distance; optional nodes and repeated visits are free.
    """
    leaving_out = np.concatenate([[0], np.cumsum(~optional)])
    edits = np.tile(leaving_out, (len(ways.sizes), 1))
    for index in range(ways.nodes.shape[1]):
        node, is_new = ways.nodes[:, index, None], ~ways.again[:, index, None]
        best = edits + is_new
        best[:, 1:] = np.minimum(best[:, 1:], edits[:, :-1] + (nodes[None, :] != node))
        # Leaving out nodes before: the least over all earlier positions, with what lies between left out.
        best = leaving_out + np.minimum.accumulate(best - leaving_out, axis=1)
        is_inside = index < ways.sizes
        edits[is_inside] = best[is_inside]
    counted: Ints = edits[:, -1]
    return counted


def split_ways(ways: ShownWayVariants) -> list[Ints]:
    """Return the rows of each part of a group, so that few sessions are far from the way of their part.

    Args:
        ways: the variants of the group, the most frequent first.
    """
    parts: list[Ints] = []
    open_parts = [np.arange(len(ways.sizes))]
    while open_parts:
        rows = open_parts.pop()
        divided = _find_variants_off_shown_way(ways.select_rows(rows))
        if divided is None:
            parts.append(rows)
        else:
            open_parts += [rows[~divided], rows[divided]]
    return parts


def _find_variants_off_shown_way(ways: ShownWayVariants) -> Bools | None:
    """Return which variants go another way than the one shown; None if too few do."""
    needed = max(SPLIT_SESSIONS, SPLIT_SHARE * int(ways.sessions.sum()))
    if int(ways.sessions.sum()) < needed or len(ways.sizes) < 2:
        return None
    way = choose_shown_way(ways)
    is_far = way.edits > MAX_EDITS
    if int(ways.sessions[is_far].sum()) < needed:
        return None
    far = ways.select_rows(np.flatnonzero(is_far))
    other = choose_shown_way(far)
    if int(far.sessions[other.edits <= MAX_EDITS].sum()) < needed:
        return None
    leaves: Bools = count_edits(other.nodes, other.optional, ways) < way.edits
    return leaves if leaves.any() and not leaves.all() else None
