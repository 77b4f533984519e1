"""Groups of variants that are alike: communities of the graph of nearest neighbours. Spec §2.6.

Each variant is linked to the nearest others by cosine. Variants are a group that are in one community both by
Louvain's method and by label propagation; a group whose sessions go several ways is split. Decision 0038
shows other methods.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from recorder.memory.graph.arrays import Floats, Ints
from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.shown_way import ShownWayVariants, split_ways

#: Method by which variants are grouped, as graph versions record it.
GROUPING = "louvain_and_label_propagation"
#: Cosine from which on two variants are linked, and a variant joins a path.
PATH_COSINE = 0.55
NEIGHBOURS = 30
#: Memory for the distances to the nearest that are computed at once.
_MAX_MEBIBYTES = 32.0
#: Group of a variant that has none yet.
NO_GROUP = -1


def group_variants(
    vectors: Any,
    sequences: Sequence[tuple[int, ...]],
    sessions: Sequence[int],
    bounds: GraphBounds = GRAPH_BOUNDS,
) -> Ints:
    """Return the group of each variant; a variant that has no features left is a group of its own.

    Args:
        vectors: the weighted features of each, in rows of length 1.
        sequences: the nodes of each.
        sessions: how many took it; the most frequent first.
        bounds: how many variants are grouped at once, and in how many rounds.
    """
    groups = np.full(len(sequences), NO_GROUP, dtype=np.int64)
    rest = np.flatnonzero(np.diff(vectors.indptr))
    count = rounds = 0
    while len(rest):
        if rounds == bounds.rounds:
            # Those that share the feature of most weight come together.
            rest = rest[np.argsort(vectors[rest].argmax(axis=1), kind="stable")]
        some, rest = rest[: bounds.grouped], rest[bounds.grouped :]
        for community in _list_communities(vectors[some]):
            rows = some[community]
            ways = ShownWayVariants.of([sequences[row] for row in rows], [sessions[row] for row in rows])
            for part in split_ways(ways):
                groups[rows[part]] = count
                count += 1
        rounds += 1
        if len(rest) and rounds <= bounds.rounds:
            nearest, cosine = find_nearest_neighbours(vectors[some], vectors[rest])
            is_near = cosine >= PATH_COSINE
            groups[rest[is_near]] = groups[some[nearest[is_near]]]
            rest = rest[~is_near]
    alone = np.flatnonzero(groups == NO_GROUP)
    groups[alone] = count + np.arange(len(alone))
    return groups


def find_nearest_neighbours(
    known: Any, vectors: Any, *, max_mebibytes: float = _MAX_MEBIBYTES
) -> tuple[Ints, Floats]:
    """Return for each vector the nearest known vector and its cosine; of equally near ones, the first.

    Args:
        known: sparse rows of length 1.
        vectors: rows to compare with them.
        max_mebibytes: memory for the distances that are computed at once.
    """
    # Not at the top: what only records sessions need not load it.
    from sklearn.metrics import pairwise_distances_chunked

    nearest = pairwise_distances_chunked(
        vectors, known, reduce_func=_reduce_distances, metric="cosine", working_memory=max_mebibytes
    )
    positions, cosines = zip(*nearest, strict=True)
    return np.concatenate(positions), np.concatenate(cosines)


def _reduce_distances(distances: Floats, _start: int) -> tuple[Ints, Floats]:
    """Return, for each row of a block of cosine distances, the nearest column and its cosine."""
    # Rounded: the order in which floats were summed must decide neither ties nor the threshold.
    cosines = np.round(1 - distances, 9)
    return cosines.argmax(axis=1), cosines.max(axis=1)


def link_neighbours(vectors: Any) -> Any:
    """Return the NetworkX graph of at least two vectors, each linked to its nearest with their cosine."""
    # Not at the top: what only records sessions need not load them.
    import networkx as nx
    from sklearn.neighbors import NearestNeighbors

    count = vectors.shape[0]
    neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS + 1, count), metric="cosine", algorithm="brute")
    distances, positions = neighbours.fit(vectors).kneighbors(vectors)
    cosine = np.round(1 - distances, 9)
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    rows, columns = np.nonzero(cosine >= PATH_COSINE)
    links = zip(rows.tolist(), positions[rows, columns].tolist(), cosine[rows, columns].tolist(), strict=True)
    graph.add_weighted_edges_from(sorted(link for link in links if link[0] != link[1]))
    return graph


def _list_communities(vectors: Any) -> list[Ints]:
    """Return the communities of vectors, each in order, the one of the first vector first."""
    import networkx as nx

    if vectors.shape[0] == 1:
        return [np.zeros(1, dtype=np.int64)]
    graph = link_neighbours(vectors)
    # Louvain leaves small groups in large ones; labels spread from group to group over a single link. Neither
    # draws by chance: the one has a seed, the other is semi-synchronous (Cordasco and Gargano, 2010).
    numbers = [
        {row: number for number, part in enumerate(parts) for row in part}
        for parts in (
            nx.community.louvain_communities(graph, seed=0),
            nx.community.label_propagation_communities(graph),
        )
    ]
    communities: dict[tuple[int, ...], list[int]] = {}
    for row in range(vectors.shape[0]):
        communities.setdefault(tuple(number_of[row] for number_of in numbers), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in communities.values()]
