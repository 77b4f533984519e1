"""Sessions alike in the shape of their way through the graph. Spec §4.2 (similar); contract §4.

Cosine of bags of nodes and edges at three grains (screen, action, node), as text retrieval compares
documents: weighted by (1 + ln tf) and inverse document frequency. Variants are compared, then expanded to
sessions: always those that are in the graph now, with their outcomes of now; only the weights may be older
(`bags`).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from recorder.memory.graph.directly_follows import Crossings, list_crossings
from recorder.memory.graph.inverted_index import Floats, Ints
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import OUTCOMES, GraphColumns, Mask, lookup_of
from recorder.memory.queries.tfidf import tfidf_vectors

#: Decimals of a similarity: the order in which floats were summed must decide no tie.
_DECIMALS = 9


class Similar(NamedTuple):
    """A session that is alike."""

    row: int
    #: 0 to 1.
    similarity: float
    #: Numbers of the nodes that both visited, in the order in which the session asked for did.
    shared_nodes: tuple[int, ...]


class SimilarIndex:
    """The sessions of one version of a graph, ready to be compared."""

    def __init__(self, columns: GraphColumns) -> None:
        self._columns = columns
        rows = lookup_of(columns).rows
        variants = columns.variant[rows]
        self._bags = tfidf_vectors(columns)
        counts = np.bincount(variants, minlength=len(self._bags.line_of))
        #: Lines of the matrix that sessions take: the bags may know variants whose sessions were deleted.
        self._taken = np.flatnonzero(counts[self._bags.variants])
        # By (variant, outcome), the newest first; then by id, as the rows come: a group's best are its first.
        group = variants * len(OUTCOMES) + columns.outcome[rows]
        self._ranked = rows[np.lexsort((-columns.started_ms[rows], group))]
        sizes = np.bincount(group, minlength=len(self._bags.line_of) * len(OUTCOMES))
        self._group_start = np.concatenate([[0], np.cumsum(sizes)])

    def nearest(self, row: int, limit: int) -> list[Similar]:
        """Return the sessions most similar to that of a row, without itself and those that share nothing.

        Equally similar ones come by outcome (the session's own first), then the newest, then by id.
        """
        columns = self._columns
        variant = self._variant(row)
        similarity = self._similarity(variant)
        rows, values = self._candidates(similarity, row, limit)
        is_other = columns.outcome[rows] != columns.outcome[row]
        order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], is_other, -values))[:limit]
        shared = _SharedNodes(columns, variant)
        return [
            Similar(other, value, shared.with_variant(self._variant(other)))
            for other, value in zip(rows[order].tolist(), values[order].tolist(), strict=True)
        ]

    def _variant(self, row: int) -> int:
        # Not `columns.variant[row]`, which looks up that of every row.
        return int(self._columns.trace_variant[self._columns.trace[row]])

    def _similarity(self, variant: int) -> Floats:
        """Compute the similarity of every line of the matrix to a variant."""
        bags = self._bags
        line = int(bags.line_of[variant])
        features = slice(bags.matrix.indptr[line], bags.matrix.indptr[line + 1])
        dense = np.zeros(bags.matrix.shape[1])
        dense[bags.matrix.indices[features]] = bags.matrix.data[features]
        similarity: Floats = np.round(np.clip(bags.matrix @ dense, 0.0, 1.0), _DECIMALS)
        # Also where it has no nodes, and so no features.
        similarity[line] = 1.0
        return similarity

    def _candidates(self, similarity: Floats, row: int, limit: int) -> tuple[Ints, Floats]:
        """Rows among which the nearest are, with their similarities: of each variant so many."""
        # Each has a session, so so many of them suffice; and those that are as similar as the last.
        taken = similarity[self._taken]
        wanted = min(limit + 1, len(taken))
        least = np.partition(taken, len(taken) - wanted)[len(taken) - wanted]
        lines = self._taken[(taken >= least) & (taken > 0)]
        groups = (self._bags.variants[lines, None] * len(OUTCOMES) + np.arange(len(OUTCOMES))).ravel()
        starts = self._group_start[groups]
        sizes = np.minimum(self._group_start[groups + 1] - starts, limit + 1)
        offsets = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = self._ranked[np.repeat(starts, sizes) + offsets]
        values = np.repeat(np.repeat(similarity[lines], len(OUTCOMES)), sizes)
        is_other = rows != row
        return rows[is_other], values[is_other]


def similar_index(columns: GraphColumns) -> SimilarIndex:
    """Return the index of a graph; made once for each version, so its weights are frozen with it."""
    return columns.derive("similar", SimilarIndex)


class _SharedNodes:
    """The nodes that other variants share with one."""

    def __init__(self, columns: GraphColumns, variant: int) -> None:
        self._columns = columns
        self._own = list(dict.fromkeys(self._nodes(variant)))
        self._known: dict[int, tuple[int, ...]] = {}

    def with_variant(self, variant: int) -> tuple[int, ...]:
        if variant not in self._known:
            others = frozenset(self._nodes(variant))
            self._known[variant] = tuple(node for node in self._own if node in others)
        return self._known[variant]

    def _nodes(self, variant: int) -> list[int]:
        start, end = self._columns.variant_start[variant : variant + 2]
        nodes: list[int] = self._columns.variant_nodes[start:end].tolist()
        return nodes


#: Paths of fewer sessions than this share are off the common ones, unless asked otherwise.
THRESHOLD = 0.01


@dataclass(frozen=True, slots=True)
class Outliers:
    """Rows of sessions, the least typical first, then the newest, then by id."""

    rows: Ints
    #: Share of the chosen sessions that are on the same path, and how usual the way is: both 0 to 1.
    path_frequency: Floats
    typicality: Floats


def find_outliers(columns: GraphColumns, chosen: Mask, *, threshold: float = THRESHOLD) -> Outliers:
    """Return the chosen sessions whose path fewer than `threshold` of the chosen ones take.

    A session without steps is on no path, and no outlier.
    """
    paths = columns.path
    total = max(int(chosen.sum()), 1)
    chosen = chosen & (paths != NO_PATH)
    counts = np.bincount(paths[chosen], minlength=len(columns.paths))
    frequency = counts / total
    rows = np.flatnonzero(chosen & (frequency[paths] < threshold))
    typical = typicality(columns, chosen)[columns.variant[rows]]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], typical))
    rows, typical = rows[order], typical[order]
    return Outliers(rows, frequency[paths[rows]], typical)


def typicality(columns: GraphColumns, chosen: Mask) -> Floats:
    """Compute for each variant the geometric mean of the probabilities of its edges, 0 to 1.

    P is the probability of the edge: chosen sessions that took it divided by chosen sessions that left its
    source, with add-one smoothing over all targets. The edge that enters the first node counts, the one that
    leaves the last node does not; a variant without nodes has the edge from start to end.
    """
    crossings = columns.derive("crossings", _list_entering)
    outside = len(columns.nodes)
    sessions = np.bincount(columns.variant[chosen], minlength=len(columns.variant_path))
    weights = sessions[crossings.variant].astype(np.float64)
    taken = np.bincount(crossings.edge, weights=weights, minlength=len(crossings.edge_source))
    departures = np.bincount(crossings.source, weights=weights, minlength=outside + 1)
    possible = len(np.unique(crossings.edge_target[taken > 0]))
    likely = np.log(taken + 1) - np.log(departures[crossings.edge_source] + max(possible, 1))
    sizes = np.bincount(crossings.variant, minlength=len(sessions))
    sums = np.bincount(crossings.variant, weights=likely[crossings.edge], minlength=len(sessions))
    typical: Floats = np.exp(sums / np.maximum(sizes, 1))
    return typical


def _list_entering(columns: GraphColumns) -> Crossings:
    """Return the crossings of a graph's variants, without those that leave a last node."""
    outside = len(columns.nodes)
    crossings = list_crossings(columns.variant_nodes, columns.variant_start, outside)
    kept = (crossings.target != outside) | (crossings.source == outside)
    return replace(
        crossings,
        variant=crossings.variant[kept],
        source=crossings.source[kept],
        target=crossings.target[kept],
        edge=crossings.edge[kept],
    )
