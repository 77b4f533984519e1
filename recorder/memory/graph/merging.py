"""Nodes that turn out to be one: average linkage over the screens of their micro-states. Spec §2.6.

A node is led by whichever screen came first, so two nodes may share one kind of screen between them. A
rebuild sees all of their screens: nodes of one act are merged, the most alike first, while the mean
similarity of their screens is high enough. Nothing is ever split, and the older node lives on.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.inverted_index import Floats, InvertedIndex

#: Mean Jaccard similarity of the screens of two nodes from which on they are merged.
MERGE_JACCARD = 0.45
#: Screens of one act that are compared with each other; of more, each node is judged by a share of its own.
#: An act of more nodes than this is left as it is: the time goes with their square.
_MAX_SCREENS, _MAX_NODES = 2_000, 600
#: Features of a screen that count here: the smallest hashes, a sample.
_MAX_FEATURES = 128
#: LeaderSimilarity of what cannot be merged: a node with itself, or what is merged already.
_APART = -1.0


@dataclass(frozen=True, slots=True)
class Shown:
    """A micro-state as merging sees it: whose it is, and the hashed tokens of its screen."""

    node: int
    act: int
    micro_key: int
    features: Sequence[int]


def merged_nodes(shown: Iterable[Shown]) -> dict[int, int]:
    """Return the nodes that are merged, each with the older node that it is merged into."""
    by_act: defaultdict[int, list[Shown]] = defaultdict(list)
    for state in shown:
        by_act[state.act].append(state)
    merged: dict[int, int] = {}
    for states in by_act.values():
        nodes = sorted({state.node for state in states})
        if 1 < len(nodes) <= _MAX_NODES:
            merged |= _linked(nodes, *_similarity(nodes, states))
    return merged


def _similarity(nodes: Sequence[int], states: Iterable[Shown]) -> tuple[Floats, Floats]:
    """Mean Jaccard similarity between the screens of any two nodes, and how many screens each has."""
    share = max(1, _MAX_SCREENS // len(nodes))
    chosen: list[Shown] = []
    held: defaultdict[int, int] = defaultdict(int)
    for state in sorted(states, key=lambda state: (state.node, state.micro_key)):
        held[state.node] += 1
        if held[state.node] <= share:
            chosen.append(state)
    postings = InvertedIndex()
    for state in chosen:
        postings.add(state.features[:_MAX_FEATURES])
    totals = postings.totals()
    starts = np.searchsorted([state.node for state in chosen], nodes)
    sizes = np.diff(np.append(starts, len(chosen))).astype(np.float64)
    sums = np.zeros((len(nodes), len(nodes)))
    places = np.repeat(np.arange(len(nodes)), sizes.astype(np.int64))
    for index, state in zip(places, chosen, strict=True):
        features = state.features[:_MAX_FEATURES]
        shared = postings.overlaps(features)
        union = totals + len(features) - shared
        jaccard = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
        sums[index] += np.add.reduceat(jaccard, starts)
    return sums / np.outer(sizes, sizes), sizes


def _linked(nodes: Sequence[int], likeness: Floats, sizes: Floats) -> dict[int, int]:
    """Merge the most alike pair while there is one; of equals the oldest."""
    # Rounded: the order in which floats were summed must not decide.
    likeness = np.round(likeness, 9)
    np.fill_diagonal(likeness, _APART)
    merged: dict[int, int] = {}
    while True:
        kept, other = divmod(int(np.argmax(likeness)), len(nodes))
        if likeness[kept, other] < MERGE_JACCARD:
            break
        # The mean over the screens of both (Lance and Williams' update for average linkage).
        total = sizes[kept] + sizes[other]
        both = np.round((sizes[kept] * likeness[kept] + sizes[other] * likeness[other]) / total, 9)
        both[likeness[kept] == _APART] = _APART
        both[other] = _APART
        likeness[kept], likeness[:, kept] = both, both
        likeness[other], likeness[:, other] = _APART, _APART
        sizes[kept] = total
        merged[nodes[other]] = nodes[kept]
    return {node: _last(merged, node) for node in merged}


def _last(merged: dict[int, int], node: int) -> int:
    while node in merged:
        node = merged[node]
    return node
