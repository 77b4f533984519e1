"""Ways to group variants into paths: the product's, and those of scikit-learn and NetworkX. Contract §4.

All group the same variants of the same nodes. As in the product, a method groups the most frequent variants,
and the others join the nearest of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import csr_array
from sklearn.cluster import DBSCAN, HDBSCAN, AgglomerativeClustering
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.neighbors import NearestNeighbors

from recorder.memory.graph.arrays import Ints
from recorder.memory.graph.bounds import GRAPH_BOUNDS
from recorder.memory.graph.communities import (
    NEIGHBOURS,
    NO_GROUP,
    PATH_COSINE,
    find_nearest_neighbours,
    group_variants,
    link_neighbours,
)
from recorder.memory.graph.features import PRUNE_SESSIONS, FeatureCounts
from recorder.memory.graph.nodes import Node
from recorder.memory.graph.shown_way import ShownWayVariants, split_ways


@dataclass(frozen=True, slots=True)
class Variants:
    """Variants that have features, the most frequent first."""

    sequences: Sequence[tuple[int, ...]]
    sessions: Ints
    #: The product's weighted features, in rows of length 1.
    vectors: Any
    #: The same features, weighted by scikit-learn's `TfidfTransformer`.
    tfidf: Any
    #: The same features, 0 or 1.
    binary: Any

    @classmethod
    def of(cls, sequences: Sequence[tuple[int, ...]], sessions: Ints, nodes: Sequence[Node]) -> "Variants":
        """Return variants with the features of their nodes; `sequences` begin with the most frequent."""
        counts = FeatureCounts()
        features = counts.number_features(sequences, nodes)
        for numbers, count in zip(features, sessions.tolist(), strict=True):
            counts.count(numbers, count)
        vectors = counts.vectors(features)
        binary = binary_features(features, vectors.shape[1])
        repeated = np.repeat(np.arange(len(sequences)), sessions)
        common = np.flatnonzero(binary[repeated].sum(axis=0) >= PRUNE_SESSIONS)
        binary = csr_array(binary[:, common])
        tfidf = TfidfTransformer().fit(binary[repeated]).transform(binary)
        return cls(sequences, sessions, vectors, csr_array(tfidf), binary)

    def part(self, rows: Ints) -> "Variants":
        """Return some of the variants."""
        sequences = [self.sequences[row] for row in rows]
        return Variants(
            sequences, self.sessions[rows], self.vectors[rows], self.tfidf[rows], self.binary[rows]
        )


def binary_features(features: Sequence[Ints], count: int) -> Any:
    """Return a sparse matrix with a row of 0 and 1 for each."""
    starts = np.concatenate([[0], np.cumsum([len(numbers) for numbers in features])])
    numbers = np.concatenate(features)
    return csr_array((np.ones(len(numbers)), numbers, starts), shape=(len(features), count))


Method = Callable[[Variants], Ints]


def group_by_product(variants: Variants) -> Ints:
    """Return the groups that a rebuild of the service makes."""
    return group_variants(variants.vectors, variants.sequences, variants.sessions.tolist())


def group_by(method: Method, *, split: bool = False) -> Method:
    """Return a method that groups any number of variants, and splits groups by edits if asked to."""

    def group(variants: Variants) -> Ints:
        groups = np.full(len(variants.sequences), NO_GROUP, dtype=np.int64)
        usable = np.flatnonzero(np.diff(variants.vectors.indptr) * np.diff(variants.binary.indptr))
        some, rest = usable[: GRAPH_BOUNDS.grouped], usable[GRAPH_BOUNDS.grouped :]
        groups[some] = _split(variants.part(some), method) if split else method(variants.part(some))
        if len(rest):
            nearest, cosine = find_nearest_neighbours(variants.vectors[some], variants.vectors[rest])
            is_near = cosine >= PATH_COSINE
            groups[rest[is_near]] = groups[some[nearest[is_near]]]
        return _number_alone(groups)

    return group


def _split(variants: Variants, method: Method) -> Ints:
    labels = method(variants)
    parts = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        ways = ShownWayVariants.of(
            [variants.sequences[int(row)] for row in rows], variants.sessions[rows].tolist()
        )
        parts += [rows[part] for part in split_ways(ways)]
    return _labels_of(parts, len(labels))


def _average_linkage(variants: Variants) -> Ints:
    linkage = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=0.55
    )
    return np.asarray(linkage.fit_predict(_distances(variants)), dtype=np.int64)


def _hdbscan(variants: Variants) -> Ints:
    hdbscan = HDBSCAN(min_cluster_size=min(5, len(variants.sequences)), metric="precomputed", copy=False)
    return _number_alone(hdbscan.fit_predict(_distances(variants)))


def _dbscan(variants: Variants) -> Ints:
    return _number_alone(
        DBSCAN(eps=0.3, min_samples=5, metric="precomputed").fit_predict(_distances(variants))
    )


def _louvain(variants: Variants) -> Ints:
    graph = link_neighbours(variants.vectors)
    return _labels_of(nx.community.louvain_communities(graph, seed=0), len(graph))


def _shared_neighbours(variants: Variants) -> Ints:
    """Group by Louvain's communities of variants whose nearest neighbours by TF-IDF are the same."""
    count = len(variants.sequences)
    neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS, count), metric="cosine", algorithm="brute")
    near = neighbours.fit(variants.tfidf).kneighbors_graph(variants.tfidf, mode="distance").tocsr()
    near.data = (near.data <= 1 - PATH_COSINE).astype(np.float64)
    near.eliminate_zeros()
    near = csr_array(near)
    shared = near.multiply((near @ near.T) / NEIGHBOURS)
    graph = nx.from_scipy_sparse_array(csr_array(shared.maximum(shared.T)))
    return _labels_of(nx.community.louvain_communities(graph, seed=0), count)


def _label_propagation(variants: Variants) -> Ints:
    graph = link_neighbours(variants.vectors)
    return _labels_of(nx.community.label_propagation_communities(graph), len(graph))


def _asynchronous_propagation(variants: Variants) -> Ints:
    graph = link_neighbours(variants.vectors)
    communities = nx.community.asyn_lpa_communities(graph, weight="weight", seed=0)
    return _labels_of(communities, len(graph))


def _greedy_modularity(variants: Variants) -> Ints:
    graph = link_neighbours(variants.vectors)
    return _labels_of(nx.community.greedy_modularity_communities(graph, weight="weight"), len(graph))


def _connected_components(variants: Variants) -> Ints:
    graph = link_neighbours(variants.vectors)
    return _labels_of(nx.connected_components(graph), len(graph))


def _leaders(variants: Variants) -> Ints:
    """Let each variant, the most frequent first, join the leader that it shares half of all features with."""
    sizes = variants.binary.sum(axis=1)
    shared = (variants.binary @ variants.binary.T).toarray()
    jaccard = shared / (sizes[:, None] + sizes[None, :] - shared)
    leaders: list[int] = []
    labels = np.zeros(len(sizes), dtype=np.int64)
    for row in range(len(sizes)):
        likeness = jaccard[row, leaders]
        if len(leaders) and likeness.max() >= 0.5:
            labels[row] = likeness.argmax()
        else:
            labels[row] = len(leaders)
            leaders.append(row)
    return labels


def _distances(variants: Variants) -> Any:
    return np.clip(1 - (variants.vectors @ variants.vectors.T).toarray(), 0, None)


def _labels_of(parts: Iterable[Iterable[int]], count: int) -> Ints:
    labels = np.zeros(count, dtype=np.int64)
    for number, part in enumerate(parts):
        labels[list(part)] = number
    return labels


def _number_alone(labels: Ints) -> Ints:
    """Give each thing without a group (-1) one of its own."""
    numbered = np.array(labels, dtype=np.int64)
    alone = np.flatnonzero(numbered < 0)
    numbered[alone] = int(numbered.max(initial=-1)) + 1 + np.arange(len(alone))
    return numbered


#: Those measured, by name; each groups all variants of a workflow.
METHODS: dict[str, Method] = {
    "product: Louvain and label propagation, split": group_by_product,
    "label propagation": group_by(_label_propagation),
    "label propagation, split": group_by(_label_propagation, split=True),
    "asynchronous label propagation": group_by(_asynchronous_propagation),
    "asynchronous label propagation, split": group_by(_asynchronous_propagation, split=True),
    "Louvain": group_by(_louvain),
    "Louvain, split": group_by(_louvain, split=True),
    "Louvain of shared neighbours, TF-IDF": group_by(_shared_neighbours),
    "average linkage, cosine .45": group_by(_average_linkage),
    "average linkage, split": group_by(_average_linkage, split=True),
    "HDBSCAN, 5 variants": group_by(_hdbscan),
    "DBSCAN, cosine .7, 5 variants": group_by(_dbscan),
    "greedy modularity": group_by(_greedy_modularity),
    "connected components": group_by(_connected_components),
    "leaders, Jaccard .5": group_by(_leaders),
}
