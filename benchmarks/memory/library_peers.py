"""Code of the memory that is written by hand, beside what scikit-learn and SciPy offer for it. Decision 0038.

Each pair gets the variants of the same planted workflow; the ratio is the library's time by ours.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from benchmarks.figures import Figure, at_most
from benchmarks.memory.clustering_methods import binary_features
from benchmarks.memory.graphs import stored_graph
from benchmarks.memory.planted import plant
from benchmarks.memory.planted_quality import sealed_of
from recorder.memory.graph.communities import find_nearest
from recorder.memory.graph.features import FeatureCounts
from recorder.memory.graph.inverted_index import Ints, InvertedIndex
from recorder.memory.graph.nodes import Node
from recorder.memory.graph.rebuild import rand_index

_RUNS = 5
_SESSIONS, _QUICK_SESSIONS = 10_000, 3_000
#: Sets that are looked up, and exemplars that the others are compared with.
_LOOKED_UP, _KNOWN = 200, 400

Pair = tuple[Callable[[], Any], Callable[[], Any]]


def measure(*, quick: bool = False) -> list[Figure]:
    """Time the product's code and the library's in turn, on one planted workflow."""
    sequences, nodes = _variants(_QUICK_SESSIONS if quick else _SESSIONS)
    counts = FeatureCounts()
    features = counts.of(sequences, nodes)
    for numbers in features:
        counts.count(numbers, 1)
    vectors = counts.vectors(features)
    binary = binary_features(features, vectors.shape[1])
    pairs: dict[str, tuple[Pair, str]] = {
        "features of variants": (
            (lambda: FeatureCounts().of(sequences, nodes), lambda: _count_vectorized(sequences, nodes)),
            "CountVectorizer",
        ),
        "weighted vectors": (
            (lambda: counts.vectors(features), lambda: TfidfTransformer().fit_transform(binary)),
            "TfidfTransformer",
        ),
        "nearest exemplar": (
            (
                lambda: find_nearest(vectors[:_KNOWN], vectors[_KNOWN:]),
                lambda: _nearest_neighbour(vectors[:_KNOWN], vectors[_KNOWN:]),
            ),
            "NearestNeighbors",
        ),
        "sets that grow, and their overlaps": (
            (lambda: _grow_index(features), lambda: _grow_matrix(features, binary.shape[1])),
            "SciPy",
        ),
        "index of two groupings": (_rand_indices(len(sequences)), "adjusted_rand_score"),
    }
    return [_time_pair(name, pair, peer, len(sequences), quick=quick) for name, (pair, peer) in pairs.items()]


def _variants(sessions: int) -> tuple[list[tuple[int, ...]], Sequence[Node]]:
    with stored_graph() as graph:
        graph.add([sealed_of(session) for session in plant(sessions).sessions], batch=1_000)
        recorded = graph.recorded()
    return sorted({nodes for nodes, _ in recorded.variants.values() if nodes}), recorded.nodes


def _time_pair(name: str, pair: Pair, peer: str, variants: int, *, quick: bool) -> Figure:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(3 if quick else _RUNS):
        for run, spent in zip(pair, times, strict=True):
            began = time.perf_counter()
            run()
            spent.append((time.perf_counter() - began) * 1_000)
    return Figure(
        name=f"clusterings, code by hand: {name}",
        unit="ms",
        ours=times[0],
        peer=times[1],
        peer_name=peer,
        goal=at_most(0.5),
        detail={"variants": variants, "seed": 0},
    )


def _count_vectorized(sequences: Sequence[tuple[int, ...]], nodes: Sequence[Node]) -> Any:
    """Return the features of `FeatureCounts` as scikit-learn counts them."""
    grains: list[Callable[[int], int]] = [
        lambda number: nodes[number].screen,
        lambda number: nodes[number].act,
        lambda number: number,
    ]
    blocks = []
    for grain in grains:
        texts = [
            [str(value) for value, _ in groupby(grain(number) for number in sequence)]
            for sequence in sequences
        ]
        vectorizer = CountVectorizer(
            tokenizer=list,
            preprocessor=None,
            lowercase=False,
            token_pattern=None,
            ngram_range=(1, 2),
            binary=True,
        )
        blocks.append(vectorizer.fit_transform(texts))
    parts = [
        [part for number in set(sequence) for part in nodes[number].features[:16]] for sequence in sequences
    ]
    if any(parts):
        blocks.append(CountVectorizer(analyzer=lambda part: part, binary=True).fit_transform(parts))
    return hstack(blocks).tocsr()


def _nearest_neighbour(known: Any, vectors: Any) -> Any:
    nearest = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute")
    return nearest.fit(known).kneighbors(vectors)


def _grow_index(features: Sequence[Ints]) -> list[Any]:
    index = InvertedIndex()
    overlaps = []
    for numbers in features[:_LOOKED_UP]:
        overlaps.append(index.overlaps(numbers.tolist()))
        index.add(numbers.tolist())
    return overlaps


def _grow_matrix(features: Sequence[Ints], width: int) -> list[Any]:
    """Look up each set among those before it in a sparse matrix, which is built again for each."""
    overlaps = []
    for count in range(1, min(_LOOKED_UP, len(features))):
        known = binary_features(features[:count], width)
        overlaps.append(known @ csr_array(binary_features(features[count : count + 1], width)).T)
    return overlaps


def _rand_indices(variants: int) -> Pair:
    """Return the index of two groupings of 100 sessions a variant, from counts and from labels."""
    draw = random.Random(0)
    groups = [(draw.randrange(30), draw.randrange(30)) for _ in range(variants)]
    left = np.repeat([first for first, _ in groups], 100)
    right = np.repeat([second for _, second in groups], 100)

    def counted() -> float:
        labels: Counter[tuple[int, int]] = Counter()
        for pair in groups:
            labels[pair] += 100
        return rand_index(labels)

    return counted, lambda: adjusted_rand_score(left, right)
