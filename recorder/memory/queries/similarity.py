"""Sessions alike in the shape of their way through the graph. Spec §4.2 (similar); contract §4.

Cosine of bags of nodes and edges at three grains (screen, action, node), as text retrieval compares
documents: weighted by (1 + ln tf) and inverse document frequency. Variants are compared, then expanded to
sessions: always those that are in the graph now, with their outcomes of now; only the weights may be older
(`bags`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recorder.memory.graph.inverted_index import Floats, Ints
from recorder.memory.queries.columns import OUTCOMES, GraphColumns, Mask, lookup_of
from recorder.memory.queries.tfidf import bags_of

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
        self._bags = bags_of(columns)
        counts = np.bincount(variants, minlength=len(self._bags.line_of))
        #: Lines of the matrix that sessions take: the bags may know variants whose sessions were deleted.
        self._taken = np.flatnonzero(counts[self._bags.variants])
        # By (variant, outcome), the newest first; then by id, as the rows come: a group's best are its first.
        group = variants * len(OUTCOMES) + columns.outcome[rows]
        self._ranked = rows[np.lexsort((-columns.started_ms[rows], group))]
        sizes = np.bincount(group, minlength=len(self._bags.line_of) * len(OUTCOMES))
        self._group_start = np.concatenate([[0], np.cumsum(sizes)])

    def nearest(self, row: int, limit: int) -> list[Similar]:
        """The sessions most like that of a row, itself left out, as are those that share nothing with it.

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
            Similar(found, value, shared.with_variant(self._variant(found)))
            for found, value in zip(rows[order].tolist(), values[order].tolist(), strict=True)
        ]

    def _variant(self, row: int) -> int:
        # Not `columns.variant[row]`, which looks up that of every row.
        return int(self._columns.trace_variant[self._columns.trace[row]])

    def _similarity(self, variant: int) -> Floats:
        """The similarity of every line of the matrix to a variant."""
        bags = self._bags
        line = int(bags.line_of[variant])
        own = slice(bags.matrix.indptr[line], bags.matrix.indptr[line + 1])
        dense = np.zeros(bags.matrix.shape[1])
        dense[bags.matrix.indices[own]] = bags.matrix.data[own]
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
    """The index of a graph; made once for each version, so its weights are frozen with it."""
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
    """The chosen sessions whose path fewer than `threshold` of the chosen ones take."""
    paths = columns.path
    counts = np.bincount(paths[chosen], minlength=len(columns.paths))
    frequency = counts / max(int(chosen.sum()), 1)
    rows = np.flatnonzero(chosen & (frequency[paths] < threshold))
    typical = typicality(columns, chosen)[columns.variant[rows]]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], typical))
    rows, typical = rows[order], typical[order]
    return Outliers(rows, frequency[paths[rows]], typical)


def typicality(columns: GraphColumns, chosen: Mask) -> Floats:
    """How usual the way of each variant is among the chosen sessions: exp of the mean log P(edge), 0 to 1.

    P(edge) is the share of its source's departures, one added to each possible one; the edge that leads into
    the session counts, the one that leads out does not.
    """
    steps = transitions_of(columns)
    sessions = np.bincount(columns.variant[chosen], minlength=len(columns.variant_path))
    weights = sessions[steps.owner].astype(np.float64)
    taken = np.bincount(steps.edge, weights=weights, minlength=len(steps.edge_source))
    departures = np.bincount(steps.source + 1, weights=weights, minlength=len(columns.nodes) + 1)
    possible = len(np.unique(steps.edge_target[taken > 0]))
    likely = np.log(taken + 1) - np.log(departures[steps.edge_source + 1] + max(possible, 1))
    sizes = np.bincount(steps.owner, minlength=len(sessions))
    sums = np.bincount(steps.owner, weights=likely[steps.edge], minlength=len(sessions))
    typical: Floats = np.exp(sums / np.maximum(sizes, 1))
    return typical


#: Where a session comes from before its first node, and where one without nodes goes to.
START, END = -1, -2


@dataclass(frozen=True, slots=True)
class Transitions:
    """One entry for each node that a variant enters; a variant without nodes goes from START to END."""

    #: Variant, and the two ends: node numbers, START or END.
    owner: Ints
    source: Ints
    target: Ints
    #: Number of the entry's edge among the different ones, whose ends are these.
    edge: Ints
    edge_source: Ints
    edge_target: Ints


def transitions_of(columns: GraphColumns) -> Transitions:
    """The transitions of a graph; made once for each version."""
    return columns.derive("transitions", _transitions)


def _transitions(columns: GraphColumns) -> Transitions:
    sizes = np.diff(columns.variant_start)
    entries = np.maximum(sizes, 1)
    owner = np.repeat(np.arange(len(sizes)), entries)
    first = np.cumsum(entries) - entries
    target = np.full(len(owner), END, dtype=np.int64)
    target[entries[owner] == sizes[owner]] = columns.variant_nodes
    source = np.roll(target, 1)
    source[first] = START
    # Ends are numbered from -2 on, so two of them make one number that is not negative.
    base = len(columns.nodes) + 2
    keys, edge = np.unique((source + 2) * base + target + 2, return_inverse=True)
    return Transitions(owner, source, target, edge, keys // base - 2, keys % base - 2)
