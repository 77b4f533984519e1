"""Code of the memory that is written by hand, beside what the libraries offer for it. Decision 0038.

Each pair gets the same planted workflow, or the same screens, and gives the same result; the ratio is our CPU
time by the library's. Neighbours and communities are not among them: those are scikit-learn's and NetworkX's.
"""

import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import csr_array, hstack
from sklearn.cluster import AgglomerativeClustering
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import pairwise_distances
from sklearn.preprocessing import normalize

from benchmarks.figure_reports import Figure, at_most
from benchmarks.memory.clustering_methods import binary_features
from benchmarks.memory.graphs import stored_graph
from benchmarks.memory.planted import plant
from benchmarks.memory.planted_quality import sealed_of
from recorder.memory.graph.arrays import Ints
from recorder.memory.graph.features import GRAINS, FeatureCounts
from recorder.memory.graph.inverted_index import InvertedIndex
from recorder.memory.graph.nodes import MERGE_JACCARD, MergeCandidate, Node, find_merged_nodes
from recorder.memory.views.dominators import find_immediate_dominators
from recorder.memory.views.formats import format_graph_as_dot
from recorder.memory.views.graph_view import GraphView, graph_view_of
from recorder.memory.views.layout import lay_out_graph

_RUNS = 5
_SESSIONS, _QUICK_SESSIONS = 10_000, 3_000
#: Sets that are looked up.
_LOOKED_UP = 200
#: Screens of one act that are merged.
_SCREENS = 400
#: Steps of the chain, and joins, of the graph whose dominators are computed.
_CHAIN = 300

Pair = tuple[Callable[[], Any], Callable[[], Any]]


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure the product's code and the library's in turn, on one planted workflow."""
    sequences, nodes, view = _variants(_QUICK_SESSIONS if quick else _SESSIONS)
    counts = FeatureCounts()
    features = counts.number_features(sequences, nodes)
    for numbers in features:
        counts.count(numbers, 1)
    squared, _ = counts.weights()
    grains = [np.flatnonzero(counts.grains == grain) for grain in range(GRAINS)]
    pairs: dict[str, tuple[Pair, str]] = {
        "features of variants": (
            (
                lambda: FeatureCounts().number_features(sequences, nodes),
                lambda: _count_vectorized(sequences, nodes),
            ),
            "CountVectorizer",
        ),
        "weighted vectors": (
            (lambda: counts.vectors(features), lambda: _normalize_grains(counts, features, grains)),
            "normalize",
        ),
        "sets that grow, and their overlaps": (
            (lambda: _grow_index(features), lambda: _grow_matrix(features, len(squared))),
            "SciPy",
        ),
        "screens merged by average linkage": (_linkages(), "AgglomerativeClustering"),
        "dominators": (_dominators(), "NetworkX"),
    }
    if shutil.which("dot"):
        pairs["layout of a drawing"] = (_layouts(view), "Graphviz")
    return [_time_pair(name, pair, peer, len(sequences), quick=quick) for name, (pair, peer) in pairs.items()]


def _variants(sessions: int) -> tuple[list[tuple[int, ...]], Sequence[Node], GraphView]:
    with stored_graph() as graph:
        graph.add([sealed_of(session) for session in plant(sessions).sessions], batch=1_000)
        recorded, columns = graph.recorded(), graph.columns()
    sequences = sorted({nodes for nodes, _ in recorded.variants.values() if nodes})
    return sequences, recorded.nodes, graph_view_of(columns, columns.current(), workflow="benchmark")


def _time_pair(name: str, pair: Pair, peer: str, variants: int, *, quick: bool) -> Figure:
    times: tuple[list[float], list[float]] = ([], [])
    for run in pair:
        run()  # loads what it imports
    for _ in range(3 if quick else _RUNS):
        for run, spent in zip(pair, times, strict=True):
            began = _read_cpu_time()
            run()
            spent.append((_read_cpu_time() - began) * 1_000)
    return Figure(
        name=f"clusterings, code by hand: {name}",
        unit="ms",
        ours=times[0],
        peer=times[1],
        peer_name=peer,
        goal=at_most(0.5),
        detail={"variants": variants, "seed": 0},
    )


def _read_cpu_time() -> float:
    """Return the seconds of CPU that all threads and ended children took: other work must not decide."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
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


def _normalize_grains(counts: FeatureCounts, features: Sequence[Ints], grains: Sequence[Ints]) -> Any:
    """Return the vectors of `FeatureCounts` as scikit-learn scales rows to length 1, grain by grain."""
    squared, weights = counts.weights()
    weighted = binary_features(features, len(squared)).multiply(np.sqrt(squared)).tocsr()
    blocks = [
        normalize(weighted[:, columns]) * np.sqrt(weight)
        for columns, weight in zip(grains, weights, strict=True)
    ]
    return normalize(hstack(blocks, format="csr"))


def _grow_index(features: Sequence[Ints]) -> list[Any]:
    index = InvertedIndex()
    overlaps = []
    for numbers in features[:_LOOKED_UP]:
        overlaps.append(index.overlaps(numbers.tolist()))
        index.add(numbers.tolist())
    return overlaps


def _grow_matrix(features: Sequence[Ints], width: int) -> list[Any]:
    """Find each set among those before it in a sparse matrix, which is built again for each."""
    overlaps = []
    for count in range(1, min(_LOOKED_UP, len(features))):
        known = binary_features(features[:count], width)
        overlaps.append(known @ csr_array(binary_features(features[count : count + 1], width)).T)
    return overlaps


def _linkages() -> Pair:
    """Return the merging of nodes of one act by the likeness of their screens, some of which share parts."""
    draw = random.Random(0)
    screens = []
    for _ in range(_SCREENS // 4):
        shared = draw.sample(range(10_000), 60)
        for share in (1.0, 0.8, 0.6, 0.4):
            parts = shared[: round(60 * share)]
            screens.append(sorted({*parts, *draw.sample(range(10_000), 60 - len(parts))}))
    shown = [MergeCandidate(number, 0, number, parts) for number, parts in enumerate(screens)]
    linkage = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=1 - MERGE_JACCARD
    )

    def link() -> Any:
        held = np.zeros((len(screens), 10_000), dtype=np.bool_)
        for row, parts in enumerate(screens):
            held[row, parts] = True
        return linkage.fit_predict(pairwise_distances(held, metric="jaccard"))

    return lambda: find_merged_nodes(shown), link


def _dominators() -> Pair:
    """Return the dominators of a graph that ten sessions can record.

    A chain ends at many joins, which the start leads to as well; beside it a ladder is gone up and down.
    """
    chain = [f"chain {number}" for number in range(_CHAIN)]
    joins = [f"join {number}" for number in range(_CHAIN)]
    ladder = [f"ladder {number}" for number in range(_CHAIN)]
    edges = [("start", chain[0]), *pairwise(chain), *((chain[-1], join) for join in joins)]
    edges += [*(("start", join) for join in joins), (chain[0], ladder[0]), ("start", ladder[-1])]
    edges += [*pairwise(ladder), *pairwise(reversed(ladder))]
    graph = nx.DiGraph(edges)
    return (
        lambda: find_immediate_dominators(graph.adj, "start"),
        lambda: nx.immediate_dominators(graph, "start"),
    )


def _layouts(view: GraphView) -> Pair:
    """Return the places of nodes in layers, with room for labels; Graphviz draws no lines of edges here."""
    source = format_graph_as_dot(view)
    command = ["dot", "-Tplain", "-Gsplines=false"]
    return lambda: lay_out_graph(view), lambda: subprocess.run(
        command, input=source, capture_output=True, check=True
    )
