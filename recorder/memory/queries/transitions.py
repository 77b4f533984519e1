"""Steps from node to node of every variant, as columns: what edges are counted from. Spec §2.6."""

from dataclasses import dataclass

import numpy as np

from recorder.memory.grouping.inverted_index import Ints
from recorder.memory.queries.columns import GraphColumns

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
