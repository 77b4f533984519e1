"""Vectors for similarity queries: grams of screens, actions and nodes of each variant. Contract §4 (similar).

There are seven blocks: the screens, actions and nodes of a variant, the pairs of each that follow each
other, and the parts of its screens. A block of pairs weighs half as much as another one. Within a block all
features count alike, so that two variants of equal length which share half of a block's features have half
of its weight in common. No feature is weighted by its frequency: the mean average precision was .84 with
such weights and is .89 without (benchmarks/memory/tasks.py), and what half of the sessions share would
count as nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from recorder.memory.graph.arrays import Bools, Ints, mark_changes, sort_distinct
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.structure import make_empty_column

#: Blocks: screens, actions and nodes, each alone and in pairs; parts of screens.
_ACTIONS, _ACTION_PAIRS, _PARTS = 2, 3, 6
#: Weight of each block. Pairs weigh less: where every second step differs, no pair is shared.
_BLOCK_WEIGHTS = np.array([2, 1, 2, 1, 2, 1, 2], dtype=np.int64)
_BLOCKS = len(_BLOCK_WEIGHTS)
#: A gram is one number: the block, then two values of so many bits.
_BLOCK_BITS, _VALUE_BITS = 60, 30

_Values = npt.NDArray[np.float32]


def _make_empty_step_matrix() -> Any:
    # Not at the top: what only records sessions need not load it.
    from scipy.sparse import csr_array

    return csr_array((0, 1), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class StepVectors:
    """Features of variants, as sparse lines of length 1; a variant without nodes has none."""

    #: Variant of each line, and the line of each variant or -1.
    variants: Ints = field(default_factory=make_empty_column)
    line_of: Ints = field(default_factory=make_empty_column)
    #: The lines in two matrices: features of actions, and all others.
    actions: Any = field(default_factory=_make_empty_step_matrix)
    others: Any = field(default_factory=_make_empty_step_matrix)
    #: The features by gram, ascending, each with its column in both.
    grams: Ints = field(default_factory=make_empty_column)
    column_of: Ints = field(default_factory=make_empty_column)


def step_vectors(columns: GraphColumns) -> StepVectors:
    """Return the step vectors of variants from the graph's cache, which those of new variants extend.

    A vector stays as it is until a rebuild, so those of earlier versions are kept. A caller waits while
    another one makes them.
    """
    lasting = columns.lasting
    with lasting.lock:
        vectors = _extend_step_vectors(lasting.made.get("vectors", StepVectors()), columns)
        lasting.made["vectors"] = vectors
    return vectors


def _extend_step_vectors(vectors: StepVectors, columns: GraphColumns) -> StepVectors:
    """Return the vectors with a line for each new variant that sessions take."""
    line_of = np.full(max(len(columns.variant_path), len(vectors.line_of)), -1, dtype=np.int64)
    line_of[: len(vectors.line_of)] = vectors.line_of
    variants = sort_distinct(columns.variant[columns.current()])
    fresh = variants[line_of[variants] < 0]
    if not len(fresh):
        return replace(vectors, line_of=line_of)
    lines = np.full(len(line_of), -1, dtype=np.int64)
    lines[fresh] = np.arange(len(fresh))
    owners, grams = _list_grams(columns, lines)
    unknown = np.setdiff1d(grams, vectors.grams)
    all_grams = np.concatenate([vectors.grams, unknown])
    ascending = np.argsort(all_grams)
    # Columns of the matrix stay, so new features follow, wherever their grams are.
    column_of = np.concatenate([vectors.column_of, len(vectors.grams) + np.arange(len(unknown))])[ascending]
    distinct = all_grams[ascending]
    features = column_of[np.searchsorted(distinct, grams)]
    line_of[fresh] = len(vectors.variants) + np.arange(len(fresh))
    weights = _weigh_step_vector_features(owners, grams)
    block = grams >> _BLOCK_BITS
    is_action = (block == _ACTIONS) | (block == _ACTION_PAIRS)

    def add_lines(matrix: Any, chosen: Bools) -> Any:
        return _add_step_vector_lines(
            matrix, owners[chosen], features[chosen], weights[chosen], len(fresh), len(distinct)
        )

    return StepVectors(
        variants=np.concatenate([vectors.variants, fresh]),
        line_of=line_of,
        actions=add_lines(vectors.actions, is_action),
        others=add_lines(vectors.others, ~is_action),
        grams=distinct,
        column_of=column_of,
    )


def _weigh_step_vector_features(owners: Ints, grams: Ints) -> _Values:
    """Return the weight of each feature of each line: blocks share a line, features share their block."""
    block = grams >> _BLOCK_BITS
    lines = owners * _BLOCKS + block
    sizes = np.bincount(lines)
    # Blocks that a line has none of, such as pairs of a single step, take no part.
    present = np.flatnonzero(sizes)
    totals = np.bincount(present // _BLOCKS, weights=_BLOCK_WEIGHTS[present % _BLOCKS])
    weights: _Values = np.sqrt(_BLOCK_WEIGHTS[block] / (sizes[lines] * totals[owners])).astype(np.float32)
    return weights


def _add_step_vector_lines(
    matrix: Any, owners: Ints, features: Ints, weights: _Values, count: int, width: int
) -> Any:
    """Return the matrix with so many lines more; `owners` are ascending."""
    from scipy.sparse import csr_array

    starts = matrix.indptr[-1] + np.searchsorted(owners, np.arange(1, count + 1))
    # Half as many bytes as by default: a query reads all of them.
    positions = np.concatenate([matrix.indices, features.astype(np.int32)])
    offsets = np.concatenate([matrix.indptr, starts.astype(matrix.indptr.dtype)])
    values = np.concatenate([matrix.data, weights])
    return csr_array((values, positions, offsets), shape=(len(offsets) - 1, max(width, 1)))


def _list_grams(columns: GraphColumns, line_of: Ints) -> tuple[Ints, Ints]:
    """Return the grams of the variants that have a line, each once, as line and gram, by line."""
    owners = line_of[np.repeat(np.arange(len(line_of)), np.diff(columns.variant_start))]
    nodes = columns.variant_nodes[owners >= 0]
    owners = owners[owners >= 0]
    acts = _number_step_vector_values(node.act for node in columns.nodes)
    screens = np.array([node.screen for node in columns.nodes], dtype=np.int64)
    listed = [
        _list_step_vector_pairs(owners, values, 2 * grain)
        for grain, values in enumerate((screens[nodes], acts[nodes], nodes))
    ]
    listed.append(_list_step_vector_parts(columns, owners, nodes))
    distinct, gram_of = np.unique(np.concatenate([grams for _, grams in listed]), return_inverse=True)
    owners = np.concatenate([lines for lines, _ in listed])
    # One number for each pair: sorting pairs as such is many times slower.
    owners, grams = np.divmod(sort_distinct(owners * max(len(distinct), 1) + gram_of), max(len(distinct), 1))
    return owners, distinct[grams]


def _list_step_vector_pairs(owners: Ints, values: Ints, block: int) -> tuple[Ints, Ints]:
    """Return values and, in the next block, pairs of values; runs of equal ones count once."""
    begins = mark_changes(owners, values)
    owners, values = owners[begins], values[begins]
    together = owners[1:] == owners[:-1]
    ones = (block << _BLOCK_BITS) | values
    twos = ((block + 1) << _BLOCK_BITS) | values[:-1][together] << _VALUE_BITS | values[1:][together]
    return np.concatenate([owners, owners[1:][together]]), np.concatenate([ones, twos])


def _list_step_vector_parts(columns: GraphColumns, owners: Ints, nodes: Ints) -> tuple[Ints, Ints]:
    """Return the parts of the screens of nodes."""
    # A variant may visit a node often, and a screen has many parts.
    owners, nodes = np.divmod(
        sort_distinct(owners * max(len(columns.nodes), 1) + nodes), max(len(columns.nodes), 1)
    )
    sizes = np.array([len(node.parts) for node in columns.nodes], dtype=np.int64)
    numbers = _number_step_vector_values(chain.from_iterable(node.parts for node in columns.nodes))
    starts = np.cumsum(sizes) - sizes
    lengths = sizes[nodes]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    parts = numbers[np.repeat(starts[nodes], lengths) + within]
    return np.repeat(owners, lengths), (_PARTS << _BLOCK_BITS) | parts


def _number_step_vector_values(values: Iterable[int]) -> Ints:
    """Return a small number for each value, by first occurrence: nodes that come later change none."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
