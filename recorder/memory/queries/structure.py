"""Structure of a graph, as columns: nodes, paths, variants and the traces they are made of. Spec §2.6.

Sealing only adds to it, so a reader adds the new rows; after a rebuild it reads all of them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import LargeBinary, func
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder.memory.graph.arrays import Ints
from recorder.memory.graph.graph import drop_repeated_nodes
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.steps.action_tokens import NAMED_ACTIONS
from recorder.memory.steps.step_labels import make_step_label
from recorder.memory.storage.graph_store import read_graph_labels, read_graph_rows
from recorder.models.memory import (
    GraphMicroStateRow,
    GraphNodeRow,
    GraphPathRow,
    GraphTraceRow,
    GraphVariantRow,
)
from recorder.tenant import GraphScope

#: Of each screen the smallest hashes count: with 8 the mean average precision is .892, with 5 it is .888.
_SCREEN_PARTS = 5


class NodeInfo(NamedTuple):
    """Node as queries see it; `representative` is the number of the node it was merged into, or its own."""

    node_id: str
    label: str
    kind: str
    representative: int
    #: Keys by which nodes of one action and target, and of one kind of screen, are known.
    act: int = 0
    screen: int = 0
    #: Hashes of parts of its screen, a sample.
    parts: tuple[int, ...] = ()
    #: Action and kind of element, without any text of a session.
    bare_label: str = ""


class PathInfo(NamedTuple):
    """Path as queries see it; `nodes` are representatives, `representative` as in `NodeInfo`."""

    path_id: str
    nodes: tuple[int, ...]
    representative: int


def make_empty_column() -> Ints:
    """Return a column of no rows."""
    return np.zeros(0, dtype=np.int64)


def _make_empty_structure_offsets() -> Ints:
    return np.zeros(1, dtype=np.int64)


@dataclass(slots=True)
class GraphStructure:
    """Nodes and paths by number; variants and traces in the order they were read."""

    nodes: list[NodeInfo] = field(default_factory=list)
    paths: list[PathInfo] = field(default_factory=list)
    #: The path of each variant, a representative; NO_PATH for that of no nodes.
    variant_path: Ints = field(default_factory=make_empty_column)
    #: The nodes of variant v are `variant_nodes[variant_start[v]:variant_start[v + 1]]`: representatives, no
    #: two equal neighbours.
    variant_start: Ints = field(default_factory=_make_empty_structure_offsets)
    variant_nodes: Ints = field(default_factory=make_empty_column)
    #: The variant of each trace.
    trace_variant: Ints = field(default_factory=make_empty_column)
    #: For each node of its variant, the position of the step at which a trace enters it; offsets as above.
    trace_start: Ints = field(default_factory=_make_empty_structure_offsets)
    trace_entry: Ints = field(default_factory=make_empty_column)
    variant_number: dict[int, int] = field(default_factory=dict, repr=False)
    trace_number: dict[int, int] = field(default_factory=dict, repr=False)


def read_structure(db: DbSession, scope: GraphScope, previous: GraphStructure, since: int) -> dict[str, Any]:
    """Return the members of the present structure.

    Args:
        db: the transaction.
        scope: the graph.
        previous: as it was at version `since`; an empty one and 0 to read all. It stays as it is.
        since: version of `previous`; 0 if that is empty.
    """
    nodes, paths = _read_structure_nodes(db, scope), _read_paths(db, scope)
    representatives = [node.representative for node in nodes]
    paths = [
        path._replace(nodes=drop_repeated_nodes(representatives[number] for number in path.nodes))
        for path in paths
    ]
    variants = _read_variants(db, scope, previous, since)
    return {
        "nodes": nodes,
        "paths": paths,
        **variants,
        **_read_structure_traces(db, scope, previous, since, variants["variant_number"]),
    }


def resolve_merges(merged_into: Sequence[int | None]) -> list[int]:
    """Return the representative of each number: the one it was merged into, through all merges, or itself."""
    representatives = list(range(len(merged_into)))
    for number, into in enumerate(merged_into):
        while into is not None:
            representatives[number] = into
            into = merged_into[into]
    return representatives


def _read_structure_nodes(db: DbSession, scope: GraphScope) -> list[NodeInfo]:
    row = GraphNodeRow
    columns = (row.number, row.node_id, row.label, row.kind, row.merged_into, row.act, row.screen)
    parts = func.substr(row.features, 1, 8 * _SCREEN_PARTS, type_=LargeBinary).label("parts")
    rows = read_graph_rows(db, scope, *columns, parts)
    rows = sorted(rows, key=lambda row: row.number)
    representatives = resolve_merges([row.merged_into for row in rows])
    texts = read_graph_labels(db, scope)
    labels = texts.name_nodes([row.label for row in rows], [row.kind for row in rows], representatives)
    return [
        NodeInfo(
            node_id=row.node_id,
            label=labels[row.number],
            kind=row.kind,
            representative=representatives[row.number],
            act=row.act,
            screen=row.screen,
            # SQLite gives NULL for a part of an empty value.
            parts=tuple(np.frombuffer(row.parts or b"", dtype="<i8").tolist()),
            bare_label=("" if row.kind in NAMED_ACTIONS else row.label) or make_step_label(row.kind, ""),
        )
        for row in rows
    ]


def _read_paths(db: DbSession, scope: GraphScope) -> list[PathInfo]:
    row = GraphPathRow
    rows = read_graph_rows(db, scope, row.number, row.path_id, row.nodes, row.merged_into)
    rows = sorted(rows, key=lambda row: row.number)
    representatives = resolve_merges([row.merged_into for row in rows])
    return [PathInfo(row.path_id, tuple(row.nodes), representatives[row.number]) for row in rows]


def _read_variants(db: DbSession, scope: GraphScope, previous: GraphStructure, since: int) -> dict[str, Any]:
    row = GraphVariantRow
    rows = read_graph_rows(
        db, scope, row.variant_key, row.nodes, row.path, where=[col(row.created_version) > since]
    )
    numbers = dict(previous.variant_number)
    numbers.update((row.variant_key, number) for number, row in enumerate(rows, len(numbers)))
    flat = np.fromiter(chain.from_iterable(row.nodes for row in rows), dtype=np.int64)
    return {
        "variant_number": numbers,
        "variant_path": _append_structure_numbers(
            previous.variant_path, [row.path if row.nodes else NO_PATH for row in rows]
        ),
        "variant_start": _continue_structure_offsets(
            previous.variant_start, [len(row.nodes) for row in rows]
        ),
        "variant_nodes": _append_structure_numbers(previous.variant_nodes, flat),
    }


def _read_structure_traces(
    db: DbSession, scope: GraphScope, previous: GraphStructure, since: int, variant_number: dict[int, int]
) -> dict[str, Any]:
    row = GraphTraceRow
    rows = read_graph_rows(
        db, scope, row.trace_key, row.steps, row.variant_key, where=[col(row.created_version) > since]
    )
    numbers = dict(previous.trace_number)
    numbers.update((row.trace_key, number) for number, row in enumerate(rows, len(numbers)))
    entries, sizes = _find_entries(db, scope, [row.steps for row in rows])
    return {
        "trace_number": numbers,
        "trace_variant": _append_structure_numbers(
            previous.trace_variant, [variant_number[row.variant_key] for row in rows]
        ),
        "trace_start": _continue_structure_offsets(previous.trace_start, sizes),
        "trace_entry": _append_structure_numbers(previous.trace_entry, entries),
    }


def _find_entries(db: DbSession, scope: GraphScope, steps: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Return the positions of steps at which each trace enters a node, and how many it enters."""
    if not any(steps):
        return make_empty_column(), np.zeros(len(steps), dtype=np.int64)
    row = GraphMicroStateRow
    states = np.array(read_graph_rows(db, scope, row.micro_key, row.node), dtype=np.int64).reshape(-1, 2)
    states = states[np.argsort(states[:, 0])]
    lengths = np.array([len(packed) // 8 for packed in steps], dtype=np.int64)
    flat = np.frombuffer(b"".join(steps), dtype="<i8")
    nodes = states[np.searchsorted(states[:, 0], flat), 1]
    owners = np.repeat(np.arange(len(steps)), lengths)
    enters = np.ones(len(flat), dtype=np.bool_)
    enters[1:] = (owners[1:] != owners[:-1]) | (nodes[1:] != nodes[:-1])
    positions = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return positions[enters], np.bincount(owners[enters], minlength=len(steps))


def _append_structure_numbers(numbers: Ints, new_numbers: Sequence[int] | Ints) -> Ints:
    return np.concatenate([numbers, np.asarray(new_numbers, dtype=np.int64)])


def _continue_structure_offsets(offsets: Ints, sizes: Sequence[int] | Ints) -> Ints:
    """Return the offsets, continued by parts of these sizes."""
    return np.concatenate([offsets, offsets[-1] + np.cumsum(np.asarray(sizes, dtype=np.int64))])
