"""Sessions alike in the shape of their way through the graph. Spec §4.2 (similar); contract §4.

Cosine of the features of two variants (`step_vectors`): 1 for the same way, about a half where half of the
steps are shared. Variants are compared, then expanded to sessions: always those that are in the graph now,
with their outcomes of now.
"""

from typing import Any, NamedTuple

import numpy as np

from recorder.memory.graph.arrays import Floats, Ints
from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.queries.columns import GraphColumns, make_session_lookup
from recorder.memory.queries.step_vectors import step_vectors

#: Decimals of a similarity: the order in which floats were summed must decide no tie.
_DECIMALS = 6
#: Sessions that are less similar are left out, and those that have less than this beside their actions in
#: common: an action such as Enter on different screens makes no sessions similar.
_LEAST_SIMILARITY, _LEAST_BESIDE_ACTIONS = 0.1, 0.05


class SimilarRow(NamedTuple):
    """A session that is alike."""

    row: int
    #: 0 to 1.
    similarity: float
    #: Numbers of the nodes that both visited, in the order in which the session asked for did.
    shared_nodes: tuple[int, ...]


class SimilarityIndex:
    """The sessions of one version of a graph, ready to be compared."""

    def __init__(self, columns: GraphColumns) -> None:
        self._columns = columns
        rows = make_session_lookup(columns).rows
        # Nothing is known of the ways that were not kept, and of purged sessions there is nothing to list.
        rows = rows[~(columns.is_unkept | columns.is_anonymous)[rows]]
        variants = columns.variant[rows]
        self._vectors = step_vectors(columns)
        counts = np.bincount(variants, minlength=len(self._vectors.line_of))
        #: Lines that sessions take: the vectors may know variants whose sessions were deleted.
        self._taken = np.flatnonzero(counts[self._vectors.variants])
        # By (variant, outcome), the newest first; then by id, as the rows come: a group's best are its first.
        group = variants * len(OUTCOMES) + columns.outcome[rows]
        self._ranked = rows[np.lexsort((-columns.started_ms[rows], group))]
        sizes = np.bincount(group, minlength=len(self._vectors.line_of) * len(OUTCOMES))
        self._group_start = np.concatenate([[0], np.cumsum(sizes)])

    def nearest(self, row: int, limit: int) -> list[SimilarRow]:
        """Return the sessions most similar to that of a row, without itself and those that share too little.

        Equally similar ones come by outcome (the session's own first), then the newest, then by id.
        """
        columns = self._columns
        if columns.is_unkept[row]:
            return []
        variant = self._find_variant_of_row(row)
        similarity = self._similarity(variant)
        rows, values = self._candidates(similarity, row, limit)
        is_other = columns.outcome[rows] != columns.outcome[row]
        order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], is_other, -values))[:limit]
        shared = _SharedNodes(columns, variant)
        return [
            SimilarRow(other, value, shared.list_nodes_of_variant(self._find_variant_of_row(other)))
            for other, value in zip(rows[order].tolist(), values[order].tolist(), strict=True)
        ]

    def compare(self, row: int, others: Ints) -> Floats:
        """Return the similarity of the session of a row to those of others."""
        lines = self._vectors.line_of[self._columns.variant[others]]
        similarity: Floats = self._similarity(self._find_variant_of_row(row))[lines]
        return similarity

    def _find_variant_of_row(self, row: int) -> int:
        # Not `columns.variant[row]`, which looks up that of every row.
        return int(self._columns.trace_variant[self._columns.trace[row]])

    def _similarity(self, variant: int) -> Floats:
        """Compute the similarity of every line to a variant."""
        line = int(self._vectors.line_of[variant])
        others = _multiply_vectors(self._vectors.others, line)
        cosines = np.round(others + _multiply_vectors(self._vectors.actions, line), _DECIMALS)
        is_similar = (cosines >= _LEAST_SIMILARITY) & (others >= _LEAST_BESIDE_ACTIONS)
        similarity: Floats = np.where(is_similar, np.minimum(cosines, 1.0), 0.0)
        # Also where it has no nodes, and so no features.
        similarity[line] = 1.0
        return similarity

    def _candidates(self, similarity: Floats, row: int, limit: int) -> tuple[Ints, Floats]:
        """Return rows among which the nearest are, with their similarities: of each variant so many."""
        # Each has a session, so so many of them suffice; and those that are as similar as the last.
        taken = similarity[self._taken]
        wanted = min(limit + 1, len(taken))
        least = np.partition(taken, len(taken) - wanted)[len(taken) - wanted]
        lines = self._taken[(taken >= least) & (taken > 0)]
        groups = (self._vectors.variants[lines, None] * len(OUTCOMES) + np.arange(len(OUTCOMES))).ravel()
        starts = self._group_start[groups]
        sizes = np.minimum(self._group_start[groups + 1] - starts, limit + 1)
        offsets = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = self._ranked[np.repeat(starts, sizes) + offsets]
        values = np.repeat(np.repeat(similarity[lines], len(OUTCOMES)), sizes)
        is_other = rows != row
        return rows[is_other], values[is_other]


def _multiply_vectors(matrix: Any, line: int) -> Floats:
    """Return the dot product of every row of a sparse matrix with one of its rows."""
    features = slice(matrix.indptr[line], matrix.indptr[line + 1])
    dense = np.zeros(matrix.shape[1], dtype=np.float32)
    dense[matrix.indices[features]] = matrix.data[features]
    products: Floats = (matrix @ dense).astype(np.float64)
    return products


def index_similarity(columns: GraphColumns) -> SimilarityIndex:
    """Return the index of a graph; made once for each version, so its weights are frozen with it."""
    return columns.derive("similar", SimilarityIndex)


class _SharedNodes:
    """Nodes that the variants of a graph share with the compared variant."""

    def __init__(self, columns: GraphColumns, variant: int) -> None:
        self._columns = columns
        self._own = list(dict.fromkeys(self._list_variant_nodes(variant)))
        self._known: dict[int, tuple[int, ...]] = {}

    def list_nodes_of_variant(self, variant: int) -> tuple[int, ...]:
        """Return the nodes that a variant shares with the compared variant."""
        if variant not in self._known:
            others = frozenset(self._list_variant_nodes(variant))
            self._known[variant] = tuple(node for node in self._own if node in others)
        return self._known[variant]

    def _list_variant_nodes(self, variant: int) -> list[int]:
        start, end = self._columns.variant_start[variant : variant + 2]
        nodes: list[int] = self._columns.variant_nodes[start:end].tolist()
        return nodes
